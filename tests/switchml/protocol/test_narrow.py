"""int16 and int8 lanes: what they promise about sums, errors and odd values, whatever the network does.

tests/switchml/protocol/test_fixedpoint.py holds the compiled code against the specification bit by bit; here are the
promises that a user may build on, and the rules of worker and aggregator with narrow packets, in virtual time.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchml.protocol import fixedpoint, lanes
from switchml.protocol.narrow import steps
from switchml.protocol.retransmission import SECOND
from switchml.protocol.worker import Worker
from tests.support import reference_fixedpoint as reference
from tests.support.examples import examples
from tests.support.rank_network import TAG, Call, Network, check

BITS = {"float32/int16": 16, "float32/int8": 8}
NARROW = list(BITS)
ADD = {"float32/int16": lanes.add_int16, "float32/int8": lanes.add_int8}
LANE = {"float32/int16": np.dtype(">i2"), "float32/int8": np.dtype(">i1")}
LARGEST = float(np.finfo("float32").max)


class Summed:
    """One chunk all-reduced: `need` is the agreed code, `lanes` the sums, `overflow` if one did, `got` the result."""

    def __init__(self, dtype: str, blocks: list[list[float]], divisor: int = 1):
        workers, fmt = len(blocks), fixedpoint.FORMATS[dtype]
        headroom = fixedpoint.headroom(workers)[fixedpoint.WIRES[fmt]]
        arrays = [np.array(block, np.float32) for block in blocks]
        count = arrays[0].size
        self.need = max(fixedpoint.need_of(fmt, x.ctypes.data, count, False) for x in arrays)
        assert self.need != reference.UNKNOWN
        lanes = -(-count // 8) * 8  # a packet has a multiple of 256 bytes
        self.lanes = np.zeros(lanes, LANE[dtype])
        self.overflow = False
        for x in arrays:
            mine = np.zeros(lanes, LANE[dtype])
            fixedpoint.encode(fmt, x.ctypes.data, count, mine.ctypes.data, lanes, self.need, headroom, False)
            assert np.abs(mine.astype(int)).max() <= headroom
            self.overflow |= bool(ADD[dtype](self.lanes.ctypes.data, mine.ctypes.data, lanes))
        self.got = np.zeros(count, np.float32)
        at, to = self.lanes.ctypes.data, self.got.ctypes.data
        fixedpoint.decode(fmt, at, to, count, self.need, headroom, divisor)
        self.step = Fraction(2) ** (self.need + 2) / headroom
        """What one step of a lane is worth: 2^Q / m."""


# Numbers


@given(
    st.sampled_from(NARROW),
    st.sampled_from([1, 2, 3, 4, 8, 16, 63, 100, 127]),
    st.integers(-149, 127),
    st.integers(0, 40),
    st.integers(0, 2**32),
)
@examples(250)
@example("float32/int8", 127, 127, 0, 0)
@example("float32/int16", 127, 127, 0, 0)
@example("float32/int8", 1, -149, 0, 0)
def test_sums_are_within_the_bound(dtype, workers, scale, spread, seed):
    """|error| <= n s (1/2 + m 2^-22) + 2^-149, with s = 2^Q / m: half a step for each rank, and float32's own rounding.

    A rank's product x m / 2^Q is rounded to float32 (m 2^-24 steps at most) and then to an integer (half a step); lanes
    are added exactly. 2^Q / m and its product with a sum of up to n m steps are float32 again: 2^-24 each, n m steps at
    most, or half the smallest subnormal number. Q is the exponent of the largest value of all, so s is at most twice
    that value divided by m.
    """
    chooser = random.Random(seed)
    blocks = [
        [
            float(np.float32(chooser.uniform(-1, 1) * 2.0 ** max(scale - chooser.randint(0, spread), -149)))
            for _ in range(5)
        ]
        for _ in range(workers)
    ]
    done = Summed(dtype, blocks)
    m = steps(BITS[dtype], workers)
    largest = max(abs(Fraction(x)) for block in blocks for x in block)
    assert largest < done.step * m and (done.need == -128 or done.step * m <= 2 * largest)
    bound = workers * done.step * (Fraction(1, 2) + Fraction(m, 2**22)) + Fraction(2) ** -149
    for i, got in enumerate(done.got.tolist()):
        exact = sum(Fraction(block[i]) for block in blocks)
        if math.isinf(got):
            assert abs(exact) + bound >= Fraction(LARGEST)
        else:
            assert abs(Fraction(got) - exact) <= bound


# Worker and aggregator in virtual time


def test_a_wire_that_is_too_narrow_is_refused():
    x = np.zeros(1, np.float32)
    rank = Worker(rank=0, workers=128, slots=1, job_tag=TAG, isn=0)
    with pytest.raises(ValueError, match="can't hold the sum of 128 ranks; use a wider wire"):
        rank.start(x.ctypes.data, x.ctypes.data, 1, "float32/int8")
    rank.start(x.ctypes.data, x.ctypes.data, 1, "float32/int16")


# Guessed exponents


def scaled(dtype: str, workers: int, scales: list[float], numel: int = 20) -> list[list[Call]]:
    """All-reduces of one shape, each of values a little below its scale, which no rank but the first reaches."""
    ranks = []
    for r in range(workers):
        shape = np.linspace(0.5, 0.9, numel, dtype=np.float32) / np.float32(1 + r)
        sources = [shape * np.float32(scale) for scale in scales]
        ranks.append([Call(dtype, 1, x, np.full_like(x, 9)) for x in sources])
    return ranks


def repeats(ranks: list[list[Call]]) -> int:
    """Rounds that went again, of the first rank, one call after the other."""
    network = Network(ranks, slots=16, windows=[16] * len(ranks), at_once=[False] * len(ranks)).run(limit=SECOND)
    check(ranks)
    return int(network.ranks[0].counters["repeats"])


@pytest.mark.slow
@given(st.sampled_from([1, 2, 9, 35]), st.integers(-140, 120), st.integers(-6, 6))
@examples(40)
def test_how_far_a_block_may_move_before_its_round_goes_again(workers, scale, moved):
    """By half of what the lanes can spare to either side of where it was, and never further than that."""
    for dtype in NARROW:
        calls = scaled(dtype, workers, [2.0**scale, 2.0 ** (scale + moved)])
        first, both = repeats([each[:1] for each in calls]), repeats(calls)
        spread = reference.spread(dtype, workers)
        codes = [min(max(scale + k, -126), 128) - 2 for k in (0, moved)]
        guess = min(codes[0] + spread // 2, 126)
        raised = guess < codes[1] and workers == 1  # nobody is there to disagree
        assert (both > first) == (not raised and not codes[1] <= guess <= codes[1] + spread), (first, both)
        assert both - first in (0, 1)


@pytest.mark.parametrize(("dtype", "workers", "spread"), [("int16", 31, 4), ("int16", 32, 2), ("int8", 1, 2),
                         ("int8", 7, 2), ("int8", 8, 1), ("int8", 15, 1), ("int8", 16, 0)])  # fmt: skip
def test_lanes_with_few_steps_spare_few_bits(dtype, workers, spread):
    assert reference.spread(f"float32/{dtype}", workers) == spread
    rank = Worker(rank=0, workers=workers, slots=1, job_tag=TAG, isn=0)
    assert (
        rank.identity["spread"].tolist()[reference.wire(f"float32/{dtype}")] == spread
        and rank.identity["spread"][0] == 0
    )
    headroom = steps(BITS[f"float32/{dtype}"], workers)
    assert headroom >> spread >= 4
