"""What ranks hear when one of them dies, leaves, is late or calls something else: the same errors, with the same rank
numbers, as without hierarchy."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from host_agent.hierarchy.memory import BLOCK_BYTES
from switchml.errors import CollectiveTimeout, JobError, PeerLost
from tests.support.launch import DEADLINE_S, Aggregator, Rank, good, on_all
from tests.support.started import lasting

LARGE = BLOCK_BYTES // 4 * 3
outside = lasting(Aggregator, "--peer-timeout=3", end="kill")
"""An aggregator in a process of its own."""


@pytest.fixture
def ranks(outside):
    """`ranks([2, 2], job)`: a process for each rank, joined."""
    processes: list[Rank] = []

    def begin(ranks_of_host: list[int], job: str, address: str = outside.address) -> list[Rank]:
        host_of = [host for host, count in enumerate(ranks_of_host) for _ in range(count)]
        processes.extend(Rank(f"rank {rank}") for rank in range(len(host_of)))
        for rank, process in enumerate(processes):
            hierarchy = f"node:host {host_of[rank]}"
            process.send("join", address=address, job=job, rank=rank, world_size=len(host_of), hierarchy=hierarchy)
        assert [process.next() for process in processes] == [{}] * len(processes)
        for process in processes:
            process.send("reduce", seed=1, numel=LARGE, count=2)
        assert len({process.next()["sha256"] for process in processes}) == 1
        return processes

    yield begin
    for process in processes:
        process.kill()


@pytest.mark.parametrize(("victim", "who"), [(1, "a rank"), (0, "a leader of peers"), (4, "a rank alone on its host")])
def test_a_killed_rank_is_named_everywhere(ranks, victim, who):
    """While all are at work, on hosts of two, two and one."""
    processes = ranks([2, 2, 1], f"kill {victim}")
    for process in processes:
        process.send("endless", numel=LARGE, announced=True)
    assert [process.next() for process in processes] == [{}] * len(processes)
    processes[victim].kill()
    for rank, process in enumerate(processes):
        if rank != victim:
            answer = process.next(DEADLINE_S / 2)
            assert (answer["error"], answer["ranks"]) == ("PeerLost", [victim]), (who, rank, answer)
            assert f"rank {victim} lost: " in answer["message"]
            assert process.ask("leave") == {}


def test_a_frozen_leader_is_given_up(ranks):
    processes = ranks([2, 1], "frozen")
    for process in processes:
        process.send("endless", numel=LARGE)
    processes[0].signal(signal.SIGSTOP)
    for process in processes[1:]:
        answer = process.next()
        assert (answer["error"], answer["ranks"]) == ("PeerLost", [0]), answer
        assert "did not answer for 3 s" in answer["message"]


def test_a_killed_aggregator_ends_the_job(ranks):
    aggregator = Aggregator()
    try:
        processes = ranks([2, 1], "no aggregator", aggregator.address)
        for process in processes:
            process.send("endless", numel=LARGE)
        aggregator.kill()
        assert [process.next()["error"] for process in processes] == ["AggregatorLost"] * 3
    finally:
        aggregator.kill()


@pytest.mark.parametrize("leaver", [0, 1, 3])
def test_a_rank_that_leaves_early(join, leaver):
    """Calls of which the others have no need any more are complete; the next ones fail, by its name."""
    agents = join([2, 2])
    good(on_all(agents, lambda agent: agent.allreduce(np.ones(5, "float32"))))
    others = [agent for agent in agents if agent.rank != leaver]
    handles = [agent.allreduce(np.ones(LARGE, "float32"), async_op=True) for agent in others]
    agents[leaver].leave()
    for handle in handles:
        with pytest.raises(PeerLost) as caught:
            handle.wait(DEADLINE_S)
        assert caught.value.ranks == (leaver,) and f"rank {leaver} lost" in str(caught.value)
    for agent in others:
        with pytest.raises(PeerLost):
            agent.allreduce(np.ones(1, "float32"))
    with pytest.raises(JobError, match=f"rank {leaver} left job"):
        agents[leaver].allreduce(np.ones(1, "float32"))


@pytest.mark.parametrize("sleeper", [0, 1, 2])
def test_a_rank_that_does_not_call_is_named(join, sleeper):
    """By those of its host, and by leaders of others; the host of two may only be named as a whole."""
    agents = join([2, 1])
    awake = [agent for agent in agents if agent.rank != sleeper]
    outcomes = on_all(awake, lambda agent: agent.allreduce(np.ones(LARGE, "float32"), timeout_s=4.0))
    for agent, outcome in zip(awake, outcomes, strict=True):
        assert isinstance(outcome, (CollectiveTimeout, PeerLost)), outcome
        same_host = {agent.rank, sleeper} <= {0, 1}
        if isinstance(outcome, CollectiveTimeout):
            assert outcome.ranks == ((sleeper,) if same_host or sleeper == 2 else (0, 1)), (agent.rank, outcome)
    assert any(isinstance(outcome, CollectiveTimeout) for outcome in outcomes)


@pytest.mark.parametrize("early", [0, 2])
def test_who_gave_up_earlier_is_not_named_for_the_sleeper(join, early):
    """A rank, or the leader, that left because another did not call: whoever has more time waits for that one."""
    agents = join([3])
    outcomes = on_all(
        [agents[0], agents[2]],
        lambda agent: agent.allreduce(np.ones(5, "float32"), timeout_s=0.1 if agent.rank == early else 1.2),
    )
    assert [(type(outcome), outcome.ranks) for outcome in outcomes] == [(CollectiveTimeout, (1,))] * 2, outcomes
