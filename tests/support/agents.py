"""Shared by tests of several agents."""

from __future__ import annotations

import numpy as np

from tests.support.launch import digest, good, on_all


def reduce_all(agents, arrays, **options) -> list:
    """`arrays[rank]` all-reduced by every rank at once."""
    return good(on_all(agents, lambda agent: agent.allreduce(arrays[agent.rank], **options)))


def gradients(seed: int, rank: int, numel: int, dtype: str) -> np.ndarray:
    """Numbers of many magnitudes, so that exponents have to be agreed for every block."""
    generator = np.random.default_rng((seed, rank))
    if dtype.startswith("int"):
        return generator.integers(-(2**28), 2**28, numel, dtype)
    scale = 2.0 ** np.repeat(generator.integers(-12, 2, -(-numel // 500)), 500)[:numel]
    return (generator.standard_normal(numel) * scale).astype(dtype)


def same_bits(results) -> bool:
    return len({digest([result]) for result in results}) == 1
