"""Half precision: all 65,536 numbers of each kind are widened exactly, and narrowing rounds to the nearest even."""

import struct
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import njit

from switchml.protocol import halves
from switchml.protocol.halves import BFLOAT16, FLOAT16
from tests.support import reference_fixedpoint as reference
from tests.support.reference_pool import sum_of_halves

EVERY_HALF = np.arange(65536, dtype=np.uint16)
KINDS = pytest.mark.parametrize(("kind", "infinity"), [(FLOAT16, 0x7C00), (BFLOAT16, 0x7F80)])


@pytest.fixture(params=["by the processor", "in integers"])
def converts(request, monkeypatch) -> SimpleNamespace:
    """The loops over float16, compiled for a processor that converts it and for one that does not."""
    if request.param == "in integers":
        monkeypatch.setattr(halves, "CONVERTS_HALVES", False)
    elif not halves.CONVERTS_HALVES:
        pytest.skip("needs a processor that converts float16")
    return SimpleNamespace(widen=njit(halves._widen16.py_func), narrow=njit(halves._narrow16.py_func))


def widened(kind: int, x: np.ndarray) -> np.ndarray:
    floats = np.zeros(x.size, np.float32)
    halves.widen(kind, x.ctypes.data, floats.ctypes.data, x.size)
    return floats


def narrowed(kind: int, floats: np.ndarray) -> np.ndarray:
    x = np.zeros(floats.size, np.uint16)
    halves.narrow(kind, floats.ctypes.data, x.ctypes.data, floats.size)
    return x


def wanted(kind: int) -> np.ndarray:
    """float32 bits of EVERY_HALF."""
    if kind == BFLOAT16:
        return EVERY_HALF.astype(np.uint32) << 16
    return EVERY_HALF.view(np.float16).astype(np.float32).view(np.uint32)


@KINDS
def test_widening_is_exact(kind, infinity):
    is_nan = infinity < (EVERY_HALF & 0x7FFF)
    floats = widened(kind, EVERY_HALF)
    assert np.array_equal(floats.view(np.uint32)[~is_nan], wanted(kind)[~is_nan])
    assert np.isnan(floats[is_nan]).all() and np.array_equal(np.signbit(floats), EVERY_HALF >= 0x8000)


@KINDS
def test_narrowing_undoes_widening(kind, infinity):
    """For NaN too, except that a signalling one comes back quiet."""
    is_nan, quiet = infinity < (EVERY_HALF & 0x7FFF), 0x200 if kind == FLOAT16 else 0x40
    back = narrowed(kind, widened(kind, EVERY_HALF))
    assert np.array_equal(back, np.where(is_nan, EVERY_HALF | quiet, EVERY_HALF))


@given(st.floats(width=32, allow_nan=False))
@example(3.4028234663852886e38)  # the largest float32 is beyond the largest bfloat16 and a half
@example(float(2**127 + 2**119))  # ties: to even, down here
@example(float(2**127 + 3 * 2**119))  # and up here
@example(2.0**-149)
@example(-0.0)
def test_narrowing_to_bfloat16_rounds_to_the_nearest_even(x):
    half = narrowed(BFLOAT16, np.array([x], np.float32))[0]
    got = struct.unpack("<f", struct.pack("<I", int(half) << 16))[0]
    if x in (float("inf"), float("-inf")) or x == 0:
        assert struct.pack("<f", got) == struct.pack("<f", x)
    else:
        assert struct.pack("<f", got) == struct.pack("<f", reference.rounded(Fraction(x), "bfloat16"))


def test_float16_is_numpys(converts):
    """Every one widened; and narrowed, around every one: itself, the middle to the next one, and what lies just beside
    these; and any bits."""
    wide = np.zeros(EVERY_HALF.size, np.uint32)
    converts.widen(EVERY_HALF, wide)
    np.testing.assert_array_equal(wide.view(np.float32), EVERY_HALF.view(np.float16).astype(np.float32))
    floats = EVERY_HALF[:0x7C00].view(np.float16).astype(np.float32)
    ends = np.append(floats, np.float32(65536))
    middles = (ends[:-1] + ends[1:]) / 2
    random = np.random.default_rng(1).integers(0, 0x7F800001, 200_000, np.uint32).view(np.float32)
    near = [np.nextafter(x, np.float32(to)) for x in (floats, middles) for to in (0, np.inf)]
    x = np.concatenate([floats, middles, *near, random])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16).view(np.uint16)
    narrow = np.zeros(x.size, np.uint16)
    converts.narrow(x.view(np.uint32), narrow)
    np.testing.assert_array_equal(narrow, wanted)


@KINDS
@given(bits=st.integers(0x7F800001, 0x7FFFFFFF), negative=st.booleans())
def test_nan_stays_nan_with_its_sign(kind, infinity, bits, negative):
    half = int(narrowed(kind, np.array([bits | negative << 31], np.uint32).view(np.float32))[0])
    assert half & 0x7FFF > infinity and half >> 15 == negative


@KINDS
@given(x=st.lists(st.integers(0, 65535), min_size=1, max_size=40), finite_only=st.booleans())
@example(x=[0x7C00, 0x8001], finite_only=True)
@example(x=[0x7F80, 0xFF7F], finite_only=False)
def test_largest_is_that_of_the_widened(kind, infinity, x, finite_only):
    numbers = np.array(x, np.uint16)
    bits = np.array([bits & 0x7FFFFFFF for bits in wanted(kind)[numbers].tolist()])
    if finite_only:
        bits = bits[bits < 0x7F800000]
    largest = halves.largest(kind, numbers.ctypes.data, numbers.size, finite_only)
    most = int(bits.max(initial=0))
    assert largest == most or (most > 0x7F800000 and largest > 0x7F800000)


@pytest.mark.parametrize(("dtype", "op"), halves.OPS)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sums_are_of_float32_and_rounded_once(dtype, op, ranks):
    """Whichever rank comes last; infinity and NaN are what float32 makes of them."""
    generator = np.random.default_rng(ranks)
    packets = (generator.integers(0, 1 << 16, (ranks, 128), np.uint16) & 0xBFFF).copy()
    number = halves.OPS[dtype, op]
    wanted = sum_of_halves(number, {rank: packets[rank].tobytes() for rank in range(ranks)})
    infinity = 0x7F80 if dtype == "bfloat16" else 0x7C00
    packets[0, :2] = infinity
    packets[-1, 1] = infinity | 0x8000
    for last in range(ranks):
        others, got, scratch = packets.copy(), np.zeros(128, np.uint16), np.zeros(128, np.float32)
        others[last] = 0
        of_last = last, packets[last].ctypes.data
        halves.add(number, others.ctypes.data, 256, ranks, 256, *of_last, scratch.ctypes.data, got.ctypes.data)
        assert got[2:].tobytes() == wanted[4:] and got[0] == infinity
        assert (got[1] & 0x7FFF > infinity) == (ranks > 1)  # infinity minus infinity is NaN
