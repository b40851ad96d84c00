"""What is computed in the memory that ranks share, against Python's own numbers; and counts that others wait for."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.hierarchy import memory as memories
from host_agent.hierarchy.memory import ARRIVED, DEPTH, FAILED, KINDS, READY, TAKEN, HostMemory, create
from tests.support.launch import DEADLINE_S

SLOT = 3


def shared(ranks: int) -> list[HostMemory]:
    """The memory as each rank sees it."""
    fd = create(ranks)
    try:
        return [HostMemory(fd, index, ranks) for index in range(ranks)]
    finally:
        os.close(fd)


def put(views: list[HostMemory], arrays: list[np.ndarray]) -> None:
    for view, array in zip(views, arrays, strict=True):
        view.copy_in(SLOT, array.ctypes.data, array.nbytes)


def taken(view: HostMemory, dtype: str, count: int, divisor: int = 1) -> np.ndarray:
    out = np.empty(count, dtype)
    view.copy_out(SLOT, KINDS[dtype], out.ctypes.data, count, divisor)
    return out


def truncated(value: int, divisor: int) -> int:
    return abs(value) // divisor * (1 if value >= 0 else -1)


def wrapped(value: int, bits: int) -> int:
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


@given(
    ranks=st.integers(1, 5),
    count=st.sampled_from([1, 7, 4097, memories._MIN_SHARED - 1, memories._MIN_SHARED, 40_001]),
    dtype=st.sampled_from(["float32", "float64"]),
    divisor=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 2**32),
)
def test_floats_are_added_in_the_order_of_the_ranks(ranks, count, dtype, divisor, seed):
    views = shared(ranks)
    generator = np.random.default_rng(seed)
    arrays = [
        (generator.standard_normal(count) * 10.0 ** generator.integers(-9, 9, count)).astype(dtype) for _ in views
    ]
    arrays[0][generator.integers(count)] = generator.choice([np.inf, -np.inf, np.nan, 1e-42])
    put(views, arrays)
    for view in reversed(views):
        assert not view.sum_share(SLOT, KINDS[dtype], count)
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array
    if divisor > 1:
        expected /= np.dtype(dtype).type(divisor)
    for view in views:
        assert taken(view, dtype, count, divisor).tobytes() == expected.tobytes()


@given(
    ranks=st.integers(1, 5),
    dtype=st.sampled_from(["int32", "int64"]),
    divisor=st.sampled_from([1, 2, 3, 7]),
    data=st.data(),
)
def test_integers_are_exact_and_overflow_is_noticed(ranks, dtype, divisor, data):
    bits = 8 * np.dtype(dtype).itemsize
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    edges = st.sampled_from([low, low + 1, -1, 0, 1, high - 1, high])
    numbers = st.lists(edges | st.integers(low, high), min_size=4, max_size=4)
    rows = data.draw(st.lists(numbers, min_size=ranks, max_size=ranks))
    views = shared(ranks)
    put(views, [np.array(row, dtype) for row in rows])
    totals = [sum(column) for column in zip(*rows, strict=True)]
    overflowed = [view.sum_share(SLOT, KINDS[dtype], 4) for view in views]
    fits = [low <= total <= high for total in totals]
    assert any(overflowed) or all(fits)
    assert taken(views[0], dtype, 4).tolist() == [wrapped(total, bits) for total in totals]
    wide = views[0].wide_sum(SLOT, KINDS[dtype], 4)
    assert [(int(upper) << 32) + int(lower) for upper, lower in wide.T] == totals
    assert views[0].narrow(SLOT, KINDS[dtype], wide) == fits.count(False)
    for view in views:
        result = taken(view, dtype, 4, divisor)
        assert result.tolist() == [truncated(wrapped(total, bits), divisor) for total in totals]


@pytest.mark.parametrize("count", [1, memories._MIN_SHARED, 100_003, memories.BLOCK_BYTES // 4])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_shares_cover_a_block_once(ranks, count):
    ends = [view._share(count) for view in shared(ranks)]
    covered = [place for first, last in ends for place in range(first, last)]
    assert covered == list(range(count))


def test_counts_and_the_leaders_word():
    first, second = shared(2)
    assert second.state == memories.STARTING and second.least(ARRIVED) == 0
    heard = second.rings()
    first.publish(ARRIVED, 5)
    second.wait(heard, DEADLINE_S)
    assert second.rings() > heard and second.count(0, ARRIVED) == 5 and first.least(ARRIVED) == 0
    first.announce(READY, wire="int32")
    assert second.state == READY and second.facts() == {"wire": "int32"}
    first.announce(FAILED, message="x" * 10_000)
    assert second.state == FAILED and second.facts()["message"] == "x" * memories._MAX_TEXT
    first.records[1, DEPTH - 1, :] = 7
    assert (second.records[1, DEPTH - 1] == 7).all() and (second.records[0] == 0).all()
    first.waits_for[255] = 1
    assert second.waits_for.tolist() == [0] * 255 + [1] and (first.count(0, TAKEN), first.count(1, TAKEN)) == (0, 0)


def test_a_ring_before_sleep_is_not_lost():
    view = shared(1)[0]
    heard = view.rings()
    view.ring_own()
    view.wait(heard, 1000 * DEADLINE_S)
    heard = view.rings()
    threading.Thread(target=view.ring_own).start()
    view.wait(heard, 1000 * DEADLINE_S)
    assert view.rings() == heard + 1
