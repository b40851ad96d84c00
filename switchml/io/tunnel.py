"""A tunnel for packets over ZeroMQ (tcp:// or ipc://), for networks that drop UDP. The protocol inside stays as it is.

    server = TunnelServer(("127.0.0.1", 48864), bind="0.0.0.0", port=50101)     # beside the aggregator
    client = TunnelClient("tcp://10.0.0.254:50101", sock.getsockname())         # beside the agent whose socket that is
    client.address          # what the agent's loop takes for the aggregator
    client.data_address     # what the aggregator takes for the agent

For each client the server has one UDP socket towards the aggregator, the client one on loopback towards its agent. Each
side has one thread that relays whole batches: what one recvmmsg brings becomes one message (docs/protocol.md section
7), and one sendmmsg at the other end; packets are gathered and scattered by compiled code. A tunnel may lose packets
where a queue is full, as a network may, but it never changes their order or their bytes.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import zmq

from ..errors import ConfigError, JoinError
from ..jit import compile_once, kernel
from ..memory import be16, copy_bytes, put_be16, u8_at
from . import libc, udp

log = logging.getLogger("switchml.tunnel")

VERSION = 1
HELLO, WELCOME, REFUSED, PACKETS, GOODBYE, STRANGER, PROBE = range(1, 8)
"""Kinds of message, the first byte; the second is VERSION."""
_HEAD_BYTES = 4
_RUN_BYTES = 4
_WELCOME = struct.Struct("!BBH4sI")
MESSAGE_BYTES = _HEAD_BYTES + _RUN_BYTES * udp.RECEIVE_PACKETS + (udp.RECEIVE_MESSAGES << 16)
"""No message is longer: a whole batch of `udp.receive_batch`."""
QUEUE_MESSAGES = 64
"""High-water mark of each queue, so that a peer that takes nothing costs 64 messages of memory and not more."""
_TURN = 32
"""Messages taken before it is the UDP sockets' turn."""
SOCKET_BUFFER_BYTES = 4 << 20
HEARTBEAT_S = 2.0
CONNECTION_TIMEOUT_S = 10.0
"""A connection without an answer to heartbeats for so long is closed. libzmq's own threads answer them, whatever Python
does.
"""
GRACE_S = 30.0
"""How long a client whose connection broke may take to come back before the server forgets it."""
LINGER_S = 0.2
"""How long the goodbye of a client may take."""
_OUR_LOOPBACK = "127.1.0.1"
"""Where the server's sockets are if the aggregator is on loopback: agents of this machine and v1 hosts have other
addresses.
"""


_FOLDER_PREFIX, _FILE = "switchml-tunnel-", "tunnel"
_STALE_S = 60.0
"""How old a socket file is before a server that finds it may take it for one that a killed server left."""


# Batches


@kernel
def gather(io, packets, message):
    """Take what has arrived at a socket and make one message of it, in uint8 `message`; its size in bytes, 0 if nothing
    had come.
    """
    count = udp.receive_batch(io, packets)
    if count == 0:
        return 0
    message[0], message[1] = PACKETS, VERSION
    runs = i = 0
    while i < count:
        first, length = i, packets.length[i]
        while i < count and packets.length[i] == length:
            i += 1
        put_be16(message, _HEAD_BYTES + _RUN_BYTES * runs, length)
        put_be16(message, _HEAD_BYTES + _RUN_BYTES * runs + 2, i - first)
        runs += 1
    put_be16(message, 2, runs)
    size = _HEAD_BYTES + _RUN_BYTES * runs
    for i in range(count):
        copy_bytes(message.ctypes.data + np.uint64(size), packets.address[i], np.int64(packets.length[i]))
        size += packets.length[i]
    return size


