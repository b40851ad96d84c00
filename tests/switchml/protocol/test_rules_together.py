"""Ranks and an aggregator together, over any network (tests/support/rank_network.py).

The promise of protocol 2 is test_collectives.py's: whatever the network does, every rank ends with the same bits, those
of exact arithmetic as the specification rounds it.
"""

import heapq
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.protocol import worker_state as rules
from switchml.protocol.halves import KINDS, narrow, widen
from switchml.protocol.retransmission import MILLISECOND, SECOND
from tests.support import reference_fixedpoint as numbers
from tests.support.examples import examples
from tests.support.rank_network import LANES, PATH, PAYLOAD, Call, Network, Weather, check, single, values


@pytest.mark.parametrize("half", KINDS)
@pytest.mark.parametrize("wire", ["", "/int16", "/int8"])
@given(st.integers(1, 4), st.integers(0, 2**32), st.sampled_from([0.0, 0.1]))
@examples(30)
def test_half_precision_has_the_sums_of_its_float32_copies_rounded(half, wire, workers, seed, loss):
    """Packet for packet, whatever the values; in place, too."""
    chooser, kind = random.Random(seed), KINDS[half]
    numel, divisor, in_place = chooser.choice([1, 700, 1300]), chooser.choice([1, workers]), chooser.random() < 0.5
    halves, copies = [], []
    for _ in range(workers):
        x, copy = np.empty(numel, np.uint16), values("float32", numel, chooser, chooser.random() < 0.3)
        narrow(kind, copy.ctypes.data, x.ctypes.data, numel)
        widen(kind, x.ctypes.data, copy.ctypes.data, numel)
        halves.append([Call(f"{half}{wire}", divisor, x, x if in_place else np.zeros_like(x))])
        copies.append([Call(f"float32{wire}", divisor, copy, np.zeros_like(copy))])
    sent = []
    for ranks in (halves, copies):
        network = Network(ranks, slots=4, windows=[4] * workers, weather=Weather(loss=loss), seed=seed)
        sent.append(network.run(limit=60 * SECOND).first_sending)
    assert sent[0] == sent[1]
    for (call,), (copy,) in zip(halves, copies, strict=True):
        expected = np.empty(numel, np.uint16)
        narrow(kind, copy.target.ctypes.data, expected.ctypes.data, numel)
        assert call.target.tobytes() == expected.tobytes()


def test_a_rank_that_comes_seconds_late_is_waited_for():
    """The others ask five times a second, for eight rounds at most, and know who is missing."""
    ranks = single("float32", 2000, 3, random.Random(3))
    network = Network(ranks, slots=32, windows=[32] * 3)
    network.events = [(0 if r < 2 else 4 * SECOND, r, "wake", r, b"") for r in range(3)]
    heapq.heapify(network.events)
    network.run(limit=5 * SECOND)
    check(ranks)
    for r in (0, 1):
        assert network.ranks[r].missing_ranks() == (2,)
        assert network.ranks[r].counters["waits"] > 8 and network.ranks[r].counters["retransmitted"] < 8 * 60
    assert network.now < 4 * SECOND + 100 * MILLISECOND


# -- predictions --


def repeated(dtype: str, numel: int, times: int, slots: int, at_once: bool) -> Network:
    """The same tensors all-reduced several times by three ranks."""
    chooser = random.Random(f"{dtype} {numel}")
    columns = [values(dtype, numel, chooser, False) for _ in range(3)]
    ranks = [[Call(dtype, 1, x, np.zeros_like(x)) for _ in range(times)] for x in columns]
    network = Network(ranks, slots=slots, windows=[slots] * 3, at_once=[at_once] * 3).run(limit=SECOND)
    check(ranks)
    return network


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("dtype", [dtype for dtype in numbers.DENSE if dtype not in numbers.DIGITS])
@pytest.mark.parametrize("numel", [1, 50, 1000])
@pytest.mark.parametrize("at_once", [False, True])
def test_the_second_all_reduce_of_a_shape_needs_no_repeats(dtype, numel, at_once):
    first, both = (repeated(dtype, numel, times, 16, at_once) for times in (1, 2))
    if not at_once:
        for one, two in zip(first.ranks, both.ranks, strict=True):
            assert two.counters["repeats"] == one.counters["repeats"]
            assert two.counters["sent"] == one.counters["sent"] + one.queues[0]["total"]
    assert all(worker.counters["repeats"] <= 16 for worker in both.ranks)


def test_only_the_first_window_is_guessed():
    """Chunks from the second window on know their exponent from the round before, without any history."""
    chooser = random.Random(1)
    ranks = [
        [Call("float32", 1, x, np.zeros_like(x))]
        for x in (values("float32", 100 * LANES, chooser, False) * np.float32(10.0**r) for r in range(3))
    ]
    network = Network(ranks, slots=8, windows=[8] * 3, histories=False).run(limit=SECOND)
    check(ranks)
    assert all(0 < worker.counters["repeats"] <= 8 for worker in network.ranks)


