"""Non-zero blocks of a tensor on each rank.

The generators are OmniReduce's (SIGCOMM 2021, its microbenchmarks): each rank draws its blocks independently
("random"), all ranks have the same ("full"), or as few in common as possible ("none"). They are deterministic, so every
process computes the same blocks.
"""

import numpy as np

OVERLAPS = ("random", "full", "none")


def owned(density: float, overlap: str, workers: int, blocks: int) -> np.ndarray:
    """bool[workers, blocks]: the non-zero blocks of each rank, a share `density` of all blocks."""
    count = round(density * blocks)
    has = np.zeros((workers, blocks), bool)
    order = np.random.default_rng(5).permutation(blocks)
    for rank in range(workers):
        if overlap == "random":
            order = np.random.default_rng((6, rank)).permutation(blocks)
        first = rank * count if overlap == "none" else 0
        has[rank, order[(first + np.arange(count)) % blocks]] = True
    return has
