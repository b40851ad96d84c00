"""Infinities and NaN in fixed point: the classes of a CLASSIFY round, and what the sums become."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference_fixedpoint as reference
from tests.support.encoded import FLOATS, apply_classes, bits, classified

ANY_KIND = st.sampled_from([0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])


@given(
    st.sampled_from(FLOATS),
    st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(ANY_KIND, min_size=n, max_size=n), min_size=1, max_size=8)),
)
def test_infinities_and_nan_add_as_ieee_has_it(dtype, blocks):
    lanes = [classified(dtype, block) for block in blocks]
    assert lanes == [reference.classify(dtype, block) for block in blocks]
    finite = np.array([[x if math.isfinite(x) else 0.0 for x in block] for block in blocks]).sum(axis=0)
    got = finite.astype(dtype)
    apply_classes(dtype, np.sum(lanes, axis=0), got)
    with np.errstate(invalid="ignore"):
        expected = np.array(blocks).sum(axis=0)
    assert bits(dtype, got) == bits(dtype, expected)


@pytest.mark.parametrize("kind", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_class_counters_hold_256_ranks(dtype, kind):
    counts = 256 * np.array(classified(dtype, [kind, 1.0]))
    assert counts.max() < 2**31
    got = np.array([5.0, 6.0], dtype)
    apply_classes(dtype, counts, got)
    assert bits(dtype, got) == bits(dtype, [kind, 6.0])


@pytest.mark.parametrize(
    ("dtype", "workers"),
    [("float32/int8", 1), ("float32/int8", 127), ("float32/int16", 1), ("float32/int16", 255), ("float32/int16", 256)],
)
def test_narrow_lanes_make_nan_of_what_is_not_finite(dtype, workers):
    """On one rank or on all: 256 of them count beyond a byte."""
    lanes = np.array(classified(dtype, [math.inf, -math.inf, math.nan, 1.0]))
    assert lanes.tolist() == reference.classify(dtype, [math.inf, -math.inf, math.nan, 1.0]) == [1, 1, 1, 0]
    for ranks in (1, workers):
        got = np.array([1, 2, 3, 4], np.float32)
        apply_classes(dtype, ranks * lanes, got)
        assert bits("float32", got) == [b"NaN"] * 3 + bits("float32", [4])
