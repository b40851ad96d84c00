"""bfloat16: widening is exact for all 65,536 numbers, narrowing rounds to the nearest even."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchml.protocol.bfloat16 import narrow, widen
from tests.support import reference_fixedpoint as reference

EVERY_HALF = np.arange(65536, dtype=np.uint16)


def widened(halves: np.ndarray) -> np.ndarray:
    floats = np.zeros(halves.size, np.uint32)
    widen(halves, floats)
    return floats


def narrowed(floats: np.ndarray) -> np.ndarray:
    halves = np.zeros(floats.size, np.uint16)
    narrow(floats, halves)
    return halves


def test_widening_appends_sixteen_zero_bits():
    assert np.array_equal(widened(EVERY_HALF), EVERY_HALF.astype(np.uint32) << 16)


def test_narrowing_undoes_widening():
    """For NaN too, except that a signalling one comes back quiet."""
    nan = (EVERY_HALF & 0x7FFF) > 0x7F80
    assert np.array_equal(narrowed(widened(EVERY_HALF)), np.where(nan, EVERY_HALF | 0x40, EVERY_HALF))


@given(st.floats(width=32, allow_nan=False))
@example(3.4028234663852886e38)  # the largest float32 is beyond the largest bfloat16 and a half
@example(float(2**127 + 2**119))  # ties: to even, down here
@example(float(2**127 + 3 * 2**119))  # and up here
@example(2.0**-149)
@example(-0.0)
def test_narrowing_rounds_to_the_nearest_even(x):
    bits = np.array([x], np.float32).view(np.uint32)
    got = struct.unpack("<f", struct.pack("<I", int(narrowed(bits)[0]) << 16))[0]
    if x in (float("inf"), float("-inf")) or x == 0:
        assert struct.pack("<f", got) == struct.pack("<f", x)
    else:
        assert struct.pack("<f", got) == struct.pack("<f", reference.rounded(Fraction(x), "bfloat16"))


@given(st.integers(0x7F800001, 0x7FFFFFFF), st.booleans())
def test_nan_stays_nan_with_its_sign(bits, negative):
    half = int(narrowed(np.array([bits | negative << 31], np.uint32))[0])
    assert half & 0x7FFF > 0x7F80 and half >> 15 == negative


def test_the_same_as_torch():
    torch = pytest.importorskip("torch", reason="needs torch to compare with its bfloat16")
    bits = np.random.default_rng(1).integers(0, 2**32, 200_000, np.uint32)
    bits = bits[(bits & 0x7FFFFFFF) <= 0x7F800000]
    theirs = torch.from_numpy(bits.view(np.float32).copy()).to(torch.bfloat16)
    assert np.array_equal(narrowed(bits), theirs.view(torch.int16).numpy().view(np.uint16))
    assert np.array_equal(widened(narrowed(bits)), theirs.float().numpy().view(np.uint32))
