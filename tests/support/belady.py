"""Belady's rule by brute force."""

import itertools


def fewest_misses(accesses, capacity: int) -> int:
    """Over every choice of what to keep after each access."""
    reachable = {frozenset(): 0}
    for sample in accesses.tolist():
        after = {}
        for held, misses in reachable.items():
            misses += sample not in held
            offered = held | {sample}
            for size in range(min(capacity, len(offered)) + 1):
                for kept in itertools.combinations(sorted(offered), size):
                    key = frozenset(kept)
                    after[key] = min(after.get(key, misses), misses)
        reachable = after
    return min(reachable.values())
