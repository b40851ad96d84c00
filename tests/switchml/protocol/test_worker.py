"""One rank by itself: the packets it sends, how far its window lets it go, and what it makes of junk.

When it sends packets again is in test_retransmission.py, what several ranks do together in test_rules_together.py.
"""

import math
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.protocol import worker_state as rules
from switchml.protocol.packet import CODE_UNKNOWN, RESULT
from switchml.protocol.pool import Pool
from switchml.protocol.worker import Worker
from tests.support import reference_fixedpoint as numbers
from tests.support.examples import examples
from tests.support.packets import V2Packet
from tests.support.reference_worker import ReferenceWorker
from tests.support.single_rank import LANES, NEVER, TAG, Rank, seqs

# -- what a packet contains --


def lock_step(workers, slots, window, payload, isn, wire, tensors, histories):
    """Ranks and references through an aggregator that answers at once; yields (packets, expected) by turn and rank.

    `tensors`: (dtype, divisor, one array a rank). Afterwards the results must agree too.
    """
    pool = Pool(workers=workers, slots=slots, payload_bytes=payload, wire=wire, job_tag=TAG, isn=isn)
    ranks = [
        Worker(rank=r, workers=workers, slots=slots, job_tag=TAG, isn=isn, window=window, payload_bytes=payload)
        for r in range(workers)
    ]
    plain = [ReferenceWorker(workers, slots, TAG, isn, window, payload) for _ in range(workers)]
    outputs, tasks, numbered, kept = [], [], [], []
    for position, (dtype, divisor, arrays) in enumerate(tensors):
        for r, values in enumerate(arrays):
            history = histories[position][r].copy() if histories else None
            out = np.zeros_like(values)
            source, target = values.ctypes.data, out.ctypes.data
            numbered.append((r, ranks[r].start(source, target, values.size, dtype, divisor, history)))
            tasks.append(plain[r].start(values.tolist(), dtype, divisor, history.tolist() if histories else None))
            outputs.append(out)
            kept.append(history)
    inbox = [[] for _ in ranks]
    for turn in range(10_000):
        replies = [[] for _ in ranks]
        busy = False
        for r, (rank, reference) in enumerate(zip(ranks, plain, strict=True)):
            packets = rank.receive(inbox[r], turn)
            yield packets, reference.receive(inbox[r])
            busy = busy or bool(packets)
            for data in packets:
                outcome = pool.receive(r, data)
                assert outcome.action in ("consume", "multicast")
                if outcome.action == "multicast":
                    for reply in replies:
                        reply.append(outcome.packet)
        inbox = replies
        if not busy and not any(inbox):
            break
    for out, task, (r, number), history in zip(outputs, tasks, numbered, kept, strict=True):
        record = ranks[r].state.tasks[number]
        assert record["state"] == rules.DONE and record["done"] == task.done == task.chunks
        assert record["misfits"] == task.misfits
        if out.dtype.kind == "f":
            assert np.array_equal(out, np.array(task.result, out.dtype), equal_nan=True)
        elif not task.misfits:
            assert out.tolist() == task.result
        assert history is None or history.tolist() == task.history
    assert [int(rank.counters["repeats"]) for rank in ranks] == [reference.repeats for reference in plain]
    assert all(rank.outstanding == 0 and rank.deadline == NEVER for rank in ranks)