@kernel
def scatter(io, packets, address, size, to):
    """Send the packets of the message at `address` to the endpoint `to`; how many there were, -1 if it is no such
    message.
    """
    data = u8_at(address, size)
    if size < _HEAD_BYTES or data[0] != PACKETS or data[1] != VERSION:
        return -1
    runs = be16(data, 2)
    at = _HEAD_BYTES + _RUN_BYTES * runs
    if at > size:
        return -1
    count = 0
    for run in range(runs):
        length = be16(data, _HEAD_BYTES + _RUN_BYTES * run)
        more = be16(data, _HEAD_BYTES + _RUN_BYTES * run + 2)
        if count + more > packets.address.size or at + more * length > size:
            return -1
        for i in range(count, count + more):
            packets.address[i], packets.length[i], packets.endpoint[i] = np.uint64(address + at), length, np.uint64(to)
            at += length
        count += more
    if at != size:
        return -1
    udp.send_batch(io, packets, count)
    return count


class _Relay:
    """A connected UDP socket that turns messages into packets and back. Relays of one thread share their `_Buffers`."""

    def __init__(self, peer: tuple[str, int], bind_ip: str | None, buffers: _Buffers):
        self._buffers = buffers
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            if bind_ip:
                self.socket.bind((bind_ip, 0))
            self.socket.connect(peer)  # so that the kernel refuses packets from anybody else
            self.socket.setblocking(False)
            self.receive_buffer_bytes = libc.grow_buffers(self.socket, SOCKET_BUFFER_BYTES)
            self.address: tuple[str, int] = self.socket.getsockname()
            self._to = udp.endpoint(*peer)
            self._io = buffers.io_of(self.socket)
        except BaseException:
            self.socket.close()
            raise

    def turn_to(self, peer: tuple[str, int]) -> None:
        """Exchange packets with somebody else from now on."""
        self.socket.connect(peer)
        self._to = udp.endpoint(*peer)

    def fetch(self) -> memoryview | None:
        """What has arrived, as a message that is good until the next call; None if nothing has."""
        size = gather(self._io, self._buffers.packets, self._buffers.message)
        return self._buffers.view[:size] if size else None

    def deliver(self, frame: zmq.Frame) -> bool:
        """Send the packets of a message; False if it was none."""
        data = np.frombuffer(frame.buffer, np.uint8)
        return scatter(self._io, self._buffers.packets, data.ctypes.data, data.size, self._to) >= 0

    def close(self) -> None:
        self.socket.close()


def _reachable(address: tuple[str, int]) -> tuple[str, int]:
    """Where a socket bound to `address` is reached from its own machine."""
    ip, port = address
    return ("127.0.0.1" if ip == "0.0.0.0" else ip, port)


class _Buffers:
    """Memory for one batch, and the kernels that use it, compiled."""

    def __init__(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            self._io = udp.new_udp_io(sock)
        self.packets = udp.new_packets(udp.RECEIVE_PACKETS)
        self.message = np.zeros(MESSAGE_BYTES, np.uint8)
        self.view = memoryview(self.message)
        compile_once(gather, self._io, self.packets, self.message)
        compile_once(scatter, self._io, self.packets, 0, 0, 0)

    def io_of(self, sock: socket.socket) -> udp.UdpIO:
        segment, _ = udp.probe_offload(sock)
        return self._io._replace(config=np.array([sock.fileno(), segment], np.int64))


def _new_socket(context: zmq.Context, kind: int) -> zmq.Socket:
    made = context.socket(kind)
    made.linger = int(LINGER_S * 1000)
    made.set_hwm(QUEUE_MESSAGES)
    made.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
    made.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(CONNECTION_TIMEOUT_S * 1000))
    return made


def _plain(kind: int, text: str = "") -> bytes:
    return bytes((kind, VERSION)) + text.encode()


# The aggregator's side


