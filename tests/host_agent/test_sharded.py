"""A job over two aggregators: the same bits as over one, and the loss of one of them ends it everywhere, by name."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.agent import HostAgent
from host_agent.sharded import MIN_SHARD, ShardedAgent, parts_of, split_addresses
from switchml.control import client
from switchml.errors import (
    AggregatorLost,
    CollectiveTimeout,
    ConfigError,
    JobError,
    JoinError,
    PeerLost,
    SumOverflow,
    UnsupportedTensor,
)
from tests.support.agents import gradients, reduce_all
from tests.support.launch import (
    DEADLINE_S,
    Aggregator,
    LocalAggregator,
    Rank,
    contribution,
    digest,
    good,
    join_all,
    leave_all,
    on_all,
    total,
    until,
)
from tests.support.started import started

DTYPES = ("float32", "float64", "float16", "int32", "int64")
LARGE = 300_007
"""Elements that are split, whatever the dtype."""


@pytest.fixture(scope="module")
def aggregators():
    running = [LocalAggregator() for _ in range(2)]
    yield running
    for aggregator in running:
        aggregator.stop()


@pytest.fixture(scope="module")
def addresses(aggregators) -> str:
    return ",".join(aggregator.address for aggregator in aggregators)


@pytest.fixture
def join(addresses):
    """`join(world_size, **options)`: the agents of a job of its own; they leave after the test."""
    number = itertools.count()

    def begin(world_size: int, at: str = addresses, **options) -> list[HostAgent]:
        return join_all(at, world_size, **{"job": f"shards {next(number)}"} | options)

    yield from started(begin, leave_all)


# Cutting


@given(st.integers(1, 10**6), st.sampled_from([16, 64, 85, 256, 1024]), st.integers(2, 7))
def test_parts(numel, per_chunk, shards):
    """They cover the tensor, meet where chunks do, and differ by one chunk at most."""
    parts = parts_of(numel, per_chunk, shards)
    chunks = -(-numel // per_chunk)
    assert (parts == []) == (chunks < MIN_SHARD * shards)
    if parts:
        assert len(parts) == shards and parts[0][0] == 0
        for (first, count), (after, _) in zip(parts, [*parts[1:], (numel, 0)], strict=True):
            assert first % per_chunk == 0 and first + count == after
        sizes = [-(-count // per_chunk) for _, count in parts]
        assert max(sizes) - min(sizes) <= 1 and sum(sizes) == chunks


def test_lists_of_addresses():
    assert split_addresses("a:1, b:2,c:3") == ["a:1", "b:2", "c:3"]
    for wrong in (",", "a:1,", "a:1,,b:2"):
        with pytest.raises(ConfigError, match="expected host:port,host:port"):
            split_addresses(wrong)


# Results


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("wire", ["int32", "int8"])
@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_the_same_bits_as_with_one_aggregator(join, aggregators, transport, wire):
    digests = set()
    for at in (",".join(a.address for a in aggregators), aggregators[0].address):
        agents = join(3, at, transport=transport, wire=wire)
        assert isinstance(agents[0], ShardedAgent) == ("," in at)
        assert all((agent.transport, agent.wire) == (transport, wire) for agent in agents)
        results = [[] for _ in agents]
        for k, dtype in enumerate(DTYPES):
            for numel in (1, 1000, LARGE):
                arrays = [gradients(k, rank, numel, dtype) for rank in range(3)]
                if dtype.startswith("float"):
                    arrays[1][numel * 2 // 3] = np.inf
                for op in ("sum", "mean"):
                    for mine, result in zip(results, reduce_all(agents, arrays, op=op), strict=True):
                        mine.append(result)
        digests |= {digest(of_rank) for of_rank in results}
    assert len(digests) == 1


def test_work_is_shared(join):
    """Half of a large tensor each; small tensors in turn."""
    agents = join(2, transport="udp")
    reduce_all(agents, [contribution(1, rank, 256 * 1000) for rank in range(2)])
    for agent in agents:
        assert [one.stats()["bytes"] for one in agent._agents] == [4 * 256 * 500] * 2
    for k in range(10):
        reduce_all(agents, [contribution(k, rank, 10) for rank in range(2)])
    for agent in agents:
        assert [one.stats()["calls"] for one in agent._agents] == [1 + 5] * 2
    stats = agents[0].stats()
    assert stats["calls"] == 11 and stats["bytes"] == 4 * (256 * 1000 + 100) and stats["transport"] == "udp"
    assert stats["received"] >= 1000 + 10 + stats["repeats"] and stats["goodput_bps"] > 0 and stats["refused"] == 0


def test_many_calls_of_all_sizes(join):
    agents = join(3)
    sizes = [0, 1, 500, LARGE // 3, 7, 20_000]

    def work(agent):
        handles = []
        for k in range(120):
            mine = contribution(k, agent.rank, sizes[k % len(sizes)])
            handles.append(agent.allreduce(mine, async_op=True))
        return [handle.wait(DEADLINE_S) for handle in handles]

    results = good(on_all(agents, work))
    for k in range(120):
        np.testing.assert_array_equal(results[0][k], total(k, 3, sizes[k % len(sizes)]))
    assert len({digest(of_rank) for of_rank in results}) == 1


# Trouble


def test_sums_that_do_not_fit(join):
    """Counted over all parts, with one message on every rank; the job goes on."""
    agents = join(2)
    inputs = [np.zeros(LARGE, "int32") for _ in range(2)]
    for x in inputs:
        x[[3, LARGE // 3, LARGE - 1]] = 2**31 - 1
    outcomes = on_all(agents, lambda agent: agent.allreduce(inputs[agent.rank]))
    assert {(type(o), str(o)) for o in outcomes} == {
        (SumOverflow, f"3 of {LARGE} sums do not fit int32; use a wider dtype")
    }
    results = reduce_all(agents, [contribution(1, rank, LARGE, "int32") for rank in range(2)])
    np.testing.assert_array_equal(results[0], total(1, 2, LARGE, "int32"))


def test_what_is_refused_is_refused_whole(join):
    agents = join(2)
    with pytest.raises(UnsupportedTensor, match="dtype uint4"):
        agents[0].allreduce_address(0, 0, 1, "uint4", "sum", lambda error: None)
    with pytest.raises(UnsupportedTensor):
        agents[0].allreduce(np.zeros(3, "uint8"))
    reduce_all(agents, [np.ones(5, "float32")] * 2)


@pytest.mark.slow
def test_a_timeout_ends_all_parts(join):
    agents = join(2)
    with pytest.raises(CollectiveTimeout) as caught:
        agents[0].allreduce(np.ones(LARGE, "float32"), timeout_s=1.0)
    assert caught.value.ranks in ((1,), ())
    for shard in agents[0]._agents:
        with pytest.raises(CollectiveTimeout):
            shard.allreduce(np.ones(1, "float32"))
    with pytest.raises(PeerLost):
        until(lambda: agents[1].allreduce(np.ones(LARGE, "float32"), timeout_s=DEADLINE_S) is None)


def test_leaving_and_aborting(join):
    agents = join(2)
    x = np.ones(LARGE, "float32")
    handles = [agents[0].allreduce(x, async_op=True) for _ in range(3)]
    told: list[str] = []
    agents[0].on_failure(lambda error: told.append(str(error)))
    agents[0].abort(JobError("enough"))
    agents[0].on_failure(lambda error: told.append(str(error)))
    assert told == ["enough"] * 2
    for handle in handles:
        with pytest.raises(JobError, match="enough"):
            handle.wait(DEADLINE_S)
    handles = [agents[1].allreduce(x, async_op=True) for _ in range(4)]  # rank 0 may have sent all of its three
    agents[1].leave()
    with pytest.raises(JobError, match="rank 1 left job 'shards 0'$"):
        handles[3].wait(DEADLINE_S)
    agents[1].leave()
    with pytest.raises(JobError):
        agents[1].allreduce(x)


def test_completion_is_told_once_and_may_call_again(join):
    agents = join(2)
    told: list[tuple[int, object]] = []

    def work(agent):
        done = threading.Event()
        arrays = [contribution(k, agent.rank, size) for k, size in enumerate((LARGE, 10))]

        def second(error) -> None:
            told.append((2, error))
            done.set()

        def first(error) -> None:
            told.append((1, error))
            at = arrays[1].ctypes.data
            agent.allreduce_address(at, at, 10, "float32", "sum", second)

        at = arrays[0].ctypes.data
        agent.allreduce_address(at, at, LARGE, "float32", "sum", first)
        assert done.wait(DEADLINE_S)
        return arrays

    for arrays in good(on_all(agents, work)):
        np.testing.assert_array_equal(arrays[0], total(0, 2, LARGE))
        np.testing.assert_array_equal(arrays[1], total(1, 2, 10))
    assert sorted(told) == [(1, None)] * 2 + [(2, None)] * 2


def test_one_aggregator_that_is_not_there(aggregators):
    """The job at the other one is left again."""
    with pytest.raises(JoinError, match="no aggregator answered at 127.0.0.1:1 "):
        HostAgent.join(f"{aggregators[0].address},127.0.0.1:1", job="half", rank=0, world_size=1, timeout_s=1.0)
    until(
        lambda: all(
            job.state != "running" for job in client.status(aggregators[0].address).jobs if job.name.startswith("half")
        )
    )


def test_lists_in_another_order_never_meet(aggregators):
    """Ranks that would add one's first half to the other's second are told, in place of a wrong sum."""
    first, second = (aggregator.address for aggregator in aggregators)
    outcomes = on_all(
        [f"{first},{second}", f"{second},{first}"],
        lambda at: HostAgent.join(at, job="cross", rank=int(at.startswith(second)), world_size=2, timeout_s=1.0),
    )
    assert all(isinstance(outcome, JoinError) and "is missing" in str(outcome) for outcome in outcomes), outcomes


@pytest.mark.slow
def test_a_lost_aggregator_ends_the_job_and_is_named():
    """Killed while both are at work, and while nothing is under way: the next call fails, wherever it would go."""
    processes = [Aggregator() for _ in range(2)]
    try:
        at = ",".join(process.address for process in processes)
        workers = [Rank(f"rank {r}") for r in range(2)]
        processes += workers
        for job, numel in (("busy", LARGE), ("brief", 10)):
            for rank, worker in enumerate(workers):
                worker.send("join", address=at, job=job, rank=rank, world_size=2)
            assert [worker.next() for worker in workers] == [{}, {}]
            for worker in workers:
                worker.send("reduce", seed=1, numel=numel, count=3)
            assert len({worker.next()["sha256"] for worker in workers}) == 1
            if job == "busy":
                for worker in workers:
                    worker.send("leave")
                assert [worker.next() for worker in workers] == [{}, {}]
        agents = join_all(at, 2, job="idle")
        for worker in workers:
            worker.send("endless", numel=LARGE)
        processes[1].kill()
        for worker in workers:
            answer = worker.next()
            assert answer["error"] == "AggregatorLost" and processes[1].address in answer["message"], answer
            assert worker.ask("leave") == {}
        until(lambda: all(agent._failure_state.error for agent in agents))
        for agent in agents:
            for _ in range(2):
                with pytest.raises(AggregatorLost, match=f"aggregator {processes[1].address}, one of 2: "):
                    agent.allreduce(np.ones(3, "float32"))
            agent.leave()
        assert processes[0].stop() == 0
    finally:
        for process in processes:
            process.kill()
