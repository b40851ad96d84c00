"""A job goes on at other aggregators: whatever is lost on the way, every rank ends with the bits of an undisturbed run.

`Journey` is the network of rank_network.py with aggregators that die: ranks stop one by one, report their
rounds, and some hear where to go on while others don't, because the next aggregator has died meanwhile.
"""

import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.protocol import collectives, handover
from switchml.protocol.pool import Pool
from switchml.protocol.retransmission import MILLISECOND, PROBES, SECOND
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker
from tests.support import rank_network as together
from tests.support.examples import examples
from tests.support.rank_network import PAYLOAD, Call, Network, Weather

# -- what ranks agree on --


def slow_agreement(reports: list[list[int]]) -> list[int] | None:
    """The least of each slot, from whole numbers; None if two of them differ by more than one."""
    columns = list(zip(*reports, strict=True))
    if any(max(column) - min(column) > 1 for column in columns):
        return None
    return [min(column) for column in columns]


@given(st.data(), st.integers(1, 5), st.integers(1, 8), st.integers(0, 3))
@examples(200)
def test_agreement_is_the_least_round_of_each_slot(data, ranks, slots, most):
    """Bytes say as much as whole numbers: rounds of any length of job, and ranks a few rounds apart."""
    bases = [data.draw(st.integers(0, 1000)) for _ in range(slots)]
    reports = [[base + data.draw(st.integers(0, most)) for base in bases] for _ in range(ranks)]
    expected = slow_agreement(reports)
    sent = [bytes(number % 256 for number in report) for report in reports]
    if expected is None:
        with pytest.raises(ConfigError, match="more than one"):
            handover.agree(sent)
    else:
        assert list(handover.agree(sent)) == [number % 256 for number in expected]


def test_reports_of_different_lengths_are_not_of_one_job():
    with pytest.raises(ConfigError, match=r"\[2, 4\] slots"):
        handover.agree([bytes(2), bytes(4)])


def test_an_answer_that_does_not_fit_changes_nothing():
    worker, other = (Worker(rank=0, workers=1, slots=2, job_tag=job_tag, isn=0) for job_tag in (1, 2))
    before = worker.state.slots.tobytes()
    with pytest.raises(ConfigError, match="do not match"):
        worker.resume(other, bytes([5, 0]), 0)
    assert worker.state.slots.tobytes() == before and worker.identity["job_tag"] == 1


