"""Copies past the caches: whatever the alignment and length, these bytes and no others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchml.runtime.jit import Address, kernel
from switchml.runtime.memory import copy_past_caches, fence

GUARD = 64


@kernel
def copy(destination: Address, source: Address, count: int) -> None:
    copy_past_caches(destination, source, count)
    fence()


@given(st.integers(0, 1100), st.integers(0, 63), st.integers(0, 63), st.integers(0, 255))
def test_copies_past_caches(count, to, start, other):
    source = np.frombuffer(np.random.default_rng(count).bytes(start + count), np.uint8)
    target = np.full(GUARD + to + count + GUARD, other, np.uint8)
    copy(target.ctypes.data + GUARD + to, source.ctypes.data + start, count)
    expected = np.full_like(target, other)
    expected[GUARD + to :][:count] = source[start:]
    assert (target == expected).all()
