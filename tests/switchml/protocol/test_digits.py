"""Integers in lanes: one each where sums fit, else a digit a round; bit by bit against whole numbers of Python."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchml.protocol import digits
from switchml.protocol.fixedpoint import guard_bits
from tests.support import reference_fixedpoint as reference

DTYPES = pytest.mark.parametrize("dtype", reference.DIGITS)


def integers(dtype: str):
    info = np.iinfo(dtype)
    small = st.integers(-(2**31), 2**31 - 1) if dtype == "int64" else st.integers(-(2**24), 2**24)
    return st.integers(info.min, info.max) | small


def need(dtype: str, values, workers: int) -> int:
    x = np.array(values, dtype)
    return digits.need_of(dtype == "int64", x.ctypes.data, x.size, guard_bits(workers))


def encode(dtype: str, values, digit: int, count: int, spare: int) -> list[int]:
    x, lanes = np.array(values, dtype), np.full(len(values) + spare, 0x55, ">i4")
    digits.encode(dtype == "int64", x.ctypes.data, x.size, lanes.ctypes.data, lanes.size, digit, count)
    return lanes.tolist()


@DTYPES
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 256])
def test_values_fit_where_the_sum_of_all_ranks_does(dtype, workers):
    limit = 2 ** (31 - guard_bits(workers))
    assert workers * (limit - 1) < 2**31 and workers * limit >= 2**30
    for x in (0, limit - 1, -limit):
        assert need(dtype, [0, x, 1], workers) == reference.need(dtype, [x], workers=workers) == reference.ZERO
    for x in (limit, -limit - 1):
        if np.iinfo(dtype).min <= x <= np.iinfo(dtype).max:
            assert need(dtype, [0, x, 1], workers) == reference.DIGITS_NEEDED


@DTYPES
@given(data=st.data(), workers=st.sampled_from([1, 2, 3, 7, 256]), mean=st.booleans(), spare=st.integers(0, 3))
def test_a_whole_all_reduce_is_that_of_whole_numbers(dtype, data, workers, mean, spare):
    """Digit by digit, lanes added, and put together; with one lane where all values fit."""
    width = data.draw(st.integers(1, 9))
    block = st.lists(integers(dtype), min_size=width, max_size=width)
    blocks = data.draw(st.lists(block, min_size=min(workers, 7), max_size=min(workers, 7)))
    blocks = [blocks[r % len(blocks)] for r in range(workers)]
    divisor = workers if mean else 1
    fits = all(need(dtype, block, workers) == digits.FITS for block in blocks)
    count = digits.rounds(dtype == "int64", digits.FITS if fits else digits.CODE_DIGITS)
    assert count == (1 if fits else reference.DIGITS[dtype][0])
    kept, got = np.zeros(2 * width, np.uint32), np.zeros(width, dtype)
    for digit in range(count):
        lanes = [encode(dtype, block, digit, count, spare) for block in blocks]
        assert lanes == [reference.digit(dtype, block, digit, count) + [0] * spare for block in blocks]
        sums = [sum(column) for column in zip(*lanes, strict=True)]
        assert all(-(2**31) <= x < 2**31 for x in sums)
        at = np.array(sums, ">i4")
        if digit < count - 1:
            digits.keep(at.ctypes.data, width, kept, digit)
    target, is_long = got.ctypes.data, dtype == "int64"
    misfits = digits.take(is_long, at.ctypes.data, target, width, kept, count, divisor)
    expected, expected_misfits = reference.all_reduce(dtype, blocks, divisor)
    assert misfits == expected_misfits
    if not misfits:
        assert got.tolist() == expected


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 256))
@example(-(2**63), 256)
@example(-1, 2)
def test_division_truncates(value, divisor):
    assert digits.truncating_division(value, divisor) == reference.truncated(value, divisor)
