"""Samples from other ranks' buffers. The plan says who lends what to whom in which step; a rank asks for it, and gets
it once the other one has come to that step. Nobody waits in a circle: what is lent in a step was there before it.

Over TCP, with Python's own connections and a key that only the job's ranks have: samples travel pickled, after both
ends have shown that they know it.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any, Protocol

KEPT_STEPS = 64
"""What was lent so many steps ago is forgotten; who asks for it then reads it from storage."""
TIMEOUT_S = 30.0
"""So long one rank waits for another's samples before it reads them from storage."""
HANDSHAKE_S = 5.0
"""So long either end waits for the other to show that it knows the key."""
PAUSE_S = 0.01
MOST_STRANGERS = 64
"""Connections that have not shown it yet; further ones are closed at once."""


class Peers(Protocol):
    """The other ranks' buffers."""

    def lend(self, step: int, samples: dict[int, Any]) -> None:
        """This rank has come to `step`, in which others get these."""

    def borrow(self, step: int, rank: int, samples: Sequence[int]) -> list[Any] | None:
        """What `rank` lends in `step`; None if it cannot be had."""

    def close(self) -> None:
        """Lend no more."""


class Outbox:
    """What a rank lends, by step. Thread-safe."""

    def __init__(self) -> None:
        self._lent: dict[int, dict[int, Any]] = {}
        self._step = -1
        self._changed = threading.Condition()
        self._is_closed = False

    def lend(self, step: int, samples: dict[int, Any]) -> None:
        """Offer these for `step`, which has begun."""
        with self._changed:
            self._step = step
            if samples:
                self._lent[step] = dict(samples)
            for old in [each for each in self._lent if each < step - KEPT_STEPS]:
                del self._lent[old]
            self._changed.notify_all()

    def take(self, step: int, samples: Sequence[int], timeout_s: float) -> list[Any] | None:
        """These, once `step` has begun; None if they are not there, or only after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._step >= step or self._is_closed, timeout_s):
                return None
            lent = self._lent.get(step, {})
            if not all(sample in lent for sample in samples):
                return None
            return [lent[sample] for sample in samples]

    def close(self) -> None:
        """Whoever waits gets None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class TcpPeers:
    """`exchange` gives every rank's object to every rank, in order; all ranks call it once, here. `host`: this rank's
    address for the others."""

    def __init__(
        self, exchange: Callable[[Any], list[Any]], key: bytes, host: str = "127.0.0.1", *, timeout_s: float = TIMEOUT_S
    ):
        self._key, self._timeout_s = key, timeout_s
        self._outbox = Outbox()
        self._listener = Listener((host, 0), "AF_INET", backlog=64)
        self._is_closed = False
        self._strangers = threading.BoundedSemaphore(MOST_STRANGERS)
        self._connections: dict[int, Connection] = {}
        threading.Thread(target=self._accept, name="switchml-lender", daemon=True).start()
        self._addresses = exchange(self._listener.address)

    def lend(self, step: int, samples: dict[int, Any]) -> None:
        """See `Peers`."""
        self._outbox.lend(step, samples)

    def borrow(self, step: int, rank: int, samples: Sequence[int]) -> list[Any] | None:
        """See `Peers`. After a failure this rank asks that one no more."""
        if self._addresses[rank] is None:
            return None
        try:
            if rank not in self._connections:
                connection = Client(tuple(self._addresses[rank]))
                with _answering_within(connection, HANDSHAKE_S):
                    answer_challenge(connection, self._key)
                    deliver_challenge(connection, self._key)
                self._connections[rank] = connection
            connection = self._connections[rank]
            connection.send((step, list(samples)))
            if not connection.poll(self._timeout_s + 1.0):
                raise TimeoutError
            found: list[Any] | None = connection.recv()
            return found
        except (OSError, EOFError, AuthenticationError):
            self._addresses[rank] = None
            return None

    def round_trip_s(self, rank: int) -> float:
        """Seconds for one sample from another rank's memory; every rank lends number 0 in step -1 before."""
        started = time.perf_counter()
        self.borrow(-1, rank, [0])
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop listening, and end connections."""
        self._is_closed = True
        self._outbox.close()
        with contextlib.suppress(OSError):
            self._listener.close()
        for connection in self._connections.values():
            connection.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):  # closed, a stranger who is gone already, or no descriptors at the moment
                time.sleep(PAUSE_S)
                continue
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), name="switchml-lender", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(OSError, EOFError, AuthenticationError):
            try:
                with _answering_within(connection, HANDSHAKE_S):
                    deliver_challenge(connection, self._key)
                    answer_challenge(connection, self._key)
            finally:
                self._strangers.release()
            while True:
                step, samples = connection.recv()
                connection.send(self._outbox.take(step, samples, self._timeout_s))


@contextlib.contextmanager
def _answering_within(connection: Connection, seconds: float) -> Iterator[None]:
    """What is received meanwhile raises OSError if it takes longer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        yield
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def own_address() -> str:
    """This machine's address for the job's other ranks: the one that leads to MASTER_ADDR."""
    target = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((target, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"