def test_a_repetition_is_resent_however_many_lower_rounds_wait():
    """Its peer may be at this very chunk, and send none of the lower ones before it has the result."""
    slots, chunk = 4 * PROBES, 3 * PROBES
    x = np.arange(slots * PAYLOAD // 4, dtype=np.int32)
    out = np.zeros_like(x)
    ranks = [Worker(rank=r, workers=2, slots=slots, job_tag=1, isn=0, payload_bytes=PAYLOAD) for r in range(2)]
    pool, answer = Pool(workers=2, slots=slots, payload_bytes=PAYLOAD, job_tag=1), None
    for rank, worker in enumerate(ranks):
        worker.start(x.ctypes.data, out.ctypes.data, len(x), "int32")
        answer = pool.receive(rank, worker.receive([], 0)[chunk]).packet
    ahead, other = ranks[0], Worker(rank=0, workers=2, slots=slots, job_tag=2, isn=0, payload_bytes=PAYLOAD)
    ahead.receive([answer], 0)
    agreed = handover.agree([handover.rounds_of(worker.state) for worker in ranks])
    ahead.resume(other, agreed, 0)
    assert len(ahead.receive([], 0)) == slots  # all are lost
    resent = [packet[2:6] for packet in ahead.receive([], ahead.deadline)]
    assert chunk.to_bytes(4, "big") in resent and len(resent) == PROBES + 1


def test_a_repetition_that_a_second_move_finds_needless_holds_nothing_back():
    x, out = np.arange(PAYLOAD // 8, dtype=np.int32), np.zeros(PAYLOAD // 8, np.int32)  # one chunk
    worker = Worker(rank=0, workers=2, slots=1, job_tag=1, isn=0, payload_bytes=PAYLOAD)
    pool = Pool(workers=2, slots=1, payload_bytes=PAYLOAD, job_tag=1)
    worker.start(x.ctypes.data, out.ctypes.data, len(x), "int32")
    (packet,) = worker.receive([], 0)
    pool.receive(1, packet)
    worker.receive([pool.receive(0, packet).packet], 0)
    for job_tag, agreed, base in ((2, b"\0", 0), (3, b"\1", 1)):  # its peer lacks the result; and has it
        worker.resume(Worker(rank=0, workers=2, slots=1, job_tag=job_tag, isn=0, payload_bytes=PAYLOAD), agreed, 0)
        assert worker.queues["base"] == [base]
    worker.start(x.ctypes.data, out.ctypes.data, len(x), "int32")
    assert len(worker.receive([], 0)) == 1


# -- journeys --


class Journey(Network):
    """`moves`: how often the aggregator dies, at drawn moments of the run."""

    def __init__(self, calls: list[list[Call]], moves: int, span: int, **options):
        super().__init__(calls, **options)
        self.job_tag, self.epoch, self.windows = together.TAG, 0, options["windows"]
        self.reports: dict[int, bytes] = {}
        self.halted: set[int] = set()
        self.repeated = 0
        for _ in range(moves):
            self.at(self.chooser.randint(0, span), "die", -1)

    def step(self) -> None:
        assert self.events, "nothing under way, and no timer is set"
        kind, rank = self.events[0][2:4]
        if kind not in ("die", "halt", "begin", "resume"):
            super().step()
            return
        self.now, _, kind, rank, data = together.heapq.heappop(self.events)
        getattr(self, kind)(rank, data)

    def die(self, rank: int, data: bytes) -> None:
        """The aggregator is gone; what it sent may still arrive until a rank notices."""
        self.pool, self.reports = None, {}
        self.epoch += 1
        for each in range(len(self.ranks)):
            when = self.now + self.chooser.choice([0, self.chooser.randint(0, MILLISECOND)])
            self.at(when, "halt", each, bytes([self.epoch]))

    def halt(self, rank: int, data: bytes) -> None:
        """A rank notices, and reports."""
        if data[0] != self.epoch:
            return
        self.halted.add(rank)
        self.reports[rank] = handover.rounds_of(self.ranks[rank].state)
        if len(self.reports) == len(self.ranks):
            self.begin()

    def begin(self) -> None:
        """All ranks are at the next aggregator."""
        n = len(self.ranks)
        self.job_tag, self.isn = self.job_tag + 1, self.chooser.randrange(2**32) // (2 * self.slots) * 2 * self.slots
        wire = max(0 if call.dtype == "raw" else together.numbers.wire(call.dtype) for c in self.calls for call in c)
        self.pool = Pool(workers=n, slots=self.slots, wire=wire, job_tag=self.job_tag, isn=self.isn, **self.sizes)
        agreed = handover.agree([self.reports[rank] for rank in range(n)])
        for rank in range(n):
            when = self.now + self.chooser.choice([0, self.chooser.randint(0, 2 * MILLISECOND)])
            self.at(when, "resume", rank, bytes([self.epoch]) + agreed)

    def resume(self, rank: int, data: bytes) -> None:
        if data[0] != self.epoch:
            return  # that aggregator has died before this rank heard of it
        worker = self.ranks[rank]
        other = Worker(
            rank=rank, workers=len(self.ranks), slots=self.slots, job_tag=self.job_tag, isn=self.isn,
            window=self.windows[rank], two_queues=len(worker.queues) > 1, **self.sizes,
        )  # fmt: skip
        worker.resume(other, data[1:], self.now)
        self.repeated += int((worker.state.slots["redo"] > 0).sum())
        self.base[rank] = np.minimum(self.base[rank], worker.queues["base"])
        self.first_sending[rank] = {}
        self.halted.discard(rank)
        self.woken_at[rank] = -1
        self.at(self.now, "wake", rank)

    def reach_aggregator(self, rank: int, data: bytes) -> None:
        if self.pool is None:
            return
        if int.from_bytes(data[6:8], "big") != self.job_tag:
            assert self.pool.receive(rank, data).counter == "refused_tag"  # of a former epoch: changes nothing
            return
        super().reach_aggregator(rank, data)

    def reach_rank(self, rank: int, datagrams: list[bytes]) -> None:
        if rank not in self.halted:
            super().reach_rank(rank, datagrams)

    def is_done(self, rank: int) -> bool:
        """Packets that others need are due as well."""
        idle = not self.ranks[rank].window["in_flight"] and rank not in self.halted
        return super().is_done(rank) and idle

    def check_end(self) -> None:
        for worker in self.ranks:
            assert worker.outstanding == 0 and not worker.state.slots["busy"].any()
            assert not worker.state.slots["redo"].any()
            assert (worker.queues["base"] == worker.queues["total"]).all()


def in_place(ranks: list[list[Call]]) -> list[list[Call]]:
    """The same calls, whose results overwrite what they are made of."""
    copies = [[(call, call.source.copy()) for call in calls] for calls in ranks]
    return [
        [Call(c.dtype, c.divisor, x, x, blocks=c.blocks, collective=c.collective, numel=c.numel) for c, x in column]
        for column in copies
    ]


def compared(
    ranks: list[list[Call]], moves: int, seed: int, slots: int, weather: Weather, large: int = 0, **options
) -> Journey:
    """Run calls in place through so many deaths, and undisturbed: the same bits on every rank."""
    chooser = random.Random(f"compared {seed}")
    windows = [chooser.randint(1, slots) for _ in ranks]
    calm = in_place(ranks)
    Network(calm, slots=slots, windows=[slots] * len(ranks), histories=False, **options).run(limit=10 * SECOND)
    moved = in_place(ranks)
    at_once = [chooser.random() < 0.5 for _ in ranks]
    span = chooser.choice([MILLISECOND // 4, MILLISECOND, 10 * MILLISECOND])
    journey = Journey(
        moved, moves, span, slots=slots, windows=windows, seed=seed, weather=weather, at_once=at_once, large=large,
        **options,
    )  # fmt: skip
    journey.run(limit=120 * SECOND)
    assert together.wide(moved) == together.wide(calm)
    for column in zip(*moved, strict=True):
        if column[0].collective is None:
            assert len({call.target.tobytes() for call in column}) == 1
    return journey


@given(
    st.integers(1, 5), st.sampled_from([1, 2, 4, 16]), st.integers(0, 2**32), st.integers(1, 4),
    st.sampled_from([0.0, 0.02, 0.2]), st.sampled_from([0.0, 0.2]), st.sampled_from([0, 512, 2048]),
)  # fmt: skip
@example(3, 4, 7, 2, 0.0, 0.0, 0)
@examples(100)
def test_every_rank_gets_the_same_bits(workers, slots, seed, moves, loss, late, large):
    compared(together.scenario(workers, seed), moves, seed, slots, Weather(loss, late / 10, late), large)


def test_packets_of_another_size_do_not_go_on():
    """An aggregator that can't take a job's large packets, or one that would have them cut anew."""
    options = {"rank": 0, "workers": 1, "slots": 2, "isn": 0, "payload_bytes": PAYLOAD}
    for had, gets in ((0, 512), (512, 0), (2048, 512)):
        worker, other = (Worker(job_tag=i, large_bytes=size, **options) for i, size in enumerate((had, gets)))
        before = worker.state.slots.tobytes()
        with pytest.raises(ConfigError, match="differ in size"):
            worker.resume(other, bytes(2), 0)
        assert worker.state.slots.tobytes() == before


def gathered(workers: int, kind: str, numel: int, seed: int) -> list[list[Call]]:
    """Two calls of a collective whose results only some ranks get, of integers."""
    generator = np.random.default_rng(seed)
    ranks: list[list[Call]] = [[] for _ in range(workers)]
    schemes = {
        "reduce_scatter": collectives.reduce_scatter(workers, 4 * numel, 0),
        "reduce": collectives.reduce(workers - 1, 0),
    }
    for _ in range(2):
        for calls in ranks:
            size = numel * workers if kind == "reduce_scatter" else numel
            x = generator.integers(-1000, 1000, size, np.int32)
            calls.append(Call("int32", 1, x, np.zeros(numel, np.int32), collective=schemes[kind], numel=numel))
    return ranks


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("large", [0, 1024])
@pytest.mark.parametrize("kind", ["reduce_scatter", "reduce"])
def test_results_that_only_the_lost_aggregator_had(kind, large):
    """A sum for one rank alone, which that rank lacks: no other has it to give, but all still have their parts."""
    repeated = 0
    for seed in range(12):
        ranks = gathered(3, kind, 900, seed)
        options = {"slots": 16, "windows": [16] * 3, "collectives": True, "large": large}
        journey = Journey(ranks, 2, MILLISECOND, seed=seed, weather=Weather(loss=0.1), **options)
        journey.run(limit=60 * SECOND)
        repeated += journey.repeated
        for number in range(2):
            total = sum(calls[number].source.astype(np.int64) for calls in ranks)
            if kind == "reduce":
                assert (ranks[2][number].target == total).all()
            else:
                assert (np.concatenate([calls[number].target for calls in ranks]) == total).all()
    assert repeated > 10


@pytest.mark.parametrize("seed", range(6))
def test_exact_sums_and_their_lists(seed):
    """Their last bit may depend on when a chunk began, so they are compared with the true sums."""
    generator = np.random.default_rng(seed)
    ranks: list[list[Call]] = [[] for _ in range(2 + seed % 2)]
    for calls in ranks:
        for numel in (3000, 500):
            x = generator.standard_normal(numel).astype(np.float32) * np.float32(2.0 ** (seed - 3))
            calls.append(Call("float32/exact", 1, x, np.zeros_like(x)))
    weather = Weather(loss=0.05)
    Journey(ranks, 3, MILLISECOND, slots=16, windows=[16] * len(ranks), seed=seed, weather=weather).run(20 * SECOND)
    for column in zip(*ranks, strict=True):
        true, got = sum(call.source.astype(np.float64) for call in column), column[0].target
        assert len({call.target.tobytes() for call in column}) == 1
        assert (abs(got - true) <= np.spacing(abs(got))).all()


@pytest.mark.parametrize("seed", range(6))
def test_sparse_streams(seed):
    generator = np.random.default_rng(seed)
    ranks = [[] for _ in range(3)]
    for calls in ranks:
        x = generator.standard_normal(6000).astype(np.float32)
        x.reshape(-1, 8)[generator.random(750) < 0.8] = 0
        calls.append(Call("float32", 1, x, np.zeros_like(x), blocks=Sparse(block=16)))
    compared(ranks, 3, seed, 8, Weather(loss=0.05))
