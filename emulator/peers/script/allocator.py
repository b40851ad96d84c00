"""PyTorch's caching allocator on virtual memory: allocated and reserved bytes of a job, and where it runs out.

Rules and sizes: c10/cuda/CUDACachingAllocator.cpp. Requests are rounded to 512 bytes; up to 1 MiB they are served from
segments of 2 MiB, below 10 MiB from segments of 20 MiB, else from a separate segment, rounded to 2 MiB. The smallest
free block of the same stream that is large enough is used, and split if enough remains; adjacent free blocks are
merged. When the device is full, entirely free segments are released.

With `expandable_segments` each stream has one segment for small and one for large requests, mapped in pages of 2 and 20
MiB: it grows by what a request needs, and entirely free pages are released.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

ROUND = 512
SMALL = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
OWN_SEGMENT = 10 << 20
SEGMENT_ROUND = 2 << 20
_APART = LARGE_SEGMENT << 24
"""Address range of an expandable segment: larger than any use, in whole pages."""


def _page(pool: tuple[bool, int]) -> int:
    return SMALL_SEGMENT if pool[0] else LARGE_SEGMENT


class Full(Exception):
    """No space for a request of `bytes`."""

    def __init__(self, bytes: int):
        super().__init__(bytes)
        self.bytes = bytes


@dataclass(eq=False)
class Block:
    """A block of a segment. `before`, `after`: adjacent blocks."""

    address: int
    bytes: int
    pool: tuple[bool, int]
    """(whether the pool is for small requests, stream)."""
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None


class Allocator:
    """The allocator of a process. `capacity_bytes`: the most that it may reserve."""

    def __init__(self, capacity_bytes: float, is_expandable: bool = False):
        self.capacity_bytes, self._is_expandable = capacity_bytes, is_expandable
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._free: dict[tuple[bool, int], list[tuple[int, int, Block]]] = {}
        self._next_address = 0
        self._last: dict[tuple[bool, int], Block] = {}
        """Last blocks of expandable segments, by pool."""

    def take(self, requested_bytes: int, stream: int = 0) -> Block | None:
        """Allocate a block; None for 0 bytes. Raises Full."""
        if requested_bytes <= 0:
            return None
        size = -(-requested_bytes // ROUND) * ROUND
        pool = (size <= SMALL, stream)
        grow = self._expand if self._is_expandable else self._new_segment
        block = self._best_fit(pool, size) or grow(pool, size)
        left = block.bytes - size
        if left >= ROUND if pool[0] or self._is_expandable else left > SMALL:
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def give_back(self, block: Block | None) -> None:
        """Free a block and merge it with adjacent free blocks."""
        if block is None:
            return
        self.allocated_bytes -= block.bytes
        for other in (block.before, block.after):
            if other is None or not other.is_free:
                continue
            self._unlist(other)
            if other is self._last.get(block.pool):
                self._last[block.pool] = block
            block.bytes += other.bytes
            block.address = min(block.address, other.address)
            if other is block.before:
                block.before = other.before
                if other.before is not None:
                    other.before.after = block
            else:
                block.after = other.after
                if other.after is not None:
                    other.after.before = block
        self._list(block)

    def empty_cache(self) -> None:
        """Release segments without a block in use, or free pages of expandable segments, to the device."""
        if self._is_expandable:
            self._unmap()
            return
        for blocks in self._free.values():
            for entry in [entry for entry in blocks if entry[2].before is None and entry[2].after is None]:
                blocks.remove(entry)
                self.reserved_bytes -= entry[0]

    def reset_peaks(self) -> None:
        """Restart the peak counters."""
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def _best_fit(self, pool: tuple[bool, int], size: int) -> Block | None:
        blocks = self._free.setdefault(pool, [])
        place = bisect_left(blocks, size, key=lambda entry: entry[0])
        if place + 1 < len(blocks) and blocks[place][2] is self._last.get(pool):
            place += 1  # the growable block is kept for requests that need it
        return blocks.pop(place)[2] if place < len(blocks) else None

    def _new_segment(self, pool: tuple[bool, int], size: int) -> Block:
        if pool[0]:
            segment = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // SEGMENT_ROUND) * SEGMENT_ROUND
        self._reserve(segment, size)
        address = self._next_address
        self._next_address += segment
        return Block(address, segment, pool)

    def _expand(self, pool: tuple[bool, int], size: int) -> Block:
        """Map the missing bytes of a request at the end of its segment, in whole pages."""
        last, page = self._last.get(pool), _page(pool)
        if last is not None and last.is_free:
            self._unlist(last)
            block = last
        else:
            start = len(self._last) * _APART if last is None else last.address + last.bytes
            block = Block(start, 0, pool, before=last)
        more = -(-(size - block.bytes) // page) * page
        try:
            self._reserve(more, size)
        except Full:
            if block is last:
                self._list(block)
            raise
        if last is not None and block is not last:
            last.after = block
        block.bytes += more
        self._last[pool] = block
        return block

    def _unmap(self) -> None:
        """Unmap free pages. The remainders on either side become two blocks."""
        for pool, blocks in self._free.items():
            page = _page(pool)
            for _, address, block in list(blocks):
                end = address + block.bytes
                first, until = -(-address // page) * page, end // page * page
                if first >= until:
                    continue
                self._unlist(block)
                self.reserved_bytes -= until - first
                rest = Block(until, end - until, pool, after=block.after)
                block.bytes, block.after = first - address, None
                if rest.after is not None:
                    rest.after.before = rest if rest.bytes else None
                if block is self._last.get(pool):
                    self._last[pool] = rest
                for part in (block, rest):
                    if part.bytes:
                        self._list(part)
                if not block.bytes and block.before is not None:
                    block.before.after = None

    def _reserve(self, more: int, size: int) -> None:
        """Reserve `more` bytes of the device, for a request of `size`."""
        if self.reserved_bytes + more > self.capacity_bytes:
            self.empty_cache()
            if self.reserved_bytes + more > self.capacity_bytes:
                raise Full(size)
        self.reserved_bytes += more
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.bytes - size, block.pool, before=block, after=block.after)
        if block is self._last.get(block.pool):
            self._last[block.pool] = rest
        if block.after is not None:
            block.after.before = rest
        block.bytes, block.after = size, rest
        self._list(rest)

    def _list(self, block: Block) -> None:
        block.is_free = True
        insort(self._free.setdefault(block.pool, []), (block.bytes, block.address, block), key=lambda entry: entry[:2])

    def _unlist(self, block: Block) -> None:
        blocks = self._free[block.pool]
        blocks.pop(bisect_left(blocks, (block.bytes, block.address), key=lambda entry: entry[:2]))
