"""Sums that do not wait for every rank (docs/protocol.md, section 13): ranks and an aggregator in virtual time, over a
network that loses packets, with ranks that stop for a while.

Values are whole numbers, so that sums are exact: every result has to be that of the ranks that are in it, by their own
account, and of no other.
"""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchml.protocol.pool import Pool
from switchml.protocol.worker import Worker
from switchml.protocol.worker_state import DONE, ERROR_BEHIND, OK
from tests.support.examples import examples
from tests.support.reference_pool import ReferencePoolV2

TAG, LANES = 0xBEEF, 64
MS = 1_000_000
DEADLINE = 20 * MS


class Rank:
    """A worker with its calls, one after the other; `queue` holds what has come from the aggregator."""

    def __init__(self, rank: int, workers: int, slots: int, tensors: list[np.ndarray]):
        self.worker = Worker(
            rank=rank, workers=workers, slots=slots, job_tag=TAG, isn=0, payload_bytes=4 * LANES, deadline_ns=DEADLINE
        )
        self.tensors, self.results, self.memories, self.tasks = tensors, [], [], []
        self.history = [np.full(slots, -128, np.int8) for _ in range(2)]
        self.queue: list[bytes] = []
        self.starts_at = self.awake_at = 0

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.tensors) and not self.worker.outstanding

    @property
    def is_behind(self) -> bool:
        return self.worker.failure["code"] == ERROR_BEHIND

    def turn(self, now: int, pause: int) -> list[bytes]:
        """Whatever there is to send at `now`; the next call begins `pause` after the one before has ended."""
        if self.worker.outstanding:
            self.starts_at = now + pause
        elif len(self.results) < len(self.tensors) and now >= self.starts_at:
            values = self.tensors[len(self.results)]
            self.results.append(np.zeros_like(values))
            self.memories.append(np.full_like(values, np.nan))
            at = [array.ctypes.data for array in (values, self.results[-1], self.memories[-1])]
            history = self.history[len(self.results) % 2]
            self.tasks.append(self.worker.start(*at[:2], values.size, values.dtype.name, 1, history, memory=at[2]))
        packets = self.worker.receive(self.queue, now)
        self.queue.clear()
        return packets


def play(workers: int, slots: int, seed: int, loss: float, stops: float) -> list[Rank]:
    """The ranks after all their calls; those that were left behind, as they were then."""
    chooser = random.Random(seed)
    generator = np.random.default_rng(seed)
    sizes = [int(generator.integers(1, 3 * LANES * slots)) for _ in range(2)]
    types = [np.float32, np.float64 if seed % 3 == 0 else np.float32]
    ranks = []
    for rank in range(workers):
        tensors = [
            (generator.integers(-9, 10, sizes[i % 2]) * 2.0 ** generator.integers(0, 12)).astype(types[i % 2])
            for i in range(6)
        ]
        ranks.append(Rank(rank, workers, slots, tensors))
    pool = Pool(workers=workers, slots=slots, payload_bytes=4 * LANES, job_tag=TAG)
    plain = ReferencePoolV2(workers, slots, 4 * LANES, 0, TAG, 0)
    now, awake = 0, ranks
    while any(not rank.is_done and not rank.is_behind for rank in ranks):
        now += MS
        assert now < 100_000 * MS, "nothing moves any more"
        for rank in ranks:
            if chooser.random() < stops:
                rank.awake_at = now + chooser.randrange(60) * MS
        awake = [rank for rank in ranks if rank.awake_at <= now and not rank.is_behind]
        for rank in chooser.sample(awake, len(awake)):
            number = ranks.index(rank)
            for data in rank.turn(now, chooser.randrange(3) * MS):
                if chooser.random() < loss:
                    continue
                outcome = pool.receive(number, data)
                assert tuple(outcome) == tuple(plain.receive(number, data))
                row = int.from_bytes(data[2:6], "big") % (2 * slots)
                for other, receiver in enumerate(ranks):
                    is_for = pool.gets_result(row, other) if outcome.action == "multicast" else other == number
                    if outcome.packet and is_for and chooser.random() >= loss:
                        receiver.queue.append(outcome.packet)
    return ranks