def _sweep() -> None:
    """Remove the socket files of this user's servers that were killed: those where nobody listens."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*/{_FILE}"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            about = path.stat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _STALE_S:
                continue
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                path.parent.rmdir()


class _Peer:
    """One client: its ROUTER identity and its socket towards the aggregator. `gone_since`: when its connection was
    missed first; `settled`: it has sent packets, so its job runs and its socket is turned to the job's address.
    """

    def __init__(self, identity: bytes, relay: _Relay):
        self.identity, self.relay = identity, relay
        self.settled = False
        self.gone_since: float | None = None

    @property
    def welcome(self) -> bytes:
        ip, port = self.relay.address
        buffer_bytes = min(self.relay.receive_buffer_bytes, 0xFFFFFFFF)
        return _WELCOME.pack(WELCOME, VERSION, port, socket.inet_aton(ip), buffer_bytes)


class TunnelServer:
    """Relays between ZeroMQ clients and the aggregator's `data_address`, from one thread, until `close`.

    An aggregator with several data addresses says in `address_for(sender)` which one is a rank's, when its first packet
    comes: its job has started then.

    Listens on tcp://bind:port (0: any free port) and on a socket file that only this user can reach; `addresses` holds
    both as URLs, `address` the former as (IPv4, port). A client is forgotten when it says goodbye, or `grace_s` seconds
    after its connection broke. Raises ConfigError if the port can't be opened.
    """

    def __init__(
        self,
        data_address: tuple[str, int],
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        grace_s: float = GRACE_S,
        address_for: Callable[[tuple[str, int]], tuple[str, int]] | None = None,
    ):
        self._data_address, self._address_for = _reachable(data_address), address_for
        self._bind_ip = _OUR_LOOPBACK if self._data_address[0].startswith("127.") else None
        self._grace_s, self._probe_s = grace_s, min(HEARTBEAT_S, grace_s / 4)
        self._peers: dict[bytes, _Peer] = {}
        self._by_fd: dict[int, _Peer] = {}
        self._buffers: _Buffers | None = None
        self.dropped = 0
        """Batches from the aggregator that found their client's queue full, or no connection."""
        self._context = zmq.Context()
        self._router = _new_socket(self._context, zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that is back before we noticed that it was gone
        self._folder: tempfile.TemporaryDirectory | None = None
        try:
            self._router.bind(f"tcp://{bind}:{port or '*'}")
        except zmq.ZMQError as error:
            self._router.close()
            self._context.term()
            words = error.strerror or error
            raise ConfigError(f"tunnel port {bind}:{port}: {words}; choose another with --tunnel-port") from error
        url = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = (bind, int(url.rpartition(":")[2]))
        self.addresses = (f"tcp://{bind}:{self.address[1]}", *self._bind_file())
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="switchml-tunnel", daemon=True)
        self._thread.start()

    def _bind_file(self) -> tuple[str, ...]:
        try:
            _sweep()
            self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, ignore_cleanup_errors=True)
            url = f"ipc://{self._folder.name}/{_FILE}"
            self._router.bind(url)
        except (OSError, zmq.ZMQError) as error:  # the path is too long, for instance
            log.warning("no ipc:// tunnel: %s", error)
            self._remove_file()
            return ()
        return (url,)

    def _remove_file(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self._peers)

    def close(self) -> None:
        """Stop relaying; close all sockets and remove the socket file. May be called twice."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for peer in list(self._peers.values()):
            self._forget(peer)
        self._router.close(linger=0)
        self._context.term()
        self._remove_file()
        os.close(self._wake)

    # Everything below runs in the thread.

    def _run(self) -> None:
        probe_at = 0.0
        while not self._stopping:
            ready = dict(self._poller.poll(int(self._probe_s * 1000) if self._peers else None))
            if self._router in ready:
                self._take_messages()
            for fd in ready.keys() & self._by_fd.keys():
                peer = self._by_fd[fd]
                message = peer.relay.fetch()
                if message is not None and not self._send(peer.identity, message):
                    self.dropped += 1
            now = time.monotonic()
            if now >= probe_at:
                probe_at = now + self._probe_s
                self._probe(now)

    def _take_messages(self) -> None:
        for _ in range(_TURN):
            try:
                identity, *frames = self._router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            name = identity.bytes
            head = bytes(frames[0].buffer[:2]) if len(frames) == 1 else b""
            peer = self._peers.get(name)
            if head == _plain(PACKETS) and peer is not None:
                if not peer.settled and self._address_for is not None:
                    peer.relay.turn_to(_reachable(self._address_for(peer.relay.address)))
                peer.settled = True
                if not peer.relay.deliver(frames[0]):
                    log.warning("a client of the tunnel sent %d bytes that are no packets", len(frames[0]))
            elif head[:1] == bytes((HELLO,)):
                self._greet(name, head)
            elif head == _plain(GOODBYE) and peer is not None:
                self._forget(peer)
            elif head == _plain(PACKETS):
                self._send(name, _plain(STRANGER))

    def _greet(self, name: bytes, head: bytes) -> None:
        if head != _plain(HELLO):
            reason = f"it speaks version {VERSION}, install the same switchml version on both"
            self._send(name, _plain(REFUSED, reason))
            return
        if name not in self._peers:
            try:
                if self._buffers is None:
                    self._buffers = _Buffers()
                peer = _Peer(name, _Relay(self._data_address, self._bind_ip, self._buffers))
            except OSError as error:
                log.warning("no socket for another client of the tunnel: %s", error)
                self._send(name, _plain(REFUSED, f"it has no socket for another client: {error.strerror or error}"))
                return
            self._peers[name] = self._by_fd[peer.relay.socket.fileno()] = peer
            self._poller.register(peer.relay.socket.fileno(), zmq.POLLIN)
        self._send(name, self._peers[name].welcome)

    def _send(self, name: bytes, message) -> bool:
        """False if the client's queue is full or it is not connected."""
        peer = self._peers.get(name)
        sent = connected = False
        try:
            self._router.send_multipart((name, message), zmq.DONTWAIT)
            sent = connected = True
        except zmq.Again:
            connected = True
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        if peer is not None:
            peer.gone_since = None if connected else peer.gone_since or time.monotonic()
        return sent

    def _probe(self, now: float) -> None:
        """Whose connection is gone shows when something is sent there."""
        for peer in list(self._peers.values()):
            self._send(peer.identity, _plain(PROBE))
            if peer.gone_since is not None and now - peer.gone_since >= self._grace_s:
                log.info("forgot a client of the tunnel: its connection is gone")
                self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        del self._peers[peer.identity], self._by_fd[peer.relay.socket.fileno()]
        self._poller.unregister(peer.relay.socket.fileno())
        peer.relay.close()


