"""Selection and packing: top-k against a sort, Elias-Fano and bit packing against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from switchml.codecs import bitpack, indices
from switchml.codecs.select import above, top_k
from switchml.errors import PayloadError

FLOATS = hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))


def top_k_by_sorting(x: np.ndarray, k: int) -> np.ndarray:
    magnitudes = np.where(np.isnan(x), np.float64(np.inf), np.abs(x))
    is_nan = np.isnan(x)
    order = sorted(range(x.size), key=lambda i: (not is_nan[i], -magnitudes[i], i))
    return np.array(sorted(order[:k]), np.int64)


@given(FLOATS, st.integers(0, 70))
def test_top_k_of_few(x, k):
    nan = np.isnan(x)
    x[nan] = np.float32(np.nan)  # of different NaN the one with more bits set would be taken
    assert np.array_equal(top_k(x, k), top_k_by_sorting(x, k))


def shapes(n: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Vectors that a sample describes well, and others that it does not."""
    spike = np.zeros(n)
    spike[n // 3 : n // 3 + 500] = 1 + np.arange(500)
    periodic = np.zeros(n)
    periodic[:: max(1, n // 8192)] = random.standard_normal(periodic[:: max(1, n // 8192)].size)
    return {
        "normal": random.standard_normal(n), "few values": random.integers(-3, 4, n), "constant": np.full(n, 0.5),
        "zeros": np.zeros(n), "zeros but for a corner": spike, "what the sample hits": periodic,
        "ascending": np.arange(n), "all scales": random.standard_normal(n) * 10.0 ** random.uniform(-40, 38, n),
    }  # fmt: skip


@pytest.mark.parametrize("name", shapes(5000, np.random.default_rng(0)))
@pytest.mark.parametrize("n", [5000, 100_003])
def test_top_k_of_many(name, n):
    x = shapes(n, np.random.default_rng(n))[name].astype(np.float32)
    order = np.lexsort((np.arange(n), -np.abs(x)))
    for k in (1, 7, n // 1000, n // 100, n // 3, n - 1, n):
        assert np.array_equal(top_k(x, k), np.sort(order[:k])), k


def test_nan_and_infinities_come_first():
    x = np.zeros(50_000, np.float32)
    x[[7, 30_000, 49_999]] = np.nan, -np.inf, 1
    assert list(top_k(x, 2)) == [7, 30_000]
    assert list(top_k(x, 3)) == [7, 30_000, 49_999]


@given(FLOATS, st.floats(0, 2.0**120, width=32))
def test_above(x, threshold):
    with np.errstate(invalid="ignore"):
        wanted = np.flatnonzero((np.abs(x) > np.float32(threshold)) | np.isnan(x))
    assert np.array_equal(above(x, threshold), wanted)


@given(st.data(), st.integers(1, 2000))
def test_indices(data, n):
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1)))), np.int64)
    packed = indices.pack(chosen, n)
    assert packed.size == indices.packed_bytes(chosen.size, n)
    assert np.array_equal(indices.unpack(packed, chosen.size, n), chosen)


@pytest.mark.parametrize("n", [2**20, 2**33, 2**45])
def test_indices_of_long_vectors_take_few_bits(n):
    k = 1000
    chosen = np.sort(np.random.default_rng(0).choice(n, k, replace=False)) if n < 2**30 else np.arange(k) * (n // k) + 5
    packed = indices.pack(chosen, n)
    assert np.array_equal(indices.unpack(packed, k, n), chosen)
    assert packed.size * 8 / k <= 2 + np.log2(n / k) + 0.1


@given(st.binary(max_size=40), st.integers(0, 50), st.integers(0, 100))
def test_damaged_indices(data, k, n):
    packed = np.frombuffer(data, np.uint8)
    try:
        found = indices.unpack(packed, k, n)
    except PayloadError:
        return
    assert found.size == k and (np.diff(found) > 0).all() and (found < n).all() and (found >= 0).all()


@given(st.integers(1, 16), st.lists(st.integers(0, 65535), max_size=80))
def test_bits(bits, numbers):
    codes = np.array(numbers, np.uint16) & np.uint16((1 << bits) - 1)
    packed = bitpack.pack(codes, bits)
    assert packed.size == bitpack.packed_bytes(codes.size, bits)
    as_one_number = sum(int(code) << (bits * i) for i, code in enumerate(codes))
    assert int.from_bytes(packed.tobytes(), "little") == as_one_number
    assert np.array_equal(bitpack.unpack(packed, bits, np.empty_like(codes)), codes)


def test_width():
    assert [bitpack.width(codes) for codes in (1, 2, 3, 4, 5, 255, 256, 257)] == [1, 1, 2, 2, 3, 8, 8, 9]
