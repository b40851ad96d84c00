"""Jobs whose ranks are on named hosts, all in this process."""

from __future__ import annotations

import itertools

import pytest

from host_agent.agent import HostAgent
from tests.support.launch import DEADLINE_S, good, leave_all, on_all
from tests.support.started import started


@pytest.fixture
def join(aggregator):
    """`join([2, 1], **options)`: the agents of a job on two hosts, of two ranks and one. They leave after the test."""
    number = itertools.count()

    def begin(ranks_of_host: list[int], at: str = "", **options) -> list[HostAgent]:
        host_of = [host for host, ranks in enumerate(ranks_of_host) for _ in range(ranks)]
        common = {"job": f"hosts {next(number)}", "world_size": len(host_of), "timeout_s": DEADLINE_S} | options

        def one(rank: int) -> HostAgent:
            at_address = at or aggregator.address
            return HostAgent.join(at_address, rank=rank, hierarchy=f"node:host {host_of[rank]}", **common)

        return good(on_all(range(len(host_of)), one))

    yield from started(begin, leave_all)