def test_a_tensor_of_up_to_s_chunks_with_history_costs_one_packet_a_chunk():
    network = repeated("float32", 16 * LANES, 4, 16, at_once=False)
    assert all(worker.counters["sent"] == 4 * 16 + worker.counters["repeats"] for worker in network.ranks)
    # Results go round once for each all-reduce, and once more for the first one's guesses.
    assert network.now <= (4 + 1) * 2 * (PATH + PATH // 5)


@pytest.mark.parametrize("dtype", numbers.DIGITS)
def test_integers_have_a_round_for_each_digit_that_their_sums_need(dtype):
    """Three ranks' sums fit an int32 lane while all values are within 2^29; a single one beyond costs its chunk all
    digits. The first chunk of each slot is guessed to fit."""
    digits, chunks = numbers.DIGITS[dtype][0], 40
    for beyond, repeats in ((0, 0), (2**29 - 1, 0), (-(2**29), 0), (2**29, 1 + digits - 1), (-(2**29) - 1, digits)):
        ranks = [
            [Call(dtype, 3, x, np.zeros_like(x))] for x in np.arange(3 * chunks * LANES, dtype=dtype).reshape(3, -1)
        ]
        ranks[1][0].source[3 * LANES + 7] = beyond  # of the fourth chunk
        network = Network(ranks, slots=16, windows=[16] * 3).run(limit=SECOND)
        check(ranks)
        assert all(worker.counters["repeats"] == repeats for worker in network.ranks)
        ranks = [[Call(dtype, 1, x, np.zeros_like(x))] for x in np.full((3, chunks * LANES), beyond, dtype)]
        network = Network(ranks, slots=16, windows=[16] * 3).run(limit=SECOND)
        check(ranks)
        expected = (digits - 1) * chunks + 16 if repeats else 0
        assert all(worker.counters["repeats"] == expected for worker in network.ranks)


def test_values_that_change_their_magnitude_cost_a_repeat_and_no_bit():
    """The guess is what it was last time: too large, too small, or not finite at all."""
    ranks = [[], [], []]
    for scale in (1.0, 2.0**20, 2.0**-20, 0.0, math.nan, 1.0, 1.0):
        for r, calls in enumerate(ranks):
            x = (np.linspace(1, 1.9, 100) * scale * (r + 1)).astype(np.float32)
            calls.append(Call("float32", 3, x, np.zeros_like(x)))
    network = Network(ranks, slots=4, windows=[4] * 3, at_once=[False] * 3).run(limit=SECOND)
    check(ranks)
    # Two chunks; four wrong guesses, classify and exact for NaN, one wrong guess after it, a right one at last.
    assert all(worker.counters["repeats"] == 2 * (4 + 2 + 1 + 0) for worker in network.ranks)


# A job has one kind of narrow lanes, so its ranks can't mix two.
PAIRS = [(a, b) for a in numbers.DENSE for b in numbers.DENSE if a < b and not (numbers.wire(a) and numbers.wire(b))]


@pytest.mark.parametrize("spread", ["zeros", "ones", "threes", "wide", "nan"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("chunks", [1, 5])
def test_different_dtypes_are_an_error_on_every_rank(pair, spread, chunks):
    """Whatever the values are: no sum of a float's and an integer's lanes looks like a result, and nobody hangs."""
    ranks = []
    for dtype in (pair[0], pair[1], pair[0]):
        numel = chunks * numbers.per_chunk(dtype, PAYLOAD)
        fill = {"zeros": [0], "ones": [1], "threes": [3], "wide": [2**30, 1, 0], "nan": [math.nan, 1]}[spread]
        if dtype.startswith("int"):
            fill = [x for x in fill if x == x]
        x = np.resize(fill, numel).astype(numbers.element(dtype))
        ranks.append([Call(dtype, 1, x, np.zeros_like(x))])
    network = Network(ranks, slots=4, windows=[4] * 3, seed=1, start_spread=MILLISECOND).run(limit=10 * SECOND)
    assert [int(worker.failure["code"]) for worker in network.ranks] == [rules.ERROR_MIXED] * 3
    assert len({int(worker.failure["chunk"]) for worker in network.ranks}) == 1


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_different_dtype_after_equal_ones_is_an_error_on_every_rank(loss):
    """The exponents of the differing chunks were agreed ahead, with neither rank knowing better."""
    ranks = [[], []]
    for dtypes in (("float32", "float32"), ("float32", "float64")):
        for calls, dtype in zip(ranks, dtypes, strict=True):
            x = np.full(4 * numbers.per_chunk(dtype, PAYLOAD), 3, dtype)
            calls.append(Call(dtype, 1, x, np.zeros_like(x)))
    network = Network(ranks, slots=4, windows=[4, 4], weather=Weather(loss=loss), seed=3).run(limit=10 * SECOND)
    assert [int(worker.failure["code"]) for worker in network.ranks] == [rules.ERROR_MIXED] * 2
    assert all(worker.failure["chunk"] >= 4 for worker in network.ranks)
    assert all(set(calls[0].target.tolist()) <= {0, 6} for calls in ranks)