# The agent's side


class TunnelClient:
    """Relays between the agent's UDP socket at `agent` (IPv4, port) and the tunnel at `url`, from one thread, until
    `close`.

    `address` is where the agent sends its packets, `data_address` where the aggregator sees them come from (both IPv4,
    port), and `receive_buffer_bytes` the smaller of the receive buffers on the way. A connection that breaks is made
    again. Raises JoinError if the tunnel does not answer within `timeout_s` seconds, or refuses.
    """

    def __init__(self, url: str, agent: tuple[str, int], *, timeout_s: float = 60.0):
        self.url = url
        buffers = _Buffers()  # before the hello: it may take a while
        self._context = zmq.Context()
        self._dealer = _new_socket(self._context, zmq.DEALER)
        # The name by which a new connection is known as the old client's; nobody else can guess it. libzmq's own names
        # begin with a zero.
        self._dealer.setsockopt(zmq.ROUTING_ID, b"\1" + os.urandom(16))
        self._relay: _Relay | None = None
        try:
            self.data_address, self.receive_buffer_bytes = self._say_hello(timeout_s)
            self._relay = _Relay(agent, "127.0.0.1", buffers)
        except OSError as error:
            self._free()
            raise JoinError(f"tunnel {url}: no socket towards the agent: {error.strerror or error}") from error
        except BaseException:
            self._free()
            raise
        self.address = self._relay.address
        self.receive_buffer_bytes = min(self.receive_buffer_bytes, self._relay.receive_buffer_bytes)
        self._lock = threading.Lock()
        self._on_lost: Callable[[str], None] | None = None
        self._lost = ""
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="switchml-tunnel", daemon=True)
        self._thread.start()

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)`, from the client's thread or at once, if the server no longer knows this client: it
        was started again, or the connection was away for too long. Nothing is relayed any more then.
        """
        with self._lock:
            self._on_lost = callback
            lost = self._lost
        if lost:
            callback(lost)

    def close(self) -> None:
        """Say goodbye and free everything. May be called twice."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with suppress(zmq.ZMQError):
            self._dealer.send(_plain(GOODBYE), zmq.DONTWAIT)
        self._free()
        os.close(self._wake)

    def _free(self) -> None:
        self._dealer.close()
        self._context.term()
        if self._relay is not None:
            self._relay.close()

    def _say_hello(self, timeout_s: float) -> tuple[tuple[str, int], int]:
        try:
            self._dealer.connect(self.url)
        except zmq.ZMQError as error:
            raise JoinError(f"tunnel {self.url}: {error.strerror or error}") from error
        self._dealer.send(_plain(HELLO))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self._dealer.poll(200):  # in slices, so that Ctrl-C is answered
                continue
            answer = self._dealer.recv()
            if answer[:1] == bytes((REFUSED,)):
                raise JoinError(f"tunnel {self.url} refused this rank: {answer[2:].decode(errors='replace')}")
            if answer[:2] == _plain(WELCOME) and len(answer) == _WELCOME.size:
                _, _, port, ip, buffer_bytes = _WELCOME.unpack(answer)
                return (socket.inet_ntoa(ip), port), buffer_bytes
        raise JoinError(f"tunnel {self.url} did not answer within {timeout_s:g} s: does the network let TCP through?")

    # Everything below runs in the thread.

    def _run(self) -> None:
        fd = self._relay.socket.fileno()
        poller = zmq.Poller()
        poller.register(self._dealer, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        poller.register(fd, zmq.POLLIN)
        waiting: memoryview | None = None
        while not self._stopping and not self._lost:
            ready = dict(poller.poll())
            if ready.get(self._dealer, 0) & zmq.POLLIN:
                self._take_messages()
            if fd in ready:
                waiting = self._relay.fetch()
            if waiting is None:
                continue
            # While the queue is full the agent's packets stay in the socket, whose buffer is bounded too.
            try:
                self._dealer.send(waiting, zmq.DONTWAIT)
                waiting = None
            except zmq.Again:
                pass
            poller.modify(self._dealer, zmq.POLLIN if waiting is None else zmq.POLLIN | zmq.POLLOUT)
            poller.modify(fd, zmq.POLLIN if waiting is None else 0)

    def _take_messages(self) -> None:
        for _ in range(_TURN):
            try:
                frame = self._dealer.recv(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            kind = frame.buffer[0] if len(frame) else 0
            if kind == PACKETS:
                self._relay.deliver(frame)
            elif kind == STRANGER:
                self._give_up("the tunnel's server does not know this rank any more; was it started again?")
                return

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._lost = reason
            callback = self._on_lost
        log.warning("tunnel %s: %s", self.url, reason)
        if callback is not None:
            callback(reason)


def choose_address(addresses: Iterable[str], host: str) -> str:
    """Of a server's `addresses` the best for a client here: ipc:// if that file is on this machine, else tcp://, at
    `host` if the server listens on all its addresses. Raises JoinError if there is none.
    """
    addresses = tuple(addresses)
    for url in addresses:
        if url.startswith("ipc://") and os.path.exists(url.removeprefix("ipc://")):
            return url
    for url in addresses:
        if url.startswith("tcp://"):
            return url.replace("//0.0.0.0:", f"//{host}:")
    raise JoinError("the aggregator has no ZeroMQ tunnel; use another transport")
