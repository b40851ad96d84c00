"""Strangers at a PlannedLoader's lender: pickles, and handshakes without its key. None is unpickled; ranks go on."""

import contextlib
import pickle
import random
import socket
import struct
import threading

from host_agent.loading.peers import TcpPeers
from tests.attacks.conftest import FIRST_SEED, Attempts
from tests.support.evil import Evil
from tests.support.launch import good, on_all

KEY = b"of the job's ranks alone"


def pair() -> list[TcpPeers]:
    """Two ranks of one process."""
    addresses: list = [None, None]
    both = threading.Barrier(2)

    def make(rank: int) -> TcpPeers:
        def exchange(mine):
            addresses[rank] = mine
            both.wait()
            return list(addresses)

        return TcpPeers(exchange, KEY)

    return good(on_all(range(2), make))


def message(data: bytes) -> bytes:
    """As multiprocessing's connections frame it."""
    return struct.pack("!i", len(data)) + data


def test_what_strangers_send_is_not_unpickled(attempts: Attempts):
    ranks, source = pair(), random.Random(FIRST_SEED)
    evil = pickle.dumps(Evil())
    sent = 0
    for step in range(attempts.scaled(300)):
        answer = source.choice(
            [evil, b"#CHALLENGE#" + evil, b"#WELCOME#", source.randbytes(32), b"{sha256}" + bytes(32)]
        )
        words = source.choice(
            [message(evil), message(answer) + message(b"#WELCOME#") + message(evil), b"\x7f\xff\xff\xff"]
        )
        stranger = socket.create_connection(tuple(ranks[1]._addresses[0]), timeout=10)
        with stranger, contextlib.suppress(OSError):  # the lender has hung up already
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        sent += 1
        ranks[0].lend(step, {7: step})
        assert ranks[1].borrow(step, 0, [7]) == [step]
    assert not Evil.unpickled
    for rank in ranks:
        rank.close()
    attempts.record("pickles and handshakes of strangers at a lender", sent)
