"""BMv2's notifications: digests and idle table entries, published to subscribers.

They use nanomsg's PUB protocol (the SP wire protocol over a Unix socket or TCP), so controllers written for BMv2 with
nnpy, nanomsg or pynng can receive them. A message starts with a 32-byte header in native byte order: "LEA|" and the
digest's list, or "AGE|" and the table; it is followed by samples, or by entry handles."""

import contextlib
import errno
import socket
import struct
import threading
import time
from functools import partial
from pathlib import Path

from emulator.p4switch.state.ageing import Ageing
from emulator.p4switch.state.digests import Digest, DigestList
from emulator.p4switch.state.state import State
from emulator.p4switch.values import n_bytes
from switchml import logs
from switchml.errors import ConfigError

log = logs.of("switchml.bmv2")

SWEEP_S = 1.0
"""Interval of the search for idle table entries."""
_GREETING = b"\0SP\0" + struct.pack(">HH", 32, 0)
"""Handshake bytes of both sides: SP version 0, and the protocol number, here PUB."""
_LEARN = struct.Struct("=4sQIiQI")
"""Topic, device, context, list, buffer, samples."""
_AGE = struct.Struct("=4sQIQiI")
"""Topic, device, context, number of the message, table, entries."""
_SEND_TIMEOUT_S = 0.2
_DEFAULT = Path("/tmp/bmv2-{}-notifications.ipc")
"""BMv2's default path, by device."""
_NEW_S = 60.0
"""A socket file younger than this may belong to a switch that is about to listen."""


def default_address(device_id: int) -> str:
    """BMv2's default address. Removes socket files that killed switches left at that path and those
    of other devices."""
    for path in _DEFAULT.parent.glob(_DEFAULT.name.format("*")):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _NEW_S and nobody_listens(path):
                path.unlink()
    return f"ipc://{_DEFAULT}".format(device_id)


def nobody_listens(path: str | Path) -> bool:
    """Whether the path is a Unix socket without a listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return Path(path).is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED


class Publisher:
    """Publishes messages to all subscribers connected to `address`: ipc://PATH or tcp://HOST:PORT.
    Raises ConfigError."""

    def __init__(self, address: str) -> None:
        kind, _, place = address.partition("://")
        if kind not in ("ipc", "tcp"):
            raise ConfigError(f"notifications can't be sent to {address!r}: expected ipc://PATH or tcp://HOST:PORT")
        self._is_ipc = kind == "ipc"
        self._file: tuple[Path, int] | None = None
        """The socket's path and inode, as another switch may replace the file."""
        self._peers: list[socket.socket] = []
        self._lock = threading.Lock()
        try:
            if self._is_ipc:
                Path(place).unlink(missing_ok=True)
                self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._listener.bind(place)
                self._listener.listen()
                self._file = Path(place), Path(place).stat().st_ino
            else:
                host, _, port = place.rpartition(":")
                self._listener = socket.create_server(("" if host == "*" else host, int(port)))
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"notifications can't be sent to {address!r}: {error}") from error
        threading.Thread(target=self._accept, name="notifications", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(peer,), name="subscriber", daemon=True).start()

    def _greet(self, peer: socket.socket) -> None:
        peer.settimeout(_SEND_TIMEOUT_S)
        try:
            peer.sendall(_GREETING)
            greeting = peer.recv(len(_GREETING), socket.MSG_WAITALL)
        except OSError:
            greeting = b""
        if greeting[:4] != _GREETING[:4]:
            peer.close()
            return
        with self._lock:
            self._peers.append(peer)

    def publish(self, message: bytes) -> None:
        """Send a message to all subscribers; a subscriber that does not receive it in time is disconnected."""
        framed = (b"\1" if self._is_ipc else b"") + struct.pack(">Q", len(message)) + message
        with self._lock:
            for peer in list(self._peers):
                try:
                    peer.sendall(framed)
                except OSError:
                    self._peers.remove(peer)
                    peer.close()

    def remove_file(self) -> None:
        """Remove the socket from the file system."""
        if self._file is not None:
            path, inode = self._file
            with contextlib.suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()

    def close(self) -> None:
        self.remove_file()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for peer in self._peers:
                peer.close()
            self._peers.clear()


class Notifications:
    """Publishes digests and idle entries of the state last passed to `watch`."""

    def __init__(self, publisher: Publisher, device_id: int) -> None:
        self.publisher = publisher
        self.device_id = device_id
        self._state: State | None = None
        self._ageing: dict[str, Ageing] = {}
        self._n_messages = 0
        self._closed = threading.Event()
        threading.Thread(target=self._sweep, name="ageing", daemon=True).start()

    def watch(self, state: State) -> None:
        """Publish the digests and idle entries of a state from now on."""
        self._state, self._ageing = state, {}
        for digest in state.digests:
            digest.listeners.append(partial(self._learn, digest))

    def _learn(self, source: DigestList, digest: Digest) -> None:
        header = _LEARN.pack(b"LEA|", self.device_id, 0, digest.list_id, digest.buffer_id, len(digest.samples))
        samples = b"".join(
            value.to_bytes(n_bytes(width), "big")
            for sample in digest.samples
            for value, width in zip(sample, source.widths, strict=True)
        )
        self.publisher.publish(header + samples)

    def _sweep(self) -> None:
        while not self._closed.wait(SWEEP_S):
            if self._state is not None:
                self.publish_aged(self._state)

    def publish_aged(self, state: State) -> None:
        """Publish the entries of each table that became idle since the last call."""
        for table in state.tables:
            if not table.table.support_timeout:
                continue
            due = self._ageing.setdefault(table.name, Ageing(table)).due()
            if due:
                header = _AGE.pack(b"AGE|", self.device_id, 0, self._n_messages, table.table.id, len(due))
                self._n_messages += 1
                self.publisher.publish(header + struct.pack(f"={len(due)}I", *due))

    def close(self) -> None:
        self._closed.set()
        self.publisher.close()
