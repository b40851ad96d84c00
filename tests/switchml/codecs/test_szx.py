"""SZx: the authors' streams read and written byte for byte, and a bound that holds for whatever floats there are."""

import base64
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from switchml.codecs import StepContext
from switchml.codecs.szx import Szx
from switchml.errors import PayloadError
from tests.support.examples import examples

STREAMS = json.loads((Path(__file__).parent / "szx_streams.json").read_text())["streams"]


def read(text: str, dtype) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).copy()


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def reference_decode(stream: bytes, n: int) -> np.ndarray:
    """The stream as szx.py describes it, read one field after the other."""
    block, constants = stream[4], struct.unpack(">Q", stream[5:13])[0]
    blocks = -(-n // block)
    states = [stream[13 + b // 8] >> (7 - b % 8) & 1 for b in range(blocks)]
    medians_at = 13 + (blocks + 7) // 8
    at = medians_at + 4 * constants
    x = []
    for b in range(blocks):
        count = min(block, n - b * block)
        if not states[b]:
            x += [struct.unpack(">f", stream[medians_at : medians_at + 4])[0]] * count
            medians_at += 4
            continue
        length, median = stream[at], np.float32(struct.unpack(">f", stream[at + 1 : at + 5])[0])
        leads = [stream[at + 5 + i // 4] >> (6 - 2 * (i % 4)) & 3 for i in range(count)]
        at += 5 + (count + 3) // 4
        size = -(-length // 8)
        previous = [0, 0, 0, 0]  # bytes of the last value, the highest first
        for lead in leads:
            new = max(size - lead, 0)
            fresh = list(stream[at : at + new][::-1])  # written the lowest first
            at += new
            value = (previous[:lead] + fresh + [0, 0, 0, 0])[:4]
            previous = value
            word = int.from_bytes(bytes(value), "big") << (8 * size - length) & 0xFFFFFFFF
            number = np.uint32(word).view(np.float32)
            x.append(number if median == 0 else number + median)
    assert at == len(stream)
    return np.array(x, np.float32)


@pytest.mark.parametrize("case", STREAMS, ids=[case["name"] for case in STREAMS])
def test_the_authors_streams(case):
    x, stream = read(case["x"], np.float32), read(case["stream"], np.uint8)
    codec = Szx(bound=float(np.float32(case["bound"])), mode="abs", block=case["block"])
    decoded = codec.decode(stream, x.size)
    assert np.array_equal(bits(decoded), bits(read(case["decoded"], np.float32))), "read as they read it"
    ours = codec.encode(None, x, StepContext())
    if case["name"] == "noise, fine":  # where rounding alone may use up half the bound, we write blocks as they are
        assert_within(x, codec.decode(ours, x.size), case["bound"])
    else:
        assert np.array_equal(ours, stream), "written as they write it"


ANY_FLOAT = st.floats(width=32) | st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-40, 3.4028235e38, -3.4028235e38, 1.0, 1.0000001]
)
ANY_VECTOR = hnp.arrays(np.float32, st.integers(0, 40), elements=ANY_FLOAT)
NEAR_EACH_OTHER = st.builds(
    lambda centre, steps, unit: np.nan_to_num((centre + np.array(steps) * unit).astype(np.float32)),
    st.floats(-1e30, 1e30),
    st.lists(st.integers(-1000, 1000), max_size=40),
    st.floats(1e-45, 1e28),
)


def assert_within(x: np.ndarray, y: np.ndarray, bound: float) -> None:
    finite = np.isfinite(x)
    assert (np.abs(x[finite].astype(np.float64) - y[finite].astype(np.float64)) <= bound).all()
    assert np.array_equal(bits(x[~finite]), bits(y[~finite])), "infinities and NaN as they were, bit for bit"


@given(ANY_VECTOR | NEAR_EACH_OTHER, st.floats(0, 1e39), st.integers(8, 255))
@examples(500)
def test_the_bound_is_never_broken(x, bound, block):
    codec = Szx(bound=bound, mode="abs", block=block)
    stream = codec.encode(None, x, StepContext())
    y = codec.decode(stream, x.size)
    assert_within(x, y, bound)
    with np.errstate(all="ignore"):
        assert np.array_equal(bits(reference_decode(stream.tobytes(), x.size)) << 1, bits(y) << 1)  # but for -0


@given(NEAR_EACH_OTHER, st.floats(-6, 6))
@examples(300)
def test_the_bound_is_never_broken_where_rounding_matters(x, exponent):
    """Bounds around the distance of neighbouring floats."""
    bound = float(np.spacing(np.abs(x).max(initial=1e-30))) * 2.0**exponent
    codec = Szx(bound=bound, mode="abs", block=16)
    assert_within(x, codec.decode(codec.encode(None, x, StepContext()), x.size), bound)


@pytest.mark.parametrize("bound", [1e-1, 1e-3, 1e-6])
def test_relative_bound(bound):
    random = np.random.default_rng(0)
    x = (random.standard_normal(10_000) * 5 + 3).astype(np.float32)
    y = Szx(bound=bound).decode(Szx(bound=bound).encode(None, x, StepContext()), x.size)
    largest = np.abs(x.astype(np.float64) - y).max()
    assert largest <= bound * (float(x.max()) - float(x.min()))
    assert largest > 0, "it does use its bound"
    x[100], x[5000] = np.inf, np.nan  # the range is that of the finite elements
    assert_within(x, Szx(bound=bound).decode(Szx(bound=bound).encode(None, x, StepContext()), x.size), largest * 1.5)


def test_lossless():
    x = np.random.default_rng(0).integers(0, 2**32, 4000, np.uint64).astype(np.uint32).view(np.float32)
    codec = Szx(bound=0, mode="abs")
    assert np.array_equal(bits(codec.decode(codec.encode(None, x, StepContext()), x.size)), bits(x))


def test_sizes():
    """A constant block takes a bit and its median; 13 bytes go before all."""
    assert Szx().encode(None, np.full(1280, 0.5, np.float32), StepContext()).size == 13 + 2 + 10 * 4
    assert Szx().encode(None, np.empty(0, np.float32), StepContext()).size == 13
    noise = np.random.default_rng(0).standard_normal(128_000).astype(np.float32)
    size = Szx(bound=2.0**-5, mode="abs").encode(None, noise, StepContext()).size
    assert size <= 13 + 125 + 1000 * (5 + 32) + 2 * noise.size, "10 + 1 + 5 bits, 2 bytes"


@pytest.mark.parametrize("change", [(4, 7), (0, 2), (12, 99), (13, 255)])
def test_damage_is_named(change):
    stream = Szx().encode(None, np.random.default_rng(0).standard_normal(300).astype(np.float32), StepContext()).copy()
    stream[change[0]] = change[1]
    with pytest.raises(PayloadError, match="szx"):
        Szx().decode(stream, 300)
