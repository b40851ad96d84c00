"""One rank by itself: the packets it sends, when it sends them again, and what it makes of junk.

Time is a number that the tests choose. What several ranks do together is in test_rules_together.py.
"""

import math
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.protocol import retransmission
from switchml.protocol import worker as rules
from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO, RESULT, V2Packet, WaitPacket
from switchml.protocol.pool import Pool
from switchml.protocol.retransmission import MICROSECOND, MILLISECOND, SECOND
from switchml.protocol.worker import Worker
from tests.support import reference_fixedpoint as numbers
from tests.support.reference_worker import ReferenceWorker

TAG = 0x5A17
NEVER = np.iinfo(np.int64).max
LANES = 64


class Rank:
    """A worker that all-reduces tensors of int32 chunks, and an aggregator's side to answer it by hand."""

    def __init__(
        self, chunks: int = 0, *, slots: int = 16, workers: int = 2, isn: int = 0, window: int | None = None, **options
    ):
        self.worker = Worker(
            rank=0, workers=workers, slots=slots, tag=TAG, isn=isn, window=window, payload_bytes=256, **options
        )
        self.isn, self.slots = isn, slots
        self.kept = []
        if chunks:
            self.start(chunks)

    def start(self, chunks: int) -> None:
        tensor = np.arange(chunks * (LANES // 2), dtype=np.int32)
        self.kept.append(tensor)
        self.worker.start(tensor.ctypes.data, tensor.ctypes.data, tensor.size, "int32")

    def __call__(self, now: int, *datagrams: bytes) -> list[bytes]:
        return self.worker.receive(list(datagrams), now)

    @property
    def me(self):
        return self.worker.me

    def result(
        self, number: int, *, r: bool = False, ahead: int = CODE_UNKNOWN, flags: int = 0, tag: int = TAG
    ) -> bytes:
        """The result of round `number // S` in slot `number % S`, which is chunk `number`'s if none was repeated."""
        return V2Packet(RESULT, (self.isn + number) % 2**32, tag, CODE_ZERO, flags, ahead, [0] * LANES, r=r).pack()

    def wait(self, number: int, *missing: int) -> bytes:
        return WaitPacket((self.isn + number) % 2**32, TAG, missing).pack()


def seqs(packets: list[bytes]) -> list[int]:
    return [struct.unpack(">I", data[2:6])[0] for data in packets]


def is_repeat(data: bytes) -> bool:
    return bool(data[0] & 8)


def steady(rtt: int = 100 * MICROSECOND, rounds: int = 200, **options) -> tuple[Rank, int]:
    """A rank whose estimates have settled at `rtt`, idle, and the time."""
    rank, now = Rank(**options), SECOND
    for number in range(rounds):
        rank.start(1)
        rank(now)
        now += rtt
        assert rank(now, rank.result(number)) == []
    return rank, now


# -- what a packet contains --


def lock_step(workers, slots, window, payload, isn, wire, tensors, histories):
    """Ranks and references through an aggregator that answers at once; yields (packets, expected) by turn and rank.

    `tensors`: (dtype, divisor, one array a rank). Afterwards the results must agree too.
    """
    pool = Pool(workers=workers, slots=slots, payload_bytes=payload, wire=wire, tag=TAG, isn=isn)
    ranks = [
        Worker(rank=r, workers=workers, slots=slots, tag=TAG, isn=isn, window=window, payload_bytes=payload)
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
    assert [int(rank.me["repeats"]) for rank in ranks] == [reference.repeats for reference in plain]
    assert all(rank.outstanding == 0 and rank.deadline == NEVER for rank in ranks)


@given(
    st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([(1, 1), (2, 1), (4, 4), (8, 3)]),
    st.sampled_from([256, 256, 1024]),
    st.sampled_from([0, 2**31 - 16, 2**32 - 16]),
    st.integers(0, 2**32),
    st.sampled_from([0, 0, 1, 2]),
    st.booleans(),
)
@settings(max_examples=80)
def test_the_packets_of_the_specification(workers, shape, payload, isn, seed, wire, remembers):
    """Byte for byte and in order, for any list of tensors, in every mode, through the wrap of the sequence numbers."""
    slots, window = shape
    chooser = random.Random(seed)
    tensors, histories = [], []
    for _ in range(chooser.randint(1, 4)):
        dtype = chooser.choice([dtype for dtype in numbers.LANES if numbers.wire(dtype) in (0, wire)])
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
        Worker(rank=0, workers=2, slots=3, tag=0, isn=0)
    for window in (0, 5):
        with pytest.raises(ConfigError, match="window"):
            Worker(rank=0, workers=2, slots=4, tag=0, isn=0, window=window)


def test_rounds_go_on_from_tensor_to_tensor():
    """Chunk g is in slot g mod S whatever tensor it is of, so the versions alternate without a gap."""
    rank = Rank(slots=4, isn=2**32 - 8)
    sent = []
    for chunks in (3, 1, 6):
        rank.start(chunks)
        packets = rank(0)
        while packets:
            sent += seqs(packets)
            packets = rank(0, *(rank.result((seq - rank.isn) % 2**32) for seq in seqs(packets)))
    assert sent == [(2**32 - 8 + g) % 2**32 for g in range(10)]
    assert rank.worker.outstanding == 0 and rank.me["completed"] == 3


# -- window --


@given(st.integers(1, 16), st.lists(st.integers(0, 39), max_size=60))
def test_chunks_are_sent_while_the_window_and_the_slots_have_room(window, order):
    """Whatever order results come in: `window` rounds are in flight unless the lowest open chunk holds the slots; each
    chunk is sent once."""
    rank, open_ = Rank(40, window=window, slots=16), set(range(40))
    sent = seqs(rank(0))
    for number in order:
        if number in sent and number in open_:
            open_.remove(number)
            sent += seqs(rank(0, rank.result(number)))
        base = min(open_, default=40)
        next_ = min(40, base + 16, 40 - len(open_) + window)
        assert (rank.me["base"], rank.me["next"]) == (base, next_)
        assert rank.me["in_flight"] == next_ - (40 - len(open_))
        assert sorted(sent) == list(range(rank.me["next"]))


# -- junk --


def snapshot(rank: Rank) -> tuple:
    """All that junk must not change: everything but the counters, and the times at which `timeouts` looks around."""
    me = {
        name: rank.me[name].tolist()
        for name in rules.ME.names
        if name not in ("received", "refused", "spurious", "waits", "caution", "cautioned_at", "rto", "earliest")
    }
    state = rank.worker.state
    return me, state.slots.tobytes(), state.tasks.tobytes(), state.packets.tobytes(), [x.tobytes() for x in rank.kept]


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
@settings(max_examples=30)
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
    assert rank.me["refused"] > 0


def test_a_result_counts_once():
    rank = Rank(2)
    rank(0)
    rank(0, rank.result(0))
    before = snapshot(rank)
    rank(0, rank.result(0), rank.result(0, r=True))
    assert snapshot(rank) == before and rank.me["base"] == 1


# -- errors --


@pytest.mark.parametrize(
    ("flags", "error"), [(2, rules.ERROR_MIXED), (1, rules.ERROR_OVERFLOW), (3, rules.ERROR_MIXED)]
)
def test_flags_on_an_exact_round_are_an_error(flags, error):
    """The first time they may mean that ranks guessed differently, so the chunk is repeated."""
    rank = Rank(3)
    first = rank(0)
    again = rank(0, rank.result(1, flags=flags))
    assert seqs(again) == [1 + 16] and again[0][8:] == first[1][8:] and rank.me["error"] == rules.OK
    rank(0, rank.result(1 + 16, flags=flags))
    assert (rank.me["error"], rank.me["error_chunk"]) == (error, 1)


def test_an_agreement_below_the_own_need_is_an_error():
    """No honest aggregator answers with less than the maximum, in which the rank's own need is."""
    rank = Rank(slots=1)
    values = np.ones(2 * LANES, np.float32)
    rank.worker.start(values.ctypes.data, values.ctypes.data, values.size, "float32")
    assert len(rank(0)) == 1
    result = V2Packet(RESULT, 0, TAG, 0, 0, -60, [0] * LANES).pack()
    again = rank(0, result)  # need 0 is what canonical -1 rounds up to: done
    assert again == [] and (rank.me["error"], rank.me["error_chunk"]) == (rules.ERROR_AHEAD, 1)


@pytest.mark.parametrize(("dtype", "used"), [("int32", 125), ("int64", 123)])
def test_an_integer_chunk_has_no_classes(dtype, used):
    """A float rank's NaN under an integer all-reduce: the repeat shows the float rank that the dtypes differ."""
    rank = Rank()
    values = np.arange(8, dtype=dtype)
    rank.worker.start(values.ctypes.data, values.ctypes.data, values.size, dtype)
    (first,) = rank(0)
    result = V2Packet(RESULT, 0, TAG, CODE_UNKNOWN, 2, CODE_UNKNOWN, [0] * LANES).pack()
    (again,) = rank(0, result)
    assert seqs([again]) == [16] and again[6:] == first[6:] and again[9] == used


# -- retransmission --


def test_nothing_is_due_while_nothing_is_under_way():
    rank = Rank()
    assert rank(0) == [] and rank.worker.deadline == NEVER
    rank.start(1)
    rank(0)
    assert rank.worker.deadline < NEVER
    rank(MILLISECOND, rank.result(0))
    assert rank(MILLISECOND) == [] and rank.worker.deadline == NEVER


def test_a_packet_is_sent_again_when_its_timer_ends_and_not_before():
    rank = Rank(3)
    packets = rank(5)
    assert rank.worker.deadline == 5 + rules.INITIAL_RTO
    assert rank(rank.worker.deadline - 1) == []
    again = rank(rank.worker.deadline)
    assert [data[1:] for data in again] == [data[1:] for data in packets]
    assert [data[0] for data in again] == [data[0] | 8 for data in packets]
    assert rank.me["retransmitted"] == 3 and rank.me["sent"] == 6


def test_a_repeated_chunk_is_a_new_packet():
    """A retransmitted round leaves no R flag on the next packet of its slot."""
    rank = Rank(2, slots=1)
    rank(0)
    assert is_repeat(rank(rules.INITIAL_RTO)[0])
    (packet,) = rank(rules.INITIAL_RTO, rank.result(0))
    assert seqs([packet]) == [1] and not is_repeat(packet)
    (packet,) = rank(rules.INITIAL_RTO, rank.result(1, flags=2))
    assert seqs([packet]) == [2] and not is_repeat(packet)


def test_only_the_lowest_eight_are_resent_by_the_clock():
    rank = Rank(16)
    rank(0)
    now = rank.worker.deadline
    assert seqs(rank(now)) == list(range(8))
    # Others become the lowest: their timers ended while nobody looked, the next look finds them.
    assert seqs(rank(now + 1, rank.result(0), rank.result(5))) == [8, 9]
    assert seqs(rank(rank.worker.deadline)) == [1, 2, 3, 4, 6, 7]
    # From the third time on that the lowest has no answer, half as many.
    assert [seqs(packets) for packets in asked(rank, 4)] == [[1, 2, 3, 4], [1, 2], [1], [1]]


def asked(rank: Rank, times: int) -> list[list[bytes]]:
    """What the clock alone makes a rank send, so many times."""
    sent = []
    while len(sent) < times:
        packets = rank(rank.worker.deadline)
        sent += [packets] if packets else []
    return sent


def test_patience_grows_while_nothing_moves_and_ends_at_200_ms():
    rank, start = steady()
    rank.start(1)
    rank(start)
    now, pauses = start, []
    while now < start + 3 * SECOND:
        previous, now = now, rank.worker.deadline
        assert rank(now - 1) == [] and len(rank(now)) == 1
        pauses.append(now - previous)
    assert pauses[0] == rank.me["rto"] == MILLISECOND
    assert pauses == sorted(pauses) and pauses[-1] == rules.LONGEST_PROBE == 200 * MILLISECOND
    assert all(later <= max(MILLISECOND, 1.3 * pause) for pause, later in zip(pauses, pauses[1:], strict=False))
    assert len(pauses) < 40
    rank.start(1)
    rank(now, rank.result(200))
    (packet,) = rank(now + rank.me["rto"])
    assert is_repeat(packet), "once something has moved, patience is the RTO again"


def test_the_first_timer_after_a_pause_is_the_rto():
    """A rank that computed for seconds between two tensors has not been waiting for the network."""
    rank, now = steady()
    rank.start(1)
    now += 5 * SECOND
    rank(now)
    assert rank.worker.deadline == now + rank.me["rto"]
    rank(rank.worker.deadline)
    assert rank.worker.deadline == now + 2 * rank.me["rto"]


def test_a_wait_packet_doubles_the_patience():
    rank, now = steady(workers=300 // 2)
    rank.start(1)
    rank(now)
    assert len(rank(now + rank.me["rto"])) == 1
    now += rank.me["rto"] + 10
    assert rank(now, rank.wait(200, 3, 149)) == []
    assert rank.worker.missing_ranks() == (3, 149) and rank.me["waits"] == 1
    assert rank.worker.deadline == now + 2 * rank.me["rto"]
    assert rank(now + 2 * rank.me["rto"] - 1) == [] and len(rank(now + 2 * rank.me["rto"])) == 1


def test_a_wait_packet_for_another_round_is_ignored():
    rank, now = steady()
    rank.start(1)
    rank(now)
    deadline = rank.worker.deadline
    for number in (199, 200 - 16, 200 + 16, 201):
        rank(now, rank.wait(number, 1))
    assert rank.me["waits"] == 0 and rank.worker.missing_ranks() == ()
    assert rank.worker.deadline == deadline


def test_a_lost_round_is_resent_when_a_later_one_is_done():
    """RACK: long before its timer ends, once the answer to a packet sent 200 us later is here, whatever its place."""
    rank = Rank(8)
    rank(0)
    rank.start(8)
    rank(500 * MICROSECOND)
    assert rank(600 * MICROSECOND, *(rank.result(n) for n in (0, 2, 3, 4, 6, 7))) == []
    assert seqs(rank(620 * MICROSECOND, rank.result(12))) == [1, 5]
    assert rank.me["retransmitted"] == 2


def test_a_round_sent_shortly_before_is_not_taken_for_lost():
    rank = Rank(1)
    rank(0)
    rank.start(1)
    rank(rules.LEAST_REORDERING)
    assert rank(rules.LEAST_REORDERING + 1, rank.result(1)) == []
    rank.start(1)
    rank(rules.LEAST_REORDERING + 1)
    assert seqs(rank(rules.LEAST_REORDERING + 2, rank.result(2))) == [0]


def test_where_nothing_is_lost_a_round_is_asked_for_only_to_learn_who_is_missing():
    """Through shared memory: no resending by order, and a round is asked for five times a second."""
    rank = Rank(8, lossless=True)
    rank(0)
    rank.start(8)
    rank(500 * MICROSECOND)
    assert rank(600 * MICROSECOND, *(rank.result(n) for n in (0, 2, 12))) == []
    questions = []
    while rank.worker.deadline < SECOND:
        questions += seqs(rank(rank.worker.deadline))
    assert questions.count(1) == 4 and len(questions) == 8 + 6 + 4 + 2


def test_the_margin_doubles_with_each_resend_three_times():
    rank = Rank(1, slots=128)
    rank.me["caution"] = retransmission.MOST_CAUTION  # so that no timer gets in the way
    now, sent_at, gaps = 0, 0, []
    rank(now)
    for number in range(1, 128):
        now += 50 * MICROSECOND
        rank.start(1)
        assert seqs(rank(now)) == [number]
        if rank(now, rank.result(number)):
            gaps.append(now - sent_at)
            sent_at = now
    margins = [rules.LEAST_REORDERING << doublings for doublings in (0, 1, 2, 3, 3)]
    assert gaps[:5] == [margin + 50 * MICROSECOND for margin in margins]


def test_results_of_retransmitted_rounds_say_nothing_about_order_or_rtt():
    rank = Rank(1)
    rank(0)
    rank.start(1)
    rank(MILLISECOND)
    now = rules.INITIAL_RTO
    assert seqs(rank(now)) == [0]
    now += 2 * MILLISECOND
    assert seqs(rank(now)) == [1]
    before = int(rank.me["rtt_samples"])
    assert rank(now + MILLISECOND, rank.result(1)) == []
    assert rank.me["rtt_samples"] == before


def test_a_round_that_was_waited_for_is_no_sample():
    rank, now = steady()
    before = int(rank.me["rtt_samples"])
    rank.start(1)
    rank(now)
    rank(now + 1, rank.wait(200, 1))
    rank(now + 2, rank.result(200))
    assert rank.me["rtt_samples"] == before


def test_results_restart_the_clock():
    """What queues behind others is not lost as long as those come: however long it takes, nobody asks."""
    rank, now = steady(slots=128)
    rank.start(100)
    assert len(rank(now)) == 100
    for number in range(200, 300):
        now += rank.me["rto"] - 1
        assert rank(now, rank.result(number)) == []
    assert rank.me["retransmitted"] == 0 and rank.me["rto"] == MILLISECOND


def silent(rank: Rank, now: int, first: int, pause: int, wait: bool = False) -> int:
    """64 rounds of which the second half comes `pause` later; how many were asked for. With `wait`, one comes too."""
    before = int(rank.me["retransmitted"])
    rank.start(64)
    rank(now)
    now += 100 * MICROSECOND
    rank(now, *(rank.result(n) for n in range(first, first + 32)))
    while rank.worker.deadline < now + pause:
        rank(rank.worker.deadline)
        if wait:
            rank(rank.worker.deadline, rank.wait(first + 32, 1))
    rank(now + pause, *(rank.result(n) for n in range(first + 32, first + 64)))
    return int(rank.me["retransmitted"]) - before


def test_a_pause_that_ends_of_its_own_accord_is_learned():
    """As behind a token bucket, where results come train by train. It is forgotten again where nothing pauses."""
    rank, now = steady(slots=128)
    assert silent(rank, now, 200, 30 * MILLISECOND) > 8
    assert rank.me["rto"] == 45 * MILLISECOND
    assert silent(rank, now + SECOND, 264, 30 * MILLISECOND) == 0
    number, now = 328, now + 2 * SECOND
    rank.start(128)
    for _ in range(4000):
        rank(now)
        now += 500 * MICROSECOND
        rank(now, rank.result(number))
        number += 1
        rank.start(1)
    assert rank.me["rto"] < 2 * MILLISECOND


def test_a_pause_that_a_peer_makes_is_not():
    rank, now = steady(slots=128)
    assert silent(rank, now, 200, 30 * MILLISECOND, wait=True) > 0
    assert rank.me["rto"] == MILLISECOND


def test_after_a_wait_the_first_result_restarts_the_clock():
    """The peer is there again: the rest is on its way, and need not be asked for round by round."""
    rank, now = steady(slots=64)
    rank.start(40)
    rank(now)
    asked_at = rank.worker.deadline
    assert len(rank(asked_at)) == 8
    rank(asked_at + 1, rank.wait(200, 1))
    for number in range(200, 240):
        asked_at += 20 * MICROSECOND
        assert rank(asked_at, rank.result(number)) == []


def test_as_many_rounds_are_taken_for_lost_as_results_come_in():
    """Most of a window found a queue full: to send it again at once would fill that again."""
    rank = Rank(512, slots=512)
    rank.me["limit"] = 512
    assert len(rank(0)) == 512
    rank.start(8)
    rank.me["limit"] = 1024
    now = rank.worker.deadline - 1
    for number in range(8):  # the first slots take the new chunks, long after the others were sent
        rank(now - 100, rank.result(number))
    assert len(rank(now, rank.result(512))) == rules.LEAST_IN_FLIGHT
    assert [len(rank(now, rank.result(512 + n))) for n in range(1, 4)] == [1, 1, 1]


def test_the_margin_follows_the_reordering_seen():
    """A round that came by itself, overtaken by 190 us, makes it 285; what comes in order brings it down again."""
    rank = Rank(1, slots=64)
    rank(0)
    rank.start(1)
    rank(190 * MICROSECOND)
    assert rank(200 * MICROSECOND, rank.result(1)) == [] and rank(201 * MICROSECOND, rank.result(0)) == []
    now = MILLISECOND
    rank.start(1)
    rank(now)
    rank.start(1)
    rank(now + 284 * MICROSECOND)
    assert rank(now + 285 * MICROSECOND, rank.result(3)) == []
    rank.start(1)
    rank(now + 286 * MICROSECOND)
    assert seqs(rank(now + 287 * MICROSECOND, rank.result(4))) == [2]


# -- estimates --


def test_the_rto_follows_the_rtt():
    rank, _ = steady(rtt=100 * MICROSECOND)
    assert abs(rank.me["srtt"] - 100 * MICROSECOND) < 5 * MICROSECOND and rank.me["rto"] == retransmission.MINIMUM_RTO
    rank, _ = steady(rtt=4 * MILLISECOND, rounds=400)
    assert abs(rank.me["srtt"] - 4 * MILLISECOND) < MILLISECOND // 4
    assert 7 * MILLISECOND < rank.me["rto"] < 10 * MILLISECOND


def test_the_rto_is_known_after_the_first_sample():
    rank = Rank(1)
    rank(0)
    rank(MILLISECOND, rank.result(0))
    assert (rank.me["srtt"], rank.me["rttvar"]) == (MILLISECOND, MILLISECOND // 2)
    assert rank.me["rto"] == 3 * MILLISECOND


def test_only_the_least_of_eight_round_trips_counts():
    """A peer's recovery from a loss makes an RTT long, and must not make the next recovery longer."""
    rank, now = steady()
    before = int(rank.me["rto"])
    for number in range(200, 240):
        rank.start(1)
        rank(now)
        now += 100 * MICROSECOND if number % 8 == 0 else 900 * MICROSECOND
        rank(now, rank.result(number))
    assert rank.me["rto"] == before


def test_a_time_longer_than_the_rto_is_no_sample():
    rank, now = steady()
    before = int(rank.me["rtt_samples"])
    rank.start(1)
    rank(now)
    rank.worker.receive([rank.result(200)], now + rank.me["rto"] + 1)
    assert rank.me["rtt_samples"] == before


def spurious_answer(rank: Rank, number: int, now: int) -> int:
    """Chunk `number` is asked for again although its result was on the way: both answers come; returns the time."""
    rank.start(1)
    rank(now)
    now = rank.worker.deadline
    assert len(rank(now)) == 1
    rank(now + 1, rank.result(number))
    rank(now + 2, rank.result(number, r=True))
    return now + 2


def test_spurious_retransmissions_raise_caution_and_it_decays():
    rank, now = steady()
    assert rank.me["caution"] == rules.LEAST_CAUTION
    number, cautions = 200, []
    for _ in range(12):
        now = spurious_answer(rank, number, now)
        number += 1
        cautions.append(int(rank.me["caution"]))
    assert cautions[:3] == [24, 36, 54] and cautions[-1] == retransmission.MOST_CAUTION == 32 * rules.LEAST_CAUTION
    assert rank.me["spurious"] == 12 and rank.me["rto"] > 10 * MILLISECOND
    for _ in range(8 * 40):
        rank.start(1)
        rank(now)
        now += 100 * MICROSECOND
        rank(now, rank.result(number))
        number += 1
    assert rank.me["caution"] == rules.LEAST_CAUTION and rank.me["rto"] == retransmission.MINIMUM_RTO


def test_caution_grows_once_an_rto_however_many_answers_come():
    rank, now = steady()
    rank.start(8)
    rank(now)
    now = rank.worker.deadline
    assert len(rank(now)) == 8
    rank(now + 1, *(rank.result(n) for n in range(200, 208)))
    rank(now + 2, *(rank.result(n, r=True) for n in range(200, 208)))
    assert rank.me["spurious"] == 8 and rank.me["caution"] == 24
    rank(now + 3, rank.result(200, r=True))
    assert rank.me["caution"] == 24


def test_an_rtt_beyond_the_rto_is_learned_through_spurious_answers():
    """The path became 20 times slower: needless retransmissions stop once caution has made up for it."""
    rank, now = steady()
    number, resent = 200, []
    for _ in range(300):
        rank.start(1)
        rank(now)
        arrival, asked = now + 2 * MILLISECOND, False
        while rank.worker.deadline < arrival:
            asked |= bool(rank(rank.worker.deadline))
        rank(arrival, rank.result(number))
        if asked:
            rank(arrival + 1, rank.result(number, r=True))
        resent.append(asked)
        now = arrival + 1
        number += 1
    assert all(resent[:2]) and not any(resent[-100:])
    assert rank.me["srtt"] > MILLISECOND
