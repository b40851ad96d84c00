"""Codecs over an aggregator: the same means as when all ranks sit in one process, and the same bits on every rank."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.agent import HostAgent
from host_agent.compression.by_bucket import BucketCompressor
from host_agent.compression.compressed import (
    ASK_EVERY,
    AgentReducer,
    Compressor,
    gather_by_sum,
    lanes_of,
    packets_of,
    route_of,
    values_of,
)
from switchml import codecs
from switchml.codecs import Payload, StepContext, exchange
from switchml.errors import ConfigError, RanksDisagree, UnsupportedTensor
from tests.support.launch import LocalAggregator, digest, good, join_all, leave_all, on_all

STEPS = 3


@pytest.fixture(scope="module")
def trio():
    running = LocalAggregator()
    agents = join_all(running.address, 3, job="compressed", wire="int16")
    for agent in agents:
        agent.dataplane = running.dataplane
    yield agents
    leave_all(agents)
    running.stop()


def gradient(step: int, rank: int, numel: int = 5000) -> np.ndarray:
    return np.random.default_rng((7, step, rank)).standard_normal(numel).astype(np.float32) * np.float32(1e-2)


def in_one_process(codec: str, memory: str, name: str) -> list[np.ndarray]:
    """The means of STEPS steps, all three ranks' exchanges driven side by side."""
    coder, keeper = codecs.parse(codec), codecs.parse_error_feedback(memory)
    states = [(coder.new_state(), keeper.new_state()) for _ in range(3)]
    return [
        codecs.together(
            [
                codecs.allreduce(
                    coder,
                    keeper,
                    *states[rank],
                    gradient(step, rank),
                    StepContext(name, step, rank=rank, world=3, shape=(5000,)),
                )
                for rank in range(3)
            ]
        )[0]
        for step in range(STEPS)
    ]


@pytest.mark.parametrize("codec", sorted(codecs.CODECS))
def test_every_codec_gives_the_mean_it_gives_in_one_process(trio, codec):
    memory = codecs.parse(codec).error_feedback
    expected = in_one_process(codec, memory, codec)
    for step in range(STEPS):
        results = good(
            on_all(
                trio,
                lambda agent, step=step: agent.allreduce(
                    gradient(step, agent.rank), "mean", codec=codec, memory=memory, name=codec
                ),
            )
        )
        assert len({digest([result]) for result in results}) == 1
        # Sums in fixed point differ in the last bits, and halves in 16-bit lanes in a few more.
        np.testing.assert_allclose(results[0], expected[step], atol=2e-3 * np.abs(expected[step]).max())


def test_sum_is_the_mean_times_the_ranks_and_shapes_stay(trio):
    arrays = [gradient(0, rank, 600).reshape(20, 30) for rank in range(3)]
    means = good(on_all(trio, lambda a: a.allreduce(arrays[a.rank], "mean", codec="none", name="m")))
    sums = good(on_all(trio, lambda a: a.allreduce(arrays[a.rank], codec="none", name="s")))
    assert sums[0].shape == (20, 30)
    np.testing.assert_allclose(sums[0], 3 * means[0], rtol=1e-6)


def test_ranks_that_differ_in_their_codec_are_told_so(trio):
    texts = ["topk:ratio=0.5", "topk:ratio=0.5", "topk:ratio=0.25"]
    results = on_all(trio, lambda a: a.allreduce(gradient(0, a.rank, 300), codec=texts[a.rank], memory="none"))
    assert [type(result) for result in results] == [RanksDisagree] * 3
    assert "ranks [2]" in str(results[0]) and "ranks [0, 1]" in str(results[2])


@pytest.mark.parametrize(("options", "error", "says"), [
    (dict(codec="zip"), ConfigError, "unknown codec 'zip'"), (dict(codec="topk:ratio=2"), ConfigError, "at most 1"),
    (dict(codec="topk", memory="elephant"), ConfigError, "unknown memory"),
    (dict(memory="residual"), ConfigError, "needs a codec"),
    (dict(codec="topk", async_op=True), ConfigError, "async_op"),
    (dict(wire="int8"), ConfigError, "this job has int16"),
])  # fmt: skip
def test_options_that_make_no_sense(trio, options, error, says):
    with pytest.raises(error, match=says):
        trio[0].allreduce(np.ones(10, np.float32), **options)


def test_codecs_take_float32_only(trio):
    with pytest.raises(UnsupportedTensor, match="float64"):
        trio[0].allreduce(np.ones(10), codec="fp16")


