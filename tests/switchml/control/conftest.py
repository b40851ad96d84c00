"""A control plane on loopback ports of the kernel's choice, around a data plane that adds nothing up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from switchml.control import client
from switchml.control.server import Controller
from tests.support.fake_dataplane import FakeDataplane
from tests.support.launch import good, on_all
from tests.support.started import started

DEADLINE_S = 100.0
"""How long a test waits for something that should happen at once, or within a peer timeout of 2 s."""


class Aggregator:
    """A running controller: `plane` is its fake data plane, `address` the control port's HOST:PORT."""

    def __init__(self, **options):
        self.plane = FakeDataplane()
        self.controller = Controller(self.plane, **{"control_port": 0, "peer_timeout_s": 2.0, **options})
        self.addresses = self.controller.start()
        self.address = "{}:{}".format(*self.addresses.control)

    def join(self, rank: int = 0, world_size: int = 1, **options) -> client.Session:
        options = {"data_address": ("127.0.0.1", 4000 + rank), "timeout_s": DEADLINE_S, "peer_timeout_s": 2.0} | options
        return client.join(self.address, **{"job": "x", "rank": rank, "world_size": world_size} | options)

    def fill(self, world_size: int, **options) -> list[client.Session]:
        """All ranks of a job, joined side by side."""
        return good(on_all(range(world_size), lambda rank: self.join(rank, world_size, **options)))


@pytest.fixture
def start() -> Iterator[Callable[..., Aggregator]]:
    """`start(**options of Controller)`; stopped at the end of the test."""
    yield from started(Aggregator, lambda aggregator: aggregator.controller.stop())


@pytest.fixture
def aggregator(start) -> Aggregator:
    return start()


class Heard:
    """Collects a session's events; `next()` waits for one."""

    def __init__(self, session: client.Session):
        self.events: list[client.SessionEvent] = []
        self.threads: set[str] = set()
        self._n_returned = 0
        self._news = threading.Condition()
        session.events(self._add)

    def _add(self, event: client.SessionEvent) -> None:
        with self._news:
            self.threads.add(threading.current_thread().name)
            self.events.append(event)
            self._news.notify_all()

    def next(self, timeout_s: float = DEADLINE_S) -> client.SessionEvent:
        with self._news:
            assert self._news.wait_for(lambda: len(self.events) > self._n_returned, timeout_s), "no event came"
            self._n_returned += 1
            return self.events[self._n_returned - 1]