@given(
    st.sampled_from([1, 2, 3, 5]), st.sampled_from([(1, 1), (2, 1), (4, 4), (8, 3)]), st.sampled_from([256, 256, 1024]),
    st.sampled_from([0, 2**31 - 16, 2**32 - 16]), st.integers(0, 2**32), st.sampled_from([0, 0, 1, 2]), st.booleans(),
)  # fmt: skip
@examples(80)
def test_the_packets_of_the_specification(workers, shape, payload, isn, seed, wire, remembers):
    """Byte for byte and in order, for any list of tensors, in every mode, through the wrap of the sequence numbers."""
    slots, window = shape
    chooser = random.Random(seed)
    tensors, histories = [], []
    for _ in range(chooser.randint(1, 4)):
        dtype = chooser.choice([dtype for dtype in numbers.DENSE if numbers.wire(dtype) in (0, wire)])
        numel = chooser.choice([1, chooser.randint(1, 40), chooser.randint(1, 6 * payload // 4)])
        tensors.append((dtype, chooser.choice([1, workers]), [tensor(dtype, numel, chooser) for _ in range(workers)]))
        code = numbers.canonical(dtype, chooser.choice([-128, -4, 0, 40]))
        histories.append([np.full(chooser.randint(1, slots), code, np.int8) for _ in range(workers)])
    for packets, expected in lock_step(workers, slots, window, payload, isn, wire, tensors, remembers and histories):
        assert packets == expected


def tensor(dtype: str, numel: int, chooser: random.Random) -> np.ndarray:
    """Values of several magnitudes, chunk by chunk, with now and then an infinity or NaN."""
    generator = np.random.default_rng(chooser.getrandbits(32))
    if dtype.startswith("int"):
        info = np.iinfo(dtype)
        return generator.integers(info.min // 8, info.max // 8, numel, dtype)
    values = generator.standard_normal(numel) * 2.0 ** generator.integers(-6, 7, -(-numel // 16)).repeat(16)[:numel]
    if chooser.random() < 0.3:
        values[chooser.randrange(numel)] = chooser.choice([math.inf, -math.inf, math.nan])
    if chooser.random() < 0.3:
        values[: numel // 2] = 0
    return values.astype(numbers.element(dtype))


def test_refuses_what_makes_no_sense():
    with pytest.raises(ConfigError, match="power of two"):
        Worker(rank=0, workers=2, slots=3, job_tag=0, isn=0)
    for window in (0, 5):
        with pytest.raises(ConfigError, match="window"):
            Worker(rank=0, workers=2, slots=4, job_tag=0, isn=0, window=window)


# -- window --


@given(st.integers(1, 16), st.lists(st.integers(0, 39), max_size=60))
def test_chunks_are_sent_while_the_window_and_the_slots_have_room(window, order):
    """Whatever order results come in, `window` rounds are in flight: slots go on by themselves, each with its chunks in
    their order. Each chunk is sent once."""
    rank, open_ = Rank(40, window=window, slots=16), set(range(40))
    sent = seqs(rank(0))
    for number in order:
        if number in sent and number in open_:
            open_.remove(number)
            sent += seqs(rank(0, rank.result(number)))
        started, flying = set(sent), [chunk for chunk in sent if chunk in open_]
        free = {chunk for chunk in set(range(40)) - started if not {chunk - 16, chunk - 32} & open_}
        assert len(flying) == rank.window["in_flight"] <= window
        assert len(flying) == window or not free
        assert rank.queue["base"] == min(open_, default=40)
        assert rank.queue["next"] == max(sent) + 1
        assert len(sent) == len(started)


def test_a_chunk_that_was_passed_over_starts_at_a_smaller_limit_too():
    """What is in flight may be waiting for ranks that wait for this chunk."""
    rank = Rank(12, window=4, slots=4)
    assert seqs(rank(0)) == [0, 1, 2, 3]
    assert [seqs(rank(0, rank.result(number))) for number in (1, 2, 3)] == [[5], [6], [7]]
    rank.window["size"] = rank.window["limit"] = 2  # the other queue has its half, say
    assert seqs(rank(0, rank.result(0))) == [4]
    assert seqs(rank(0, rank.result(5))) == []


# -- junk --


def snapshot(rank: Rank) -> tuple:
    """All that junk must not change: everything but the counters, and the times at which `timeouts` looks around."""
    scalars = {
        (record, name): rank.worker.state.scalars[record][name].tolist()
        for record in rules.SCALARS.names
        for name in rules.SCALARS[record].names
        if name not in ("received", "refused", "spurious", "waits", "backoff", "backed_off_at", "rto", "earliest")
    }
    state = rank.worker.state
    return (
        scalars,
        state.slots.tobytes(),
        state.tasks.tobytes(),
        state.packets.tobytes(),
        [x.tobytes() for x in rank.tensors],
    )


def junk(rank: Rank, expected: set[int], chooser: random.Random) -> bytes:
    """A datagram that is no result of an expected round, however much it looks like one."""
    good = bytearray(rank.result(chooser.choice(sorted(expected)), r=chooser.random() < 0.5))
    kind = chooser.randrange(6)
    if kind == 0:
        return chooser.randbytes(chooser.choice([0, 1, 9, 10, 42, 265, 266, 267, 1034, 1500]))
    if kind == 1:
        return bytes(good[: chooser.randrange(len(good))])
    if kind == 2:
        return bytes(good) + chooser.randbytes(chooser.choice([1, 768]))
    if kind == 3:
        good[6:8] = struct.pack(">H", TAG ^ 1 << chooser.randrange(16))
    elif kind == 4:  # no result, or one of another size
        good[0] = chooser.choice([x for x in range(256) if x & ~8 not in (0xC1, 0xD1, 0xE1)])
    else:  # stale, or of a round that has not been sent
        number = chooser.choice(sorted(expected)) + chooser.choice([-48, -32, -16, 16, 32, 2**31 - 16, 2**31])
        good[2:6] = struct.pack(">I", (rank.isn + number) % 2**32)
    return bytes(good)


@given(st.integers(0, 2**32))
@examples(30)
def test_junk_changes_nothing(seed):
    chooser = random.Random(seed)
    rank = Rank(40, isn=2**32 - 64)
    rank(0)
    expected = set(range(16))
    for number in chooser.sample(range(16), 10):
        expected -= {number}
        expected |= {(seq - rank.isn) % 2**32 for seq in seqs(rank(0, rank.result(number)))}
        before = snapshot(rank)
        assert rank(0, *(junk(rank, expected, chooser) for _ in range(10))) == []
        assert snapshot(rank) == before
    assert rank.counters["refused"] > 0


def test_what_comes_before_its_round_is_refused():
    """A slot that is idle waits for nothing: neither a result nor a wait of its next round, or of a later one."""
    rank = Rank(1)
    rank(0)
    rank(0, rank.result(0))
    refused, early = rank.counters["refused"], (1, 16, 17)
    before = snapshot(rank)
    for number in early:
        rank(0, rank.result(number), rank.result(number, r=True), rank.wait(number, 1))
    assert snapshot(rank) == before
    assert rank.counters["refused"] == refused + 3 * len(early)
    rank(0, rank.result(0), rank.result(0, r=True), rank.wait(0, 1))  # late, but of this rank's
    assert rank.counters["refused"] == refused + 3 * len(early)
    assert snapshot(rank) == before, "a result counts once"


# -- errors --


@pytest.mark.parametrize(
    ("flags", "error"), [(2, rules.ERROR_MIXED), (1, rules.ERROR_OVERFLOW), (3, rules.ERROR_MIXED)]
)
def test_flags_on_an_exact_round_are_an_error(flags, error):
    """The first time they may mean that ranks guessed differently, so the chunk is repeated."""
    rank = Rank(3)
    first = rank(0)
    again = rank(0, rank.result(1, flags=flags))
    assert seqs(again) == [1 + 16] and again[0][8:] == first[1][8:] and rank.failure["code"] == rules.OK
    rank(0, rank.result(1 + 16, flags=flags))
    assert (rank.failure["code"], rank.failure["chunk"]) == (error, 1)


def test_an_agreement_below_the_own_need_is_an_error():
    """No honest aggregator answers with less than the maximum, in which the rank's own need is."""
    rank = Rank(slots=1)
    values = np.ones(2 * LANES, np.float32)
    rank.worker.start(values.ctypes.data, values.ctypes.data, values.size, "float32")
    assert len(rank(0)) == 1
    result = V2Packet(RESULT, 0, TAG, 0, 0, -60, [0] * LANES).pack()
    again = rank(0, result)  # need 0 is what canonical -1 rounds up to: done
    assert again == [] and (rank.failure["code"], rank.failure["chunk"]) == (rules.ERROR_AHEAD, 1)


@pytest.mark.parametrize(("dtype", "used"), [("int32", 125), ("int64", 123)])
def test_an_integer_chunk_has_no_classes(dtype, used):
    """A float rank's NaN under an integer all-reduce: the repeat shows the float rank that the dtypes differ."""
    rank = Rank()
    values = np.arange(8, dtype=dtype)
    rank.worker.start(values.ctypes.data, values.ctypes.data, values.size, dtype)
    (first,) = rank(0)
    result = V2Packet(RESULT, 0, TAG, CODE_UNKNOWN, 2, CODE_UNKNOWN, [0] * LANES).pack()
    (again,) = rank(0, result)
    assert seqs([again]) == [16] and again[6:10] == first[6:10] and again[9] == used
