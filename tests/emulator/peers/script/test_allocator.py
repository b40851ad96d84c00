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


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), st.integers(0, 2)), max_size=80))
def test_adds_up(steps):
    """Allocated bytes are those of the blocks in use, which never overlap; all of it given back joins up again."""
    memory = Allocator(1e15)
    used = []
    for is_free, size, stream in steps:
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
