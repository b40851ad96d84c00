"""Samples from other ranks' buffers. The plan determines which rank lends which samples to which rank in each step; a
rank requests them, and receives them once the lender has reached that step. There is no deadlock, since samples lent in
a step were in the buffer before it.

Over TCP, with Python's multiprocessing connections and a key that only the job's ranks have: samples are sent pickled,
after both ends have authenticated.
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
"""Number of steps after which lent samples are dropped; a rank that requests them later reads them from storage."""
TIMEOUT_S = 30.0
"""Seconds that a rank waits for another's samples before it reads them from storage."""
HANDSHAKE_S = 5.0
"""Seconds that either end waits for the other to authenticate."""
PAUSE_S = 0.01
MAX_STRANGERS = 64
"""Maximum number of connections that have not authenticated yet; further ones are closed at once."""


class Peers(Protocol):
    """Access to the other ranks' buffers."""

    def lend(self, step: int, samples: dict[int, Any]) -> None:
        """Offer samples for `step`, which this rank has reached."""

    def borrow(self, step: int, rank: int, samples: Sequence[int]) -> list[Any] | None:
        """Samples that `rank` lends in `step`; None if they cannot be obtained."""

    def close(self) -> None:
        """Stop lending."""


class Outbox:
    """Samples that a rank lends, by step. Thread-safe."""

    def __init__(self) -> None:
        self._lent: dict[int, dict[int, Any]] = {}
        self._step = -1
        self._changed = threading.Condition()
        self._is_closed = False

    def lend(self, step: int, samples: dict[int, Any]) -> None:
        """Offer samples for `step`, which has begun."""
        with self._changed:
            self._step = step
            if samples:
                self._lent[step] = dict(samples)
            for old in [each for each in self._lent if each < step - KEPT_STEPS]:
                del self._lent[old]
            self._changed.notify_all()

    def take(self, step: int, samples: Sequence[int], timeout_s: float) -> list[Any] | None:
        """Return samples once `step` has begun; None if they are not offered, or not before `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._step >= step or self._is_closed, timeout_s):
                return None
            lent = self._lent.get(step, {})
            if not all(sample in lent for sample in samples):
                return None
            return [lent[sample] for sample in samples]

    def close(self) -> None:
        """Return None to all waiting threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class TcpPeers:
    """Peers over TCP. `exchange` gathers every rank's object on every rank, in order; all ranks call it once, in the
    constructor. `host`: this rank's address for the others."""

    def __init__(
        self, exchange: Callable[[Any], list[Any]], key: bytes, host: str = "127.0.0.1", *, timeout_s: float = TIMEOUT_S
    ):
        self._key, self._timeout_s = key, timeout_s
        self._outbox = Outbox()
        self._listener = Listener((host, 0), "AF_INET", backlog=64)
        self._is_closed = False
        self._strangers = threading.BoundedSemaphore(MAX_STRANGERS)
        self._connections: dict[int, Connection] = {}
        threading.Thread(target=self._accept, name="switchml-lender", daemon=True).start()
        self._addresses = exchange(self._listener.address)

    def lend(self, step: int, samples: dict[int, Any]) -> None:
        """See `Peers`."""
        self._outbox.lend(step, samples)

    def borrow(self, step: int, rank: int, samples: Sequence[int]) -> list[Any] | None:
        """See `Peers`. After a failure, this rank does not contact that one again."""
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
        """Seconds to fetch one sample from another rank's memory; every rank must have lent sample 0 in step -1."""
        started = time.perf_counter()
        self.borrow(-1, rank, [0])
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop listening, and close connections."""
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
            except (OSError, EOFError):  # closed, the client has disconnected already, or out of descriptors
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
    """Receive timeout: a receive within the context raises OSError if it takes longer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        yield
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def own_address() -> str:
    """This machine's address for the job's other ranks: the local address of the route to MASTER_ADDR."""
    target = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((target, 9))  # sends no packet
        return str(probe.getsockname()[0])
    return "127.0.0.1"
