"""The caching allocator beside the rules that it follows (c10/cuda/CUDACachingAllocator.cpp), worked out by hand, and
beside sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.peers.script.allocator import Allocator, Full

MIB = 1 << 20


def test_segments():
    """Small, middling and large requests come from segments of their own kind."""
    memory = Allocator(100 * MIB)
    memory.take(1)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (512, 2 * MIB)
    memory.take(MIB)
    assert memory.reserved_bytes == 2 * MIB, "what is left of the first segment has room for it"
    memory.take(MIB + 1)
    assert memory.reserved_bytes == 22 * MIB
    memory.take(19 * MIB)
    assert memory.reserved_bytes == 41 * MIB + MIB, "18.99 MiB are left, and 19 MiB make a segment of 20"
    assert memory.take(0) is None
    assert memory.allocated_bytes == 512 + MIB + MIB + 512 + 20 * MIB, "1 MiB is too little to split off"


def test_smallest_that_fits():
    """Of free blocks the smallest that is large enough is taken; streams do not share any."""
    memory = Allocator(1000 * MIB)
    large, small = memory.take(40 * MIB), memory.take(30 * MIB)
    memory.give_back(large)
    memory.give_back(small)
    assert memory.take(59 * MIB // 2).address == small.address
    assert memory.reserved_bytes == 70 * MIB
    memory.take(20 * MIB, stream=1)
    assert memory.reserved_bytes == 90 * MIB


def test_full():
    """Where the device is full, free segments go back to it first."""
    memory = Allocator(50 * MIB)
    memory.give_back(memory.take(30 * MIB))
    memory.take(40 * MIB)
    assert memory.reserved_bytes == 40 * MIB
    with pytest.raises(Full) as full:
        memory.take(20 * MIB)
    assert full.value.bytes == 20 * MIB


@given(st.booleans(), st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), st.integers(0, 2)), max_size=80))
def test_adds_up(is_expandable, steps):
    """Allocated bytes are those of the blocks in use, which never overlap; all of it given back joins up again."""
    memory = Allocator(1e15, is_expandable)
    used = []
    for is_free, size, stream in steps:
        if size % 7 == 0:
            memory.empty_cache()
        if is_free and used:
            memory.give_back(used.pop(size % len(used)))
        else:
            used.append(memory.take(size, stream))
        spans = sorted((block.address, block.address + block.bytes) for block in used)
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
        assert memory.allocated_bytes == sum(block.bytes for block in used) <= memory.reserved_bytes
    for block in used:
        memory.give_back(block)
    memory.empty_cache()
    assert memory.allocated_bytes == memory.reserved_bytes == 0


def test_expandable_segments():
    """One segment grows by pages of 20 MiB; what is free at its end is part of what a request gets."""
    memory = Allocator(1000 * MIB, is_expandable=True)
    first, second = memory.take(30 * MIB), memory.take(30 * MIB)
    assert memory.reserved_bytes == 60 * MIB, "10 MiB are left of two pages, and one more holds the rest"
    memory.give_back(first)
    third = memory.take(35 * MIB)
    assert (third.address, memory.reserved_bytes) == (60 * MIB, 100 * MIB), "the hole of 30 MiB is too small"
    assert memory.take(25 * MIB).address == 0
    assert memory.take(6 * MIB).address == 95 * MIB, "5 MiB are left in the hole, and 5 at the end, which grows"
    assert memory.reserved_bytes == 120 * MIB
    memory.give_back(second)
    memory.give_back(third)
    memory.empty_cache()
    assert memory.reserved_bytes == 120 * MIB - 40 * MIB, "pages at 40 and 60 MiB are free, others in part"
    assert memory.allocated_bytes == 31 * MIB


def test_expandable_segments_that_are_full():
    memory = Allocator(60 * MIB, is_expandable=True)
    blocks = [memory.take(20 * MIB) for _ in range(3)]
    with pytest.raises(Full):
        memory.take(20 * MIB)
    memory.give_back(blocks[0])
    memory.give_back(blocks[1])
    memory.take(40 * MIB)
    assert memory.reserved_bytes == memory.allocated_bytes == 60 * MIB