@examples(40)
@given(st.integers(2, 5), st.sampled_from([4, 16]), st.integers(0, 2**32), st.sampled_from([0.0, 0.02]))
def test_every_result_is_that_of_the_ranks_in_it(workers, slots, seed, loss):
    ranks = play(workers, slots, seed, loss, stops=0.01)
    finished = [rank for rank in ranks if not rank.is_behind]
    assert all(rank.worker.failure["code"] in (OK, ERROR_BEHIND) for rank in ranks)
    for call in range(6):
        members = [rank for rank in ranks if len(rank.tasks) > call]
        tasks = [rank.worker.state.tasks[rank.tasks[call]] for rank in members]
        done = [rank for rank, task in zip(members, tasks, strict=True) if task["state"] == DONE]
        if len(done) < workers:
            continue  # what a rank is in that was left behind, nobody knows
        per_chunk, size = int(tasks[0]["per_chunk"]), ranks[0].tensors[call].size
        for first in range(0, size, per_chunk):
            part = slice(first, first + per_chunk)
            is_in = [not rank.memories[call][part].any() for rank in ranks]
            kept = [rank.tensors[call][part] * (not present) for rank, present in zip(ranks, is_in, strict=True)]
            assert all(np.array_equal(rank.memories[call][part], k) for rank, k in zip(ranks, kept, strict=True))
            # Zeros leave no trace in a memory: who is in it follows from the sum.
            total = sum(rank.tensors[call][part] for rank, present in zip(ranks, is_in, strict=True) if present)
            result = ranks[0].results[call][part]
            assert all(rank.results[call][part].tobytes() == result.tobytes() for rank in ranks)
            counts = range(1, workers + 1)
            assert any(np.allclose(result * (count / workers), total, rtol=1e-6) for count in counts)
    assert finished or all(rank.is_behind for rank in ranks)


def test_a_deadline_below_the_timeout_keeps_nothing_from_being_sent_again():
    """Expiries alone can't end a round that this rank is not in, as its contribution is lost."""
    rank = Rank(0, 2, 4, [np.ones(8, np.float32)])
    rank.worker.identity["deadline"] = MS
    kinds = {data[0] >> 4 for now in range(1, 2000) for data in rank.turn(now * MS, 0) if now > 1}
    assert kinds == {8, 11}


def test_infinities_that_are_in_a_sum_do_not_stay_in_the_memory():
    """Rank 1 is in the CLASSIFY round, and not in the one after that, which has the values."""
    values = [np.full(8, 2.0, np.float32), np.array([np.inf, 3, np.nan, 3, 3, 3, 3, 3], np.float32)]
    ranks, pool = (
        [Rank(rank, 2, 4, [x]) for rank, x in enumerate(values)],
        Pool(workers=2, slots=4, payload_bytes=4 * LANES, job_tag=TAG),
    )
    classified = 0
    for now in range(1, 400):
        for number, rank in enumerate(ranks):
            for data in rank.turn(now * MS, 0):
                if number == 1 and classified == 2 and now < 200:
                    continue  # rank 1 is cut off after the CLASSIFY round
                outcome = pool.receive(number, data)
                if outcome.action == "multicast":
                    classified += 1
                row = int.from_bytes(data[2:6], "big") % 8
                for other, receiver in enumerate(ranks):
                    is_for = pool.gets_result(row, other) if outcome.action == "multicast" else other == number
                    if outcome.packet and is_for:
                        receiver.queue.append(outcome.packet)
    results = [rank.results[0] for rank in ranks]
    assert results[0].tobytes() == results[1].tobytes()
    assert np.isinf(results[0][0]) and np.isnan(results[0][2]) and results[0][1] == 4.0
    assert ranks[1].memories[0].tolist() == [0, 3, 0, 3, 3, 3, 3, 3] and not ranks[0].memories[0].any()
