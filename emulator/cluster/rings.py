"""Number of rings that NCCL finds in a node whose links form no full mesh: the largest set of link-disjoint Hamiltonian
cycles of the group, each of them a ring in both directions (NCCL's search over NVLink, src/graph/search.cc).
"""

import itertools
from collections.abc import Iterator
from functools import cache

from switchml.errors import ConfigError

MAX_TRIED = 50_000
"""Search limit, in paths and sets of cycles; the cube mesh of a DGX-1 takes a few thousand."""
Links = tuple[tuple[int, ...], ...]
"""Two accelerators of a node, and the number of links between them."""


@cache
def ring_rates(links: Links, ranks: int) -> float:
    """Rate of an all-reduce's ring among the first `ranks` accelerators, as a multiple of one link's rate in each
    direction. Without a cycle, sums travel along a chain and back, which takes as long as a ring of 2 (n-1) / n links.
    """
    count = {(a, b): number for a, b, number in links if max(a, b) < ranks}
    if ranks == 2:
        return float(sum(count.values()))
    free = {frozenset(pair): number for pair, number in count.items()}
    tried = itertools.count(1)
    most = _most(free, _cycles(free, ranks, tried), tried)
    return 2.0 * most if most else 2.0 * (ranks - 1) / ranks


def _check(tried: Iterator[int]) -> None:
    if next(tried) > MAX_TRIED:
        raise ConfigError("links join too many accelerators to look for all rings: give group_bytes_per_s")


def _cycles(free: dict[frozenset[int], int], ranks: int, tried: Iterator[int]) -> list[list[frozenset[int]]]:
    """Return all Hamiltonian cycles, each once, as lists of links."""
    found: list[list[frozenset[int]]] = []

    def extend(path: list[int]) -> None:
        _check(tried)
        if len(path) == ranks:
            edges = [frozenset(pair) for pair in zip(path, [*path[1:], path[0]], strict=True)]
            if path[1] < path[-1] and edges[-1] in free:
                found.append(edges)
            return
        for following in set(range(ranks)) - set(path):
            if frozenset((path[-1], following)) in free:
                extend([*path, following])

    extend([0])
    return found


def _most(free: dict[frozenset[int], int], cycles: list[list[frozenset[int]]], tried: Iterator[int]) -> int:
    """Return the largest number of link-disjoint cycles; a cycle counts several times if its links are multiple."""
    best = 0
    for i, cycle in enumerate(cycles):
        _check(tried)
        if all(free[edge] for edge in cycle):
            left = free | {edge: free[edge] - 1 for edge in cycle}
            best = max(best, 1 + _most(left, cycles[i:], tried))
    return best
