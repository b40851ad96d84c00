"""Table lookup by tuple space search (Srinivasan et al. 1999).

Entries with the same mask share a dictionary keyed by masked keys. Exact entries have one mask, prefixes one for each
length, ternary entries one for each mask in use; the field of a range is masked out, and the entries of a bucket are
tried one by one. Masks are tried in the order of their best entry, until none can have a better one. The cost of adding
or removing an entry is that of its own bucket.

A rank is an entry's level (the lower, the better) in the bits above its index.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from operator import and_

from emulator.p4switch.state.handles import INDEX_BITS, index_of

Key = tuple[int, ...]


class MaskGroup:
    """The entries with one mask. `cover`: the mask of each field; `buckets`: masked key → ranks, ascending."""

    def __init__(self, number: int, cover: Key) -> None:
        self.number = number
        self.cover = cover
        self.buckets: dict[Key, list[int]] = {}
        self._levels: list[int] = []  # levels in use, ascending
        self._n_at: dict[int, int] = {}  # number of entries per level

    @property
    def first(self) -> int:
        """Lower bound of the entries' ranks."""
        return self._levels[0] << INDEX_BITS

    def add(self, value: Key, rank: int) -> None:
        insort(self.buckets.setdefault(value, []), rank)
        level = rank >> INDEX_BITS
        if level not in self._n_at:
            insort(self._levels, level)
        self._n_at[level] = self._n_at.get(level, 0) + 1

    def remove(self, value: Key, rank: int) -> None:
        bucket = self.buckets[value]
        del bucket[bisect_left(bucket, rank)]
        if not bucket:
            del self.buckets[value]
        level = rank >> INDEX_BITS
        self._n_at[level] -= 1
        if not self._n_at[level]:
            del self._n_at[level], self._levels[bisect_left(self._levels, level)]


class TupleSpace:
    """Lookup structure of a table. `order`: (first, number, group) of each mask group, ascending."""

    def __init__(self) -> None:
        self.order: list[tuple[int, int, MaskGroup]] = []
        self._by_cover: dict[Key, MaskGroup] = {}
        self._n_groups = 0

    def group(self, cover: Key) -> MaskGroup | None:
        """The group of a mask, or None if no entry has that mask."""
        return self._by_cover.get(cover)

    def bucket(self, cover: Key, value: Key) -> Sequence[int]:
        """The ranks of the entries with a mask and a masked key, ascending."""
        return self._by_cover[cover].buckets.get(value, ()) if cover in self._by_cover else ()

    def add(self, cover: Key, value: Key, rank: int) -> None:
        """Add an entry with its mask and masked key."""
        group = self._by_cover.get(cover)
        if group is None:
            group = self._by_cover[cover] = MaskGroup(self._n_groups, cover)
            self._n_groups += 1
            before = None
        else:
            before = group.first
        group.add(value, rank)
        if before != group.first:
            self._move(group, before, group.first)

    def remove(self, cover: Key, value: Key, rank: int) -> None:
        """Remove an entry, with the arguments of its `add`."""
        group = self._by_cover[cover]
        before = group.first
        group.remove(value, rank)
        if not group.buckets:
            del self._by_cover[cover]
            self._move(group, before, None)
        elif group.first != before:
            self._move(group, before, group.first)

    def _move(self, group: MaskGroup, before: int | None, after: int | None) -> None:
        if before is not None:
            del self.order[bisect_left(self.order, (before, group.number, group))]
        if after is not None:
            insort(self.order, (after, group.number, group))

    def find(self, key: Sequence[int], fits: Callable[[int], bool] | None) -> int | None:
        """The index of the best entry that matches a key, or None. `fits`: whether the ranges of the entry with an
        index match; None if there are no ranges."""
        best = None
        for first, _, group in self.order:
            if best is not None and best < first:
                break
            for rank in group.buckets.get(tuple(map(and_, key, group.cover)), ()):
                if best is not None and best < rank:
                    break
                if fits is None or fits(index_of(rank)):
                    best = rank
                    break
        return None if best is None else index_of(best)
