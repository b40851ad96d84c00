"""The agent end to end: ranks as threads of this process, through a software aggregator and its control plane.

Numbers come from `launch.contribution`: integers, whose sums are exact in every dtype used, so that results are
compared bit by bit. What moves data runs over UDP and through shared memory.
"""

from __future__ import annotations

import os
import select
import signal
import threading

import numpy as np
import pytest

from host_agent.agent import HostAgent
from switchml.errors import CollectiveTimeout, ConfigError, JobError, JoinError, UnsupportedTensor
from switchml.protocol.packet import LARGE_BYTES
from switchml.protocol.worker import TASKS
from tests.support.agents import reduce_all, same_bits
from tests.support.fresh import in_fresh_process
from tests.support.launch import DEADLINE_S, contribution, digest, good, join_all, leave_all, on_all, total, until

DTYPES = ("float32", "float64", "float16", "int32", "int64")
SIZES = (0, 1, 255, 256, 257, 100_003)


# Sums and means


@pytest.mark.slow(keep=30)
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum(trio, dtype, numel):
    inputs = [contribution(1, rank, numel, dtype) for rank in range(3)]
    kept = [array.copy() for array in inputs]
    results = reduce_all(trio, inputs)
    for result, before, after in zip(results, kept, inputs, strict=True):
        assert result.dtype == dtype and result.shape == (numel,)
        np.testing.assert_array_equal(result, total(1, 3, numel, dtype))
        np.testing.assert_array_equal(after, before)  # the input stays as it is
    assert same_bits(results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mean(trio, dtype):
    results = reduce_all(trio, [contribution(2, rank, 1000, dtype) for rank in range(3)], op="mean")
    exact = total(2, 3, 1000, "float64") / 3
    if dtype.startswith("int"):
        np.testing.assert_array_equal(results[0], np.trunc(exact).astype(dtype))
    else:
        np.testing.assert_allclose(results[0], exact, rtol=2 * np.finfo(dtype).eps, atol=1e-6)
    assert same_bits(results)


@pytest.mark.parametrize("payload_bytes, slots", [(256, 2), (256, 64), (1024, 2), (1024, 4096)])
def test_packet_sizes_and_slots(join, payload_bytes, slots):
    agents = join(2, payload_bytes=payload_bytes, slots=slots)
    for dtype in ("float32", "float64", "int32"):
        for numel in (1, 70, 20_000):
            results = reduce_all(agents, [contribution(6, rank, numel, dtype) for rank in range(2)])
            np.testing.assert_array_equal(results[0], total(6, 2, numel, dtype))
            assert same_bits(results)


# Refusals: what is refused is refused before anything is sent, so the ranks stay together


@pytest.mark.slow(keep=1)
def test_wrong_arguments(trio, aggregator, monkeypatch):
    with pytest.raises(ConfigError, match="op 'product': expected one of sum, mean, min, max"):
        trio[0].allreduce(np.zeros(3, "float32"), op="product")
    with pytest.raises(UnsupportedTensor, match="dtype uint4"):
        trio[0].allreduce_address(0, 0, 1, "uint4", "sum", lambda error: None)
    at = aggregator.address
    for rank, world_size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match=f"rank {rank} of {world_size}: expected"):
            HostAgent.join(at, job="x", rank=rank, world_size=world_size)
    with pytest.raises(ConfigError, match="can't receive on 192.0.2.1: .*bind_ip"):
        HostAgent.join(at, job="x", rank=0, world_size=1, bind_ip="192.0.2.1")
    with pytest.raises(JoinError, match="3 slots"):
        HostAgent.join(at, job="x", rank=0, world_size=1, slots=3)
    with pytest.raises(ConfigError):
        HostAgent.join("127.0.0.1:nonsense", job="x", rank=0, world_size=1)
    monkeypatch.setenv("SWITCHML_JOIN_TIMEOUT", "250ms")
    with pytest.raises(JoinError, match=r"no aggregator answered at 127.0.0.1:1 within 0.25 s"):
        HostAgent.join("127.0.0.1:1", job="x", rank=0, world_size=1)
    with pytest.raises(JoinError, match="rank 1 is missing"):
        HostAgent.join(at, job="x", rank=0, world_size=2, timeout_s=0.3)


def test_the_address_comes_from_the_environment(aggregator, monkeypatch):
    monkeypatch.delenv("SWITCHML_AGGREGATOR", raising=False)
    with pytest.raises(ConfigError, match="set SWITCHML_AGGREGATOR"):
        HostAgent.join(job="x", rank=0, world_size=1)
    monkeypatch.setenv("SWITCHML_AGGREGATOR", aggregator.address)
    with HostAgent.join(job="x", rank=0, world_size=1) as agent:
        assert agent.allreduce(np.ones(3, "int32")).tolist() == [1, 1, 1]


# Many calls


