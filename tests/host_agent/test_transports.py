"""Transports from a rank to the aggregator: shared memory beside UDP, both in one job, and narrow wires on either.

Whatever the transport, results have the same bits, errors are the same, and what waits sleeps. Ranks that are stopped
or watched are processes (`launch.Rank`); the others are threads of this one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from host_agent import core, reach
from host_agent.agent import HostAgent
from switchml.errors import ConfigError
from switchml.protocol.narrow import steps
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
from tests.support.sleepers import threads_named, threads_of, until_asleep

DTYPES = ("float32", "float64", "float16", "int32", "int64")


@pytest.fixture
def join(aggregator):
    """`join(*transports, **options)`: the agents of a job of its own, one for each; they leave after the test."""
    joined = []

    def begin(*transports: str, **options) -> list[HostAgent]:
        job = {"job": f"transport {len(joined)}", "timeout_s": DEADLINE_S, "world_size": len(transports)} | options
        agents = on_all(
            range(len(transports)),
            lambda rank: HostAgent.join(aggregator.address, rank=rank, transport=transports[rank], **job),
        )
        joined.append([agent for agent in agents if isinstance(agent, HostAgent)])
        assert [agent.transport for agent in good(agents)] == list(transports)
        return agents

    yield begin
    for agents in joined:
        leave_all(agents)


TRANSPORTS = {"udp": ("udp",) * 3, "shm": ("shm",) * 3, "mixed": ("udp", "shm", "shm")}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("wire", ["int32", "int16", "int8"])
def test_all_transports_give_the_same_bits(join, wire):
    digests = set()
    for name, transports in TRANSPORTS.items():
        agents = join(*transports, wire=wire, job=f"{name} {wire}")
        results = [[] for _ in transports]
        for k, dtype in enumerate(DTYPES):
            for numel in (1, 255, 40_000):
                arrays = [gradients(k, rank, numel, dtype) for rank in range(3)]
                if dtype.startswith("float"):
                    arrays[0][numel // 2] = np.nan
                for mine, result in zip(results, reduce_all(agents, arrays), strict=True):
                    mine.append(result)
        digests |= {digest(of_rank) for of_rank in results}
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("transports", TRANSPORTS.values(), ids=TRANSPORTS)
def test_nobody_oversleeps(join, transports, monkeypatch):
    """A result is fetched when it is there, not when a timer ends: here none does. The last contribution may come by
    another transport."""
    monkeypatch.setattr(core, "INTERVAL_S", 10 * DEADLINE_S)
    agents = join(*transports)
    for agent in agents:
        agent.core.worker.identity["least_timeout"] = int(10 * DEADLINE_S * 1e9)
    one = np.ones(10, "float32")
    reduce_all(agents, [one] * 3)
    for i in range(24):
        *others, last = agents[i % 3 :] + agents[: i % 3]
        handles = [agent.allreduce(one, async_op=True) for agent in others]
        until_asleep([thread for agent in others for thread in threads_named(f"switchml-agent-{agent.rank}")], 2)
        handles.append(last.allreduce(one, async_op=True))
        for handle in handles:
            handle.wait(DEADLINE_S)


def test_jobs_side_by_side(join):
    """Rings of several jobs are served in turn, beside UDP jobs, and jobs come and go meanwhile."""
    jobs = [join("shm", "shm"), join("udp", "udp"), join("shm", "udp")]
    passing = join("shm", "shm")

    def work(agent):
        if agent in passing:
            agent.allreduce(contribution(0, agent.rank, 3000))
            agent.leave()
            return
        for i in range(40):
            np.testing.assert_array_equal(agent.allreduce(contribution(i, agent.rank, 5000)), total(i, 2, 5000))

    good(on_all([agent for job in [*jobs, passing] for agent in job], work))


# Narrow wires, end to end


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("wire", ["int16", "int8"])
@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_narrow_wires(join, transport, wire, dtype):
    """Within half a step of the block for each rank (tests/switchml/protocol/test_narrow.py), and what the type
    rounds."""
    agents = join(*[transport] * 3, wire=wire, job=f"{transport} {wire} {dtype}")
    assert {agent.wire for agent in agents} == {wire}
    inputs = [gradients(6, rank, 20_000, "float32") for rank in range(3)]
    if dtype == "bfloat16":
        torch = pytest.importorskip("torch")
        inputs = [torch.from_numpy(x).to(torch.bfloat16) for x in inputs]
        values = [x.double().numpy() for x in inputs]
        results = [result.double().numpy() for result in reduce_all(agents, inputs)]
    else:
        inputs = [x.astype(dtype) for x in inputs]
        values = [x.astype("float64") for x in inputs]
        results = [result.astype("float64") for result in reduce_all(agents, inputs)]
    exact = sum(values)
    bits = {"int16": 16, "int8": 8}[wire]
    block = 1024 * 8 // bits
    largest = np.abs(values).max(axis=0)
    largest = np.maximum.reduceat(largest, np.arange(0, largest.size, block)).repeat(block)[: largest.size]
    rounding = {"float32": 2.0**-22, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    bound = 3 * largest * 2 / steps(bits, 3) * 0.51
    error = np.abs(results[0] - exact)
    assert (error <= bound + rounding * (np.abs(exact) + bound)).all() and error.any()
    assert len({digest([result]) for result in results}) == 1


def test_other_types_stay_exact_on_a_narrow_wire(join):
    agents = join("shm", "udp", wire="int8")
    for dtype in ("int32", "int64", "float64"):
        results = reduce_all(agents, [contribution(8, rank, 4000, dtype) for rank in range(2)])
        np.testing.assert_array_equal(results[0], total(8, 2, 4000, dtype))


def test_a_wire_without_room_is_refused(aggregator):
    with pytest.raises(ConfigError, match="wire int8: its lanes can't hold the sum of 128 ranks"):
        HostAgent.join(aggregator.address, job="x", rank=0, world_size=128, wire="int8")
    with pytest.raises(ConfigError, match="wire 'int4': expected one of auto, int32, int16, int8"):
        HostAgent.join(aggregator.address, job="x", rank=0, world_size=1, wire="int4")


# What can be had


def test_shared_memory_is_refused_where_packets_are_to_be_lost():
    """Nothing would be lost there. Who does not insist gets UDP."""
    with LocalAggregator(loss_rate=0.05) as lossy:
        with pytest.raises(ConfigError, match="transport shm: the aggregator offers no shared memory .*packet loss"):
            HostAgent.join(lossy.address, job="x", rank=0, world_size=1, transport="shm", timeout_s=DEADLINE_S)
        [agent] = join_all(lossy.address, 1, job="y", transport="auto")
        with agent:
            assert agent.transport == "udp"
            np.testing.assert_array_equal(agent.allreduce(np.ones(5000, "float32")), np.ones(5000))


def test_the_choice_comes_from_the_environment(aggregator, monkeypatch):
    monkeypatch.setenv("SWITCHML_TRANSPORT", "udp")
    monkeypatch.setenv("SWITCHML_WIRE", "int16")
    with HostAgent.join(aggregator.address, job="x", rank=0, world_size=1) as agent:
        assert (agent.transport, agent.wire) == ("udp", "int16")
    with HostAgent.join(aggregator.address, job="x", rank=0, world_size=1, transport="auto", wire="int32") as agent:
        assert (agent.transport, agent.wire) == ("shm", "int32")
    monkeypatch.setenv("SWITCHML_TRANSPORT", "pigeon")
    with pytest.raises(ConfigError, match="transport 'pigeon': expected one of auto, udp, shm"):
        HostAgent.join(aggregator.address, job="x", rank=0, world_size=1)


# Processes


def memory_of(pid: int | str) -> int:
    """Job segments that a process has open or mapped."""
    gc.collect()
    opened = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            opened += "switchml-job" in os.readlink(f"/proc/{pid}/fd/{fd}")
    return opened + Path(f"/proc/{pid}/maps").read_text().count("switchml-job")


@pytest.fixture(scope="module")
def cast():
    """Two aggregators and three ranks as processes; the tests below use them up from the end."""
    people = {
        "aggregators": [Aggregator("--peer-timeout=5") for _ in range(2)],
        "ranks": [Rank(f"rank {r}") for r in range(3)],
    }
    yield people
    for process in (*people["aggregators"], *people["ranks"]):
        process.kill()


def take_in(ranks: list[Rank], aggregator: Aggregator, job: str, transport: str) -> None:
    for rank, process in enumerate(ranks):
        process.send("join", address=aggregator.address, job=job, rank=rank, world_size=len(ranks), transport=transport)
    assert [process.next() for process in ranks] == [{}] * len(ranks)


def until_all_asleep(processes) -> None:
    """Wait until no thread of these processes is at work."""
    until_asleep(thread for process in processes for thread in threads_of(process.process.pid))


def accepted(aggregator: Aggregator, job: str) -> list[int]:
    """How many packets of each rank the aggregator has added up."""
    (status,) = (each for each in aggregator.status().jobs if each.name == job)
    return [rank.counters["accepted"] for rank in status.ranks]


def until_at_work(aggregator: Aggregator, job: str) -> None:
    """Wait until every rank's packets come in."""
    before = accepted(aggregator, job)
    until(lambda: all(now > then for now, then in zip(accepted(aggregator, job), before, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_who_waits_uses_no_processor(cast, transport):
    """After work nobody spins; nor while a rank is waited for, which the others ask about five times a second."""
    aggregator, ranks = cast["aggregators"][0], cast["ranks"]
    take_in(ranks, aggregator, f"idle {transport}", transport)
    for process in ranks:
        process.send("reduce", seed=1, numel=200_000, count=3)
    assert len({process.next()["sha256"] for process in ranks}) == 1
    everybody = [aggregator, *ranks]
    until_all_asleep(everybody)
    before = accepted(aggregator, f"idle {transport}")
    for process in ranks[:2]:
        process.send("reduce", seed=2, numel=200_000)
    until(
        lambda: all(
            now > then for now, then in zip(accepted(aggregator, f"idle {transport}")[:2], before, strict=False)
        )
    )
    until_all_asleep(everybody)
    ranks[2].send("reduce", seed=2, numel=200_000)
    assert len({process.next()["sha256"] for process in ranks}) == 1
    for process in ranks:
        assert process.ask("leave") == {}
    for process in everybody:
        until(lambda process=process: memory_of(process.process.pid) == 0)


@pytest.mark.slow
def test_a_rank_that_stops_for_a_while_costs_nothing_but_time(cast):
    """SIGSTOP with packets named in the ring and results unread: it goes on where it was."""
    aggregator, ranks = cast["aggregators"][0], cast["ranks"]
    take_in(ranks, aggregator, "pause", "shm")
    for process in ranks:
        process.send("reduce", seed=5, numel=400_000, count=20)
    until_at_work(aggregator, "pause")
    for victim in (ranks[1], aggregator):
        victim.signal(signal.SIGSTOP)
        until_all_asleep([ranks[0], ranks[2]])
        victim.signal(signal.SIGCONT)
    assert len({process.next()["sha256"] for process in ranks}) == 1
    for process in ranks:
        process.ask("leave")


def test_addresses_on_loopback_are_a_ranks_own(monkeypatch):
    """Two jobs may use one port, however their names are alike; so may processes that both call theirs the same."""
    jobs, found = ["ab", "ba", "v1a", "v1b"], set()
    for pid in (1000, 1001):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        found |= {reach.own_address("127.0.0.1", job, rank) for job in jobs for rank in range(254)}
    assert len(found) == 2 * 254 * len(jobs)
