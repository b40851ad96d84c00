"""Which blocks of a tensor are not zero on each rank.

The generators are OmniReduce's (SIGCOMM 2021, its microbenchmarks): each rank draws its blocks for itself ("random"),
all ranks have the same ("full"), or as few in common as can be ("none"). Every process computes the same from the same
numbers.
"""

import numpy as np

OVERLAPS = ("random", "full", "none")


def owned(density: float, overlap: str, workers: int, blocks: int) -> np.ndarray:
    """bool[workers, blocks]: each rank has the share `density` of so many blocks."""
    count = round(density * blocks)
    has = np.zeros((workers, blocks), bool)
    order = np.random.default_rng(5).permutation(blocks)
    for rank in range(workers):
        if overlap == "random":
            order = np.random.default_rng((6, rank)).permutation(blocks)
        first = rank * count if overlap == "none" else 0
        has[rank, order[(first + np.arange(count)) % blocks]] = True
    return has
