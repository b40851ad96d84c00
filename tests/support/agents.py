"""Shared by tests of several agents."""

from __future__ import annotations

from tests.support.launch import digest, good, on_all


def reduce_all(agents, arrays, **options) -> list:
    """`arrays[rank]` all-reduced by every rank at once."""
    return good(on_all(agents, lambda agent: agent.allreduce(arrays[agent.rank], **options)))


def same_bits(results) -> bool:
    return len({digest([result]) for result in results}) == 1
