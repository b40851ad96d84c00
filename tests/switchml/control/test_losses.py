"""Processes that die or fall silent: the others are told, whoever it is that goes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchml.control import client
from switchml.control.client import AggregatorLost, PeerLost
from switchml.control.connections import closed_by_us
from tests.support.launch import until
from tests.support.started import started
from tests.switchml.control.conftest import DEADLINE_S, Heard

ROOT = Path(__file__).resolve().parents[3]

RANK = """
import sys, threading
from switchml.control import client
rank = int(sys.argv[2])
session = client.join(sys.argv[1], job="x", rank=rank, world_size=int(sys.argv[3]),
                      data_address=("127.0.0.1", 4000 + rank), timeout_s=20, peer_timeout_s=2)
session.events(lambda event: print(type(event).__name__, flush=True))
print("joined", flush=True)
if sys.argv[4:] == ["busy"]:
    # Hold the interpreter lock for longer than the peer timeout, as a long call into C can.
    import ctypes
    ctypes.PyDLL(None).usleep(3_500_000)
    print("awake", flush=True)
threading.Event().wait()
"""


class Child:
    def __init__(self, *arguments: str):
        self.process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def spawn() -> Iterator:
    yield from started(Child, Child.end)


def rank_in_a_child(spawn, aggregator, *extra: str) -> tuple[Child, client.Session, Heard]:
    """A job of two: rank 1 is a child process, rank 0 is us."""
    child = spawn("-c", RANK, aggregator.address, "1", "2", *extra)
    session = aggregator.join(0, 2)
    assert child.line() == "joined"
    return child, session, Heard(session)


def test_a_killed_rank_is_noticed_at_once(spawn, start):
    # With a peer timeout this long only the broken connection can have told.
    aggregator = start(peer_timeout_s=3600.0)
    child, _, heard = rank_in_a_child(spawn, aggregator)
    child.process.kill()
    event = heard.next()
    assert isinstance(event, PeerLost) and event.ranks == (1,)
    assert event.reason.startswith("rank 1 (") and event.reason.endswith(f", pid {child.process.pid}) disconnected")
    assert aggregator.plane.jobs == {}
    (job,) = client.status(aggregator.address).jobs
    assert (job.state, job.reason, [rank.state for rank in job.ranks]) == ("failed", event.reason, ["joined", "lost"])
    assert len(aggregator.fill(2)) == 2, "the name is free again"


def test_a_stopped_rank_is_noticed_within_the_peer_timeout(spawn, aggregator):
    child, _, heard = rank_in_a_child(spawn, aggregator)
    child.process.send_signal(signal.SIGSTOP)
    event = heard.next()
    assert isinstance(event, PeerLost) and event.ranks == (1,)
    assert event.reason.endswith("did not answer for 2 s")
    assert aggregator.plane.jobs == {}


def test_a_busy_rank_does_not_count_as_dead(spawn, aggregator):
    child, _, heard = rank_in_a_child(spawn, aggregator, "busy")
    assert child.line() == "awake"
    assert client.status(aggregator.address).jobs[0].state == "running" and heard.events == []


def test_a_rank_killed_while_the_job_forms_may_restart(spawn, aggregator):
    child = spawn("-c", RANK, aggregator.address, "1", "2")
    until(lambda: client.status(aggregator.address).jobs)
    child.process.kill()
    until(lambda: client.status(aggregator.address).jobs[0].state == "failed")
    restarted = spawn("-c", RANK, aggregator.address, "1", "2")
    aggregator.join(0, 2)
    assert restarted.line() == "joined"


@pytest.fixture
def remote(spawn):
    """An aggregator in a child process: (child, HOST:PORT)."""
    child = spawn("-m", "tests.support.fake_dataplane", "0")
    return child, f"127.0.0.1:{child.line()}"


def join(address: str, **options) -> client.Session:
    return client.join(
        address, rank=0, world_size=1, job="x", data_address=("127.0.0.1", 1), timeout_s=DEADLINE_S, **options
    )


def test_a_killed_aggregator_is_noticed_at_once(remote):
    child, address = remote
    session = join(address, peer_timeout_s=3600.0)
    heard = Heard(session)
    child.process.kill()
    event = heard.next()
    assert isinstance(event, AggregatorLost) and f"the connection to the aggregator at {address} broke" in event.reason
    session.leave()  # quick and quiet, though nobody is there


def test_a_stopped_aggregator_is_noticed_within_the_peer_timeout(remote):
    child, address = remote
    session = join(address, peer_timeout_s=2.0)
    heard = Heard(session)
    child.process.send_signal(signal.SIGSTOP)
    event = heard.next()
    assert event == AggregatorLost(f"the aggregator at {address} did not answer for 2 s")
    session.leave()


def test_leaving_a_silent_aggregator_does_not_hang(remote):
    child, address = remote
    session = join(address, peer_timeout_s=3600.0)
    child.process.send_signal(signal.SIGSTOP)
    leaving = threading.Thread(target=session.leave)
    leaving.start()
    leaving.join(DEADLINE_S)
    assert not leaving.is_alive()


def test_a_callback_that_fails_does_not_end_the_events(aggregator, caplog):
    first, second, third = aggregator.fill(3)
    seen = []

    def callback(event) -> None:
        seen.append(event)
        raise RuntimeError("mine")

    third.events(callback)
    first.leave()
    second.leave()
    until(lambda: len(seen) == 2)
    assert "the callback of Session.events failed" in caplog.text


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "ipv6:%5B::1%5D:1", "unix:/tmp/x", "nonsense", ""])
def test_unknown_connections_were_not_closed_by_us(peer):
    assert closed_by_us([peer]) == set()
