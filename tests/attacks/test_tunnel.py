"""Strangers at the ZeroMQ tunnel: they may end its process, and nothing else."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from switchml.errors import AggregatorLost, JoinError
from switchml.net.tunnel import TunnelClient, messages, server
from tests.attacks.conftest import Attempts
from tests.support.launch import DEADLINE_S, Aggregator, join_all, leave_all, until
from tests.support.started import lasting
from tests.support.under_attack import Bystander

aggregator = lasting(Aggregator, "--tunnel", scope="function", end="kill")


def url_of(aggregator: Aggregator) -> str:
    return next(url for url in aggregator.status().tunnel_addresses if url.startswith("tcp:"))


def process_of(aggregator: Aggregator) -> psutil.Process | None:
    """The tunnel's process, None while there is none."""
    children = psutil.Process(aggregator.process.pid).children()
    return children[0] if children and children[0].status() != psutil.STATUS_ZOMBIE else None


def answers(url: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as agent:
        agent.bind(("127.0.0.1", 0))
        try:
            TunnelClient(url, agent.getsockname(), timeout_s=5).close()
        except JoinError:
            return False
        return True


@pytest.mark.parametrize("heartbeats", [False, True])
def test_full_queues_and_broken_connections(aggregator: Aggregator, attempts: Attempts, heartbeats: bool) -> None:
    """libzmq aborts: `!_io_error` in stream_engine_base.cpp. A job goes on meanwhile, and the tunnel is there again."""
    bystander, url = Bystander(aggregator), url_of(aggregator)
    rounds, until_s = attempts.scaled(1000), time.monotonic() + attempts.scaled(8)
    tried = 0
    with zmq.Context() as context:
        while tried < rounds and time.monotonic() < until_s:
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                if heartbeats:
                    dealer.setsockopt(zmq.HEARTBEAT_IVL, 1)
                dealer.connect(url)
                dealer.send(messages.plain(messages.HELLO))
                for _ in range(200):
                    dealer.send(b"abcd")
                time.sleep(0.003)
            tried += 1
    attempts.record("tunnel: full queues and broken connections", tried)
    bystander.more()
    bystander.finish()
    assert aggregator.process.poll() is None
    until(lambda: answers(url), 2 * DEADLINE_S)


def test_the_end_of_its_process_is_not_that_of_the_aggregator(aggregator: Aggregator) -> None:
    bystander, url = Bystander(aggregator), url_of(aggregator)
    (agent,) = join_all(aggregator.address, 1, job="tunnelled", transport="zmq")
    process = process_of(aggregator)
    process.send_signal(signal.SIGABRT)
    bystander.more()
    until(lambda: (after := process_of(aggregator)) is not None and after.pid != process.pid)
    assert url_of(aggregator) == url
    with pytest.raises(AggregatorLost, match="does not know this rank any more"):
        agent.allreduce(np.ones(10, np.float32))
    leave_all([agent])
    until(lambda: answers(url))
    bystander.finish()
    assert f"the ZeroMQ tunnel (pid {process.pid}) was killed by SIGABRT: its ranks are lost" in aggregator.errors()


def test_clients_that_never_join(aggregator: Aggregator, attempts: Attempts) -> None:
    """Those of one host are bounded, and forgotten when they hang up, or after a while."""
    url, rounds, at_once = url_of(aggregator), attempts.scaled(1), 300
    for _ in range(rounds):
        before, welcome = process_of(aggregator).num_fds(), 0
        with zmq.Context() as context:
            dealers = [context.socket(zmq.DEALER) for _ in range(at_once)]
            for dealer in dealers:
                dealer.linger = 0
                dealer.connect(url)
                dealer.send(messages.plain(messages.HELLO))
            for dealer in dealers:
                answer = dealer.recv()
                welcome += answer[0] == messages.WELCOME
                assert answer[0] == messages.WELCOME or b"are in no job yet" in answer
            assert welcome == server.UNJOINED_OF_A_HOST and not answers(url)
            for dealer in dealers:
                dealer.close()
        until(lambda most=before + 2: process_of(aggregator).num_fds() <= most)
        assert answers(url)
    attempts.record("tunnel: clients that never join", at_once * rounds)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_it(number: signal.Signals) -> None:
    aggregator = Aggregator("--tunnel")
    process = process_of(aggregator)
    folder = Path(next(url for url in aggregator.status().tunnel_addresses if url.startswith("ipc:"))[6:]).parent
    assert folder.exists()
    aggregator.signal(number)
    aggregator.process.wait(DEADLINE_S)
    until(lambda: not folder.exists())
    process.wait(DEADLINE_S)
    aggregator.kill()
