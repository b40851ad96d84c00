"""Agents whose aggregator is killed go on at a standby, or at the same one when it is started again: every result is
there, and right."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from host_agent import failover, joining
from host_agent.agent import HostAgent
from switchml.control import client
from switchml.errors import AggregatorLost, ConfigError, PeerLost
from switchml.net import shm
from tests.support.launch import DEADLINE_S, Aggregator, contribution, good, join_all, leave_all, on_all, total, until
from tests.support.started import started

LONG_S = 100.0
"""For the ranks to try: machines that run tests are slow."""
NUMEL = 300_000


# -- the rules --


def test_addresses_name_standbys():
    assert failover.split_standbys("a:1") == ("a:1", ())
    assert failover.split_standbys("a:1, b:2,standby=c:3, standby=d:4") == ("a:1,b:2", ("c:3", "d:4"))
    for wrong in ("standby=a:1", "a:1,standby=", ""):
        with pytest.raises(ConfigError, match=r"expected HOST:PORT\[,HOST:PORT…\]\[,standby=HOST:PORT…\]"):
            failover.split_standbys(wrong)


def test_a_route_begins_behind_what_is_lost_and_visits_everything():
    stops = failover.route(["a", "b", "c"], "b")
    first = [next(stops) for _ in range(6)]
    assert [stop.address for stop in first] == ["c", "a", "b"] * 2
    assert first[0].meet_s > first[1].meet_s + first[2].meet_s  # so ranks out of step still meet
    only = failover.route(["a"], "a")
    assert [next(only) for _ in range(2)] == [failover.RouteStop("a", failover.REACH_S, float("inf"))] * 2


def test_how_long_to_try(monkeypatch):
    monkeypatch.setenv("SWITCHML_FAILOVER_TIMEOUT", "2min")
    assert failover.timeout_s() == 120.0
    monkeypatch.setenv("SWITCHML_FAILOVER_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="SWITCHML_FAILOVER_TIMEOUT: 'soon'"):
        failover.timeout_s()


# -- processes --


class Busy:
    """All-reduces by every rank, of float32 and float16 in turn and in place, from a thread each."""

    def __init__(self, agents: list):
        self.agents, self.done, self._stop = agents, [0] * len(agents), threading.Event()
        self._last = threading.Barrier(len(agents))
        self._results: list = []
        self._thread = threading.Thread(target=lambda: self._results.extend(on_all(agents, self._work)))
        self._thread.start()

    def _work(self, agent) -> None:
        seed, count = 0, len(self.agents)
        while not (self._stop.is_set() and seed >= self._most):
            dtype = ("float32", "float16")[seed % 2]
            x = contribution(seed, agent.rank, NUMEL, dtype)
            agent.allreduce(x, out=x)
            np.testing.assert_array_equal(x, total(seed, count, NUMEL, dtype))
            seed += 1
            self.done[agent.rank] = seed

    def more(self) -> None:
        """Until each rank has done some more."""
        most = max(self.done) + 3
        until(lambda: min(self.done) >= most or not self._thread.is_alive())

    def end(self) -> None:
        """All ranks make the same calls. Raises what went wrong with one of them."""
        self._most = max(self.done) + 5
        self._stop.set()
        self._thread.join()
        good(self._results)


@pytest.fixture
def start():
    yield from started(Aggregator, Aggregator.kill)


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "options"), [("udp", ()), ("udp", ("--best-effort=64",)), ("shm", ())])
def test_a_standby_takes_over_and_loses_nothing(start, transport, options):
    first, second = start(*options), start()
    addresses = f"{first.address},standby={second.address}"
    agents = join_all(addresses, 3, job="moves", transport=transport, failover_timeout_s=LONG_S)
    busy = Busy(agents)
    busy.more()
    first.kill()
    busy.more()
    job = second.job("moves")
    assert (job.state, job.epoch >= 1, len(job.ranks)) == ("running", True, 3)
    third = start(*options, control_port=first.control_port, data_port=first.data_address[1])
    second.kill()  # and back again
    busy.more()
    assert third.job("moves").epoch > job.epoch
    busy.end()
    leave_all(agents)
    assert {agent.transport for agent in agents} == {transport}


@pytest.mark.slow
def test_ranks_whose_aggregator_dies_while_they_join_meet_at_the_standby(start, monkeypatch):
    monkeypatch.setenv("SWITCHML_JOIN_TIMEOUT", "1s")  # of the rank that never sees the first one
    first, second, third = start(), start(), start()
    addresses = f"{first.address},standby={second.address},standby={third.address}"
    agents: list = []

    def join(*ranks: int) -> threading.Thread:
        options = {"job": "young", "world_size": 3, "failover_timeout_s": LONG_S}
        work = lambda rank: HostAgent.join(addresses, rank=rank, **options)  # noqa: E731
        thread = threading.Thread(target=lambda: agents.extend(good(on_all(ranks, work))))
        thread.start()
        return thread

    threads = [join(0, 1)]
    until(lambda: (job := first.job("young")) and len(job.ranks) == 2)
    first.kill()
    threads.append(join(2))
    for thread in threads:
        thread.join()
    assert second.job("young").state == "running"
    agents.sort(key=lambda agent: agent.rank)
    busy = Busy(agents)
    busy.more()
    second.kill()  # the standby of a job that began there is the next in the list
    busy.more()
    assert third.job("young").epoch >= 1
    busy.end()
    leave_all(agents)


@pytest.mark.slow
def test_ranks_that_heard_of_the_start_meet_those_that_did_not(start):
    """The aggregator dies when its job has started, and rank 1 has not heard of it; rank 0 has a call under way."""
    first, second, third = start(), start(), start()
    addresses = f"{first.address},standby={second.address},standby={third.address}"
    options = {"job": "half", "world_size": 2}
    silent = threading.Thread(
        target=client.join,
        args=(first.address,),
        kwargs={**options, "rank": 1, "data_address": ("127.0.0.9", 9), "timeout_s": DEADLINE_S},
    )
    silent.start()
    agents = [HostAgent.join(addresses, rank=0, failover_timeout_s=LONG_S, **options)]
    silent.join()
    x = [contribution(0, rank, NUMEL) for rank in range(2)]
    under_way = agents[0].allreduce(x[0], async_op=True)
    first.kill()
    agents.append(HostAgent.join(addresses, rank=1, failover_timeout_s=LONG_S, **options))
    np.testing.assert_array_equal(agents[1].allreduce(x[1]), total(0, 2, NUMEL))
    np.testing.assert_array_equal(under_way.wait(), total(0, 2, NUMEL))
    job = second.job("half")
    assert (job.state, job.epoch) == ("running", 0)  # it began there
    busy = Busy(agents)
    busy.more()
    second.kill()  # both go on with the same job
    busy.more()
    assert third.job("half").epoch == 1
    busy.end()
    leave_all(agents)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "zmq"])
def test_an_aggregator_that_dies_while_its_transport_is_set_up(start, transport, monkeypatch):
    options = ("--tunnel",) if transport == "zmq" else ()
    first, second = start(*options), start(*options)
    what, name = {"shm": (shm, "attach"), "zmq": (joining, "TunnelClient")}[transport]
    usual, lock = getattr(what, name), threading.Lock()

    def after_its_death(*args, **kwargs):
        with lock:
            first.kill()
        return usual(*args, **kwargs)

    monkeypatch.setattr(what, name, after_its_death)
    monkeypatch.setenv("SWITCHML_JOIN_TIMEOUT", "1s")
    addresses = f"{first.address},standby={second.address}"
    agents = join_all(addresses, 2, job="early", transport=transport, failover_timeout_s=LONG_S)
    np.testing.assert_array_equal(
        good(on_all(agents, lambda agent: agent.allreduce(contribution(0, agent.rank, NUMEL))))[0], total(0, 2, NUMEL)
    )
    assert second.job("early").state == "running"
    leave_all(agents)


@pytest.mark.slow
def test_an_aggregator_that_falls_silent_is_given_up(start, caplog):
    """Its connections do not break: it is stopped, and goes on when nobody needs it any more."""
    first, second = start(), start()
    addresses = f"{first.address},standby={second.address}"
    agents = join_all(addresses, 2, job="silent", peer_timeout_s=1000.0, failover_timeout_s=LONG_S)
    busy = Busy(agents)
    busy.more()
    first.signal(signal.SIGSTOP)
    busy.more()
    assert second.job("silent").epoch >= 1
    assert f"aggregator {first.address} lost: it is silent" in caplog.text
    first.signal(signal.SIGCONT)
    busy.more()
    busy.end()
    leave_all(agents)


@pytest.mark.slow
def test_nobody_takes_over(start):
    first = start()
    agents = join_all(first.address, 2, job="ends", failover_timeout_s=0.5)
    first.kill()
    for outcome in on_all(agents, lambda agent: agent.allreduce(np.ones(NUMEL, np.float32))):
        assert isinstance(outcome, AggregatorLost)
        assert "broke" in str(outcome) and "it did not return within 0.5 s" in str(outcome)
    leave_all(agents)


def test_who_leaves_meanwhile_does_not_wait(start):
    first = start()
    agents = join_all(first.address, 2, job="leaves", failover_timeout_s=LONG_S)
    first.kill()
    until(lambda: all(agent._is_pausing for agent in agents))
    leave_all(agents)  # within DEADLINE_S, which `on_all` checks: less than the ranks would wait


def test_an_agent_halts_again_at_once_and_after_it_has_left(start):
    (agent,) = join_all(start().address, 1, job="halts")
    for _ in range(50):  # before its thread has seen that it may go on
        assert set(agent.pause()) == {0}
        agent.resume()
    agent.allreduce(np.ones(1, np.float32))
    leave_all([agent])
    assert agent.pause()[0] == 1  # a loss is noticed while the agent closes


@pytest.mark.slow
def test_a_dead_rank_is_named_where_there_is_a_standby(start):
    first, second = start(), start()
    addresses = f"{first.address},standby={second.address}"
    agents = join_all(addresses, 2, job="dies", failover_timeout_s=1.0)
    agents[1]._session.drop()
    agents[1].abort(RuntimeError("for a test"))
    with pytest.raises(PeerLost, match="rank 1 .*no standby took over the job within 1 s"):
        agents[0].allreduce(np.ones(NUMEL, np.float32))
    leave_all(agents)