@pytest.mark.slow
def test_more_calls_than_can_be_under_way(trio):
    """The agent queues what the worker has no record for; results come back in any case, each to its own call."""
    calls = TASKS + 200
    dtypes = ("float32", "int32", "float16", "float64")

    def work(agent):
        handles = []
        for i in range(calls):
            mine = contribution(i, agent.rank, 1 + i % 300, dtypes[i % 4])
            handles.append(agent.allreduce(mine, async_op=True))
        return [handle.wait(DEADLINE_S) for handle in handles]

    results = good(on_all(trio, work))
    for i in range(calls):
        np.testing.assert_array_equal(results[0][i], total(i, 3, 1 + i % 300, dtypes[i % 4]))
    assert len({digest(of_rank) for of_rank in results}) == 1


def test_handles(trio):
    arrays = [contribution(11, rank, 1000) for rank in range(3)]
    early = [trio[rank].allreduce(arrays[rank], async_op=True) for rank in range(2)]
    with pytest.raises(CollectiveTimeout, match="not done after 0.05 s of waiting"):
        early[0].wait(0.05)
    assert not early[0].is_done()
    trio[2].allreduce(arrays[2])
    for handle in early:
        np.testing.assert_array_equal(handle.wait(DEADLINE_S), total(11, 3, 1000))
        assert handle.is_done()
        assert handle.wait() is handle.wait(0)


def test_completion_callbacks(trio, caplog):
    """`allreduce_address` tells from the agent's thread, once; a callback that fails harms nobody."""
    arrays = [contribution(12, rank, 1000) for rank in range(3)]
    told: list[tuple] = []

    def work(agent):
        done = threading.Event()

        def on_done(error) -> None:
            told.append((agent.rank, error, threading.current_thread().name))
            done.set()
            raise ValueError("the callback's own fault")

        address = arrays[agent.rank].ctypes.data
        agent.allreduce_address(address, address, 1000, "float32", "sum", on_done, keep=arrays[agent.rank])
        assert done.wait(DEADLINE_S)
        return agent.allreduce(np.ones(1, "int32"))

    assert good(on_all(trio, work)) == [3, 3, 3]
    assert sorted(told) == [(rank, None, f"switchml-agent-{rank}") for rank in range(3)]
    assert all((array == total(12, 3, 1000)).all() for array in arrays)
    assert "its completion callback failed" in caplog.text


@pytest.mark.slow
def test_the_gil_is_free_while_data_moves(trio):
    """A thread that counts must get on while a large tensor is on its way."""
    arrays = [contribution(13, rank, 4_000_000) for rank in range(3)]
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    handles = [agent.allreduce(arrays[agent.rank], async_op=True) for agent in trio[:2]]
    thread = threading.Thread(target=count)
    thread.start()
    handles.append(trio[2].allreduce(arrays[2], async_op=True))
    before = counted
    until(lambda: all(handle.is_done() for handle in handles))
    progress = counted - before
    stop.set()
    thread.join()
    assert progress > 1000
    np.testing.assert_array_equal(handles[0].wait(), total(13, 3, 4_000_000))


def test_stats(join):
    agents = join(2)
    reduce_all(agents, [contribution(14, rank, 25_600) for rank in range(2)])
    stats = agents[0].stats()
    assert stats["calls"] == 1 and stats["bytes"] == 4 * 25_600
    packets = -(-25_600 * 4 // LARGE_BYTES)
    assert stats["received"] >= packets and stats["sent"] == packets + 1 + stats["repeats"] + stats["retransmitted"]
    assert stats["refused"] == 0 and stats["goodput_bps"] > 0 and stats["rtt_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_a_forked_child_is_told_and_leaves_its_parents_job_alone(aggregator, transport):
    pid, called, waited, results = in_fresh_process(fork_during_a_sum, aggregator.address, transport)
    assert f"is process {pid}, from which this one was forked" in called
    assert f"this all-reduce is process {pid}'s" in waited
    assert results == [3, 3, 3]


def fork_during_a_sum(address: str, transport: str) -> tuple[int, str, str, list[float]]:
    """(this process, what the child is told when it calls, when it waits for this process's sum, that sum by rank)."""
    agents = join_all(address, 3, job=f"forked {transport}", transport=transport)
    reading, writing = os.pipe()
    waiting = agents[0].allreduce(np.ones(1000, "float32"), async_op=True)
    child = os.fork()
    if child == 0:
        for call in (lambda: agents[0].allreduce(np.ones(3, "float32"), timeout_s=DEADLINE_S), waiting.wait):
            try:
                call()
            except JobError as error:
                os.write(writing, f"{error}\n".encode())
        agents[0].leave()
        os._exit(0)
    os.close(writing)
    try:
        with open(reading) as errors:
            until(lambda: select.select([errors], [], [], 0)[0])
            called, waited = errors.read().splitlines()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    handles = [agent.allreduce(np.ones(1000, "float32"), async_op=True) for agent in agents[1:]]
    results = [float(handle.wait(DEADLINE_S)[0]) for handle in (waiting, *handles)]
    leave_all(agents)
    return os.getpid(), called, waited, results