@given(st.sampled_from([np.int8, np.int16]), st.integers(1, 8), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_small_integers_add_up_in_int32_lanes(dtype, ranks, n, seed):
    most = np.iinfo(dtype).max // ranks
    values = np.random.default_rng(seed).integers(-most, most + 1, (ranks, n)).astype(dtype)
    lanes = sum((lanes_of(row).astype(np.int64) for row in values), np.zeros(lanes_of(values[0]).size, np.int64))
    assert n == 0 or np.abs(lanes).max() < 2**31
    np.testing.assert_array_equal(values_of(lanes.astype(np.int32), np.dtype(dtype), n), values.sum(axis=0))


@pytest.mark.parametrize("wire", ["auto", "int16", "int32"])
@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_half_precision_travels_in_two_bytes(wire, codec):
    """Where the aggregator adds it up: each sum is that of the rounded values, rounded once more."""
    x = [gradient(0, rank, 100_000) for rank in range(2)]
    running = LocalAggregator()
    agents = join_all(running.address, 2, job=f"{wire}-{codec}", wire=wire)
    reducers = [AgentReducer(agent) for agent in agents]
    means = good(on_all(range(2), lambda r: Compressor(reducers[r], codec, "none").allreduce("x", x[r])))
    leave_all(agents)
    running.stop()
    assert digest([means[0]]) == digest([means[1]])
    each = 4 if wire == "int32" else 2
    assert [reducer.bytes // 100_000 for reducer in reducers] == [each, each]  # and what the ranks agree by
    if wire == "auto":
        torch = pytest.importorskip("torch")
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[codec]
        rounded = [torch.from_numpy(each).to(dtype).double() for each in x]
        total = (rounded[0] + rounded[1]).to(dtype)
        np.testing.assert_array_equal(means[0], (total.float() / 2).numpy())


# Sparse vectors


def clustered(rank: int, numel: int = 400_000, rows: int = 40, width: int = 128) -> np.ndarray:
    """Rows that are far larger than all else, three quarters of them on every rank: an embedding's gradient."""
    x = np.random.default_rng(rank).standard_normal(numel).astype(np.float32) * np.float32(1e-3)
    common, own = np.random.default_rng(99), np.random.default_rng((1, rank))
    chosen = [*common.choice(numel // width, rows * 3 // 4, False), *own.choice(numel // width, rows // 4, False)]
    for row in chosen:
        x[row * width : (row + 1) * width] += 1.0
    return x


def sent_bytes(agents, codec: str, name: str) -> tuple[np.ndarray, int, int]:
    """A mean, bytes that reached the aggregator, and bytes that the reducers counted."""
    before = received(agents)
    reducers = [AgentReducer(agent) for agent in agents]
    means = good(
        on_all(
            range(len(agents)),
            lambda r: Compressor(reducers[r], codec, "none").allreduce(name, clustered(agents[r].rank)),
        )
    )
    assert len({digest([mean]) for mean in means}) == 1
    return means[0], received(agents) - before, sum(reducer.bytes for reducer in reducers)


def received(agents) -> int:
    """Bytes of packets, headers included, that the aggregator took from these agents."""
    counters = agents[0].dataplane.counters(agents[0]._session.info.job_id)
    return sum(rank["received_bytes"] for rank in counters.ranks)


def test_selected_elements_that_lie_together_are_streamed(trio, monkeypatch):
    codec = "topk:ratio=0.0128"
    streamed, arrived, sent = sent_bytes(trio, codec, "streamed")
    for agent in trio:
        monkeypatch.setattr(agent, "takes_sparse", False)
    gathered, arrived_gathered, sent_gathered = sent_bytes(trio, codec, "gathered")
    np.testing.assert_allclose(streamed, gathered, atol=1e-5)
    assert arrived < 0.7 * arrived_gathered and sent < 0.7 * sent_gathered


def test_gathered_places_of_others_are_left_out(trio, monkeypatch):
    """Codes that only make sense together: nothing can be streamed but the places that are not this rank's."""
    means, arrived, sent = sent_bytes(trio, "qsgd", "sparse places")
    for agent in trio:
        monkeypatch.setattr(agent, "takes_sparse", False)
    again, arrived_dense, sent_dense = sent_bytes(trio, "qsgd", "dense places")
    assert means.size == again.size and arrived < 0.5 * arrived_dense and sent < 0.4 * sent_dense


def test_the_way_that_sends_least():
    few, many = np.array([10, 10, 10]), np.array([1500] * 3)
    assert route_of(500_000, few, 400_000, takes_sparse=True) == "stream"
    assert route_of(500_000, few, 400_000, takes_sparse=False) == "gather"
    assert route_of(500_000, many, 400_000, takes_sparse=True) == "gather"
    assert route_of(5e7, many, 400_000, takes_sparse=True) == "dense"
    assert packets_of(np.array([0, 31, 255, 256, 4000])) == 3 and packets_of(np.array([], np.int64)) == 0


def test_payloads_of_known_size_are_not_asked_for_each_time(trio):
    """The way is asked for anew after some sums, and when the size is another one; clustered selections are streamed
    from then on."""
    steps = 2 * ASK_EVERY + 1

    def run(agent):
        reducer, calls = AgentReducer(agent), []
        add = reducer._add
        reducer._add = lambda values, *rest, **named: calls.append(values.size) or add(values, *rest, **named)
        compressor = Compressor(reducer, "topk:ratio=0.0128", "none")
        means = [compressor.allreduce("asked", clustered(agent.rank)) for _ in range(steps)]
        Compressor(reducer, "topk:ratio=0.01", "none").allreduce("asked", clustered(agent.rank))
        return digest(means), means, [size for size in calls if size == 2 * agent.world_size]

    results = good(on_all(trio, run))
    assert len({bits for bits, *_ in results}) == 1
    for _, means, asked in results:
        assert len(asked) == 3 + 1  # of both kinds of topk
        np.testing.assert_allclose(means[-1], means[0], atol=1e-5)


def test_a_tree_of_switches_says_that_it_takes_no_sparse_sums(monkeypatch):
    from switchml.aggregator.software import SoftwareDataplane

    monkeypatch.setattr(SoftwareDataplane, "dense_only", True)
    with LocalAggregator() as running:
        with pytest.raises(ConfigError, match="sums dense tensors only"):
            HostAgent.join(running.address, job="told", rank=0, world_size=1, sparse="on")
        agent = HostAgent.join(running.address, job="auto", rank=0, world_size=1, sparse="auto")
        assert not agent.takes_sparse
        np.testing.assert_array_equal(agent.allreduce(np.ones(5000, np.float32)), np.ones(5000))
        with pytest.raises(ConfigError, match="expected off or auto"):
            agent.allreduce(np.ones(5000, np.float32), sparse=True)
        agent.leave()


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_gathering_by_adding(bodies):
    """Two rounds: in the first, each rank's sums are those of its own vector, as the others' are not known yet."""
    payloads = [Payload(1, 9, np.frombuffer(body, np.uint8)) for body in bodies]
    world = len(payloads)
    told: list[list[np.ndarray]] = [[] for _ in range(world)]

    class Ask(Exception):
        pass

    def gather(rank: int, totals: list[np.ndarray]):
        answers = iter(totals)

        def add(vector):
            told[rank].append(vector)
            answer = next(answers, None)
            if answer is None:
                raise Ask
            return answer

        try:
            return gather_by_sum(payloads[rank], add, rank, world)
        except Ask:
            return None

    totals: list[np.ndarray] = []
    for _ in range(2):
        for each in told:
            each.clear()
        for rank in range(world):
            assert gather(rank, totals) is None
        totals.append(np.sum([each[-1] for each in told], axis=0, dtype=np.int32))
    for rank in range(world):
        assert [p.to_bytes() for p in gather(rank, totals)] == [p.to_bytes() for p in payloads]


class Alone:
    """A reducer of one rank."""

    rank, world, bytes = 0, 1, 0

    def wire_bytes(self, request):
        return 0

    def reduce(self, request, context):
        [answer] = exchange.reduce([request])
        return answer

    def later(self, request, context):
        return lambda: request.values


@pytest.mark.parametrize("codec", sorted(codecs.CODECS))
def test_a_state_that_was_saved_goes_on_as_if_nothing_had_been(codec):
    whole, first = Compressor(Alone(), codec), Compressor(Alone(), codec)
    expected = [whole.allreduce("w", gradient(step, 0), (50, 100)) for step in range(2 * STEPS)]
    for step in range(STEPS):
        first.allreduce("w", gradient(step, 0), (50, 100))
    saved = pickle.dumps(first.state_dict())
    first.allreduce("w", gradient(STEPS, 0), (50, 100))
    second = Compressor(Alone(), codec)
    second.load_state_dict(pickle.loads(saved))
    for step in range(STEPS, 2 * STEPS):
        np.testing.assert_array_equal(second.allreduce("w", gradient(step, 0), (50, 100)), expected[step])


@pytest.mark.parametrize("other", [("topk:ratio=0.5", None, 0), ("topk", "none", 0), ("topk", None, 1)])
def test_a_state_of_other_settings_is_refused(other):
    codec, memory, seed = other
    saved = Compressor(Alone(), codec, memory, seed=seed).state_dict()
    mine = Compressor(Alone(), "topk")
    with pytest.raises(ConfigError, match="state_dict: (codec|memory|seed) is .*; expected .*, as in this object"):
        mine.load_state_dict(saved)


def test_buckets_with_codecs_of_their_own_follow_the_learning_rate(trio):
    """The second bucket as by its codec alone; a learning rate that changes scales what its error feedback kept."""

    def means(agent: HostAgent, name: str, is_by_bucket: bool, rate: float) -> np.ndarray:
        reducer, codec, memory = AgentReducer(agent), "topk:ratio=0.1", "efsignsgd"
        one = BucketCompressor(reducer, ["fp16", codec], memory) if is_by_bucket else Compressor(reducer, codec, memory)
        one.allreduce(name, gradient(0, agent.rank))
        one.lr = rate
        return one.allreduce(name, gradient(1, agent.rank))

    by_bucket, alone, unchanged = (
        good(on_all(trio, lambda agent, case=case: means(agent, "bucket 1.0", *case)))[0]
        for case in ((True, 0.1), (False, 0.1), (True, 1.0))
    )
    np.testing.assert_array_equal(by_bucket, alone)
    assert not np.array_equal(by_bucket, unchanged)


def test_codecs_by_matrices_are_none_of_a_bucket(trio):
    with pytest.raises(ConfigError, match="powersgd.*can't be mixed"):
        BucketCompressor(AgentReducer(trio[0]), ["none", "powersgd"])
