"""Data planes that serve, and sockets in front of them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from switchml.aggregator.software import SoftwareDataplane
from tests.support.dataplane import DEADLINE_S, Marker


@pytest.fixture
def start():
    """`start(**options)`: a serving data plane on a free port, stopped after the test."""
    with ThreadPoolExecutor(1) as pool:
        running = []

        def begin(**options) -> SoftwareDataplane:
            running.append(SoftwareDataplane(port=0, **options).start())
            return running[-1]

        yield begin
        for dataplane in running:
            pool.submit(dataplane.stop).result(DEADLINE_S)


@pytest.fixture
def dataplane(start) -> SoftwareDataplane:
    return start()


@pytest.fixture
def bind():
    """`bind(ip, port=0)`: a UDP socket, closed after the test."""
    opened = []

    def make(ip: str, port: int = 0) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.append(sock)
        sock.bind((ip, port))
        sock.settimeout(DEADLINE_S)
        return sock

    yield make
    for sock in opened:
        sock.close()


@pytest.fixture
def marker(dataplane, bind) -> Marker:
    return Marker(dataplane, bind)
