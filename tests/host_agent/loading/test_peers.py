"""Lending between ranks, with strangers at the lender's port."""

from __future__ import annotations

import contextlib
import socket
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from host_agent.loading import peers
from host_agent.loading.peers import TcpPeers
from tests.support.launch import good, on_all


@pytest.fixture
def pair(monkeypatch):
    """Two ranks that lend to each other; strangers are let go after a moment."""
    monkeypatch.setattr(peers, "HANDSHAKE_S", 0.2)
    meeting, addresses = threading.Barrier(2), {}

    def join(rank: int) -> TcpPeers:
        def exchange(address):
            addresses[rank] = address
            meeting.wait()
            return [addresses[each] for each in range(2)]

        return TcpPeers(exchange, b"the job's", timeout_s=100)

    ranks = good(on_all(range(2), join))
    yield ranks, addresses
    for each in ranks:
        each.close()


def test_strangers_keep_nobody_from_borrowing(pair):
    (lender, borrower), addresses = pair
    lender.lend(3, {7: "seven", 8: "eight"})
    silent = [socket.create_connection(addresses[0]) for _ in range(3)]
    for _ in range(3):
        socket.create_connection(addresses[0]).close()
    with contextlib.suppress(AuthenticationError, OSError, EOFError):
        Client(addresses[0], authkey=b"another's").close()
    assert borrower.borrow(3, 0, [8, 7]) == ["eight", "seven"]
    assert borrower.borrow(3, 0, [9]) is None
    for each in silent:
        each.settimeout(100)
        while each.recv(1024):  # the challenge, then the end: they are let go
            pass
        each.close()
    assert borrower.borrow(3, 0, [7]) == ["seven"]


def test_only_so_many_strangers_at_once(pair, monkeypatch):
    (lender, borrower), addresses = pair
    strangers = [socket.create_connection(addresses[0]) for _ in range(peers.MAX_STRANGERS + 8)]
    for each in strangers:
        each.settimeout(100)
        while each.recv(1024):
            pass
        each.close()
    lender.lend(0, {1: "one"})
    assert borrower.borrow(0, 0, [1]) == ["one"]


def test_a_lender_that_does_not_answer_is_asked_once(pair):
    (_, borrower), addresses = pair
    with socket.create_server(("127.0.0.1", 0)) as mute:
        borrower._addresses[0] = mute.getsockname()
        assert borrower.borrow(0, 0, [1]) is None
        assert borrower._addresses[0] is None
