"""Server of the tunnel, on the aggregator's side."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection

import zmq

from switchml import logs
from switchml.errors import ConfigError
from switchml.net.tunnel import messages
from switchml.net.tunnel.messages import GOODBYE, HELLO, PACKETS, PROBE, REFUSED, STRANGER, TURN, VERSION, plain
from switchml.net.tunnel.relay import CONNECTION_TIMEOUT_S, PROBE_S, Buffers, Relay, new_socket
from switchml.runtime.folders import TemporaryFolder

log = logs.of("switchml.tunnel")

Address = tuple[str, int]
"""IPv4 address and port."""
Joined = Callable[[Collection[Address]], Collection[Address] | None]
"""Returns the subset of the addresses that belong to ranks of a job; None if unknown at the moment."""

GRACE_S = 30.0
"""Time that a client with a broken connection has to reconnect before the server removes it."""
_OUR_LOOPBACK = "127.1.0.1"
"""Address of the server's sockets if the aggregator is on loopback: agents of this machine and v1 hosts have other
addresses."""
FOLDER, _FILE = "tunnel", "tunnel"
JOIN_S = 10.0
"""Maximum time of a client without a job; agents join as soon as they are welcomed."""
UNJOINED_OF_A_HOST, UNJOINED = 64, 256
"""Maximum clients of one host, and of all hosts, without a job: each needs two file descriptors."""
_HANDSHAKE_S = 3.0
"""Maximum time of the ZeroMQ handshake."""


class _Peer:
    """One client: its ROUTER identity and its socket towards the aggregator. `disconnected_at`: when its connection was
    first found broken. `unjoined_since`: when it was found to be in no job. `is_settled`: it has sent packets, so its
    job runs and its socket is connected to the job's address.
    """

    def __init__(self, identity: bytes, host: str, relay: Relay, now: float):
        self.identity, self.host, self.relay = identity, host, relay
        self.is_settled = False
        self.unjoined_since: float | None = now
        self.disconnected_at: float | None = None

    @property
    def welcome(self) -> bytes:
        ip, port = self.relay.address
        buffer_bytes = min(self.relay.receive_buffer_bytes, 0xFFFFFFFF)
        return messages.WELCOME_BODY.pack(messages.WELCOME, VERSION, port, socket.inet_aton(ip), buffer_bytes)


class TunnelServer:
    """Relays between ZeroMQ clients and the aggregator's `data_address`, in one thread, until `close`.

    `address_for(sender)`: the data address of a rank, for an aggregator with several; called on the rank's first
    packet, when its job has started. `joined(addresses)`: the subset that belongs to ranks of a job; a client without a
    job for `join_s` seconds, or whose connection breaks before it joins, is removed.

    Listens on tcp://bind:port (0: any free port) and on a socket file that only this user can access, in `folder` or a
    new temporary one; `addresses` holds both as URLs, `address` the former as (IPv4, port). A client is removed when it
    sends a goodbye, or `grace_s` seconds after its connection broke. Raises ConfigError if the port can't be opened.
    """

    def __init__(
        self,
        data_address: tuple[str, int],
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        grace_s: float = GRACE_S,
        join_s: float = JOIN_S,
        folder: str = "",
        address_for: Callable[[Address], Address] | None = None,
        joined: Joined | None = None,
    ):
        self._data_address, self._address_for = _reachable(data_address), address_for
        self._bind_ip = _OUR_LOOPBACK if self._data_address[0].startswith("127.") else None
        self._joined = joined or (lambda addresses: addresses)
        self._grace_s, self._join_s, self._probe_s = grace_s, join_s, min(PROBE_S, grace_s / 4, join_s / 4)
        self._peers: dict[bytes, _Peer] = {}
        self._by_fd: dict[int, _Peer] = {}
        self._buffers = Buffers()  # before the first client: queues would fill during compilation
        self.dropped = 0
        """Batches from the aggregator that were dropped because their client's queue was full or its connection lost.
        """
        self._context = zmq.Context()
        self._router = new_socket(self._context, zmq.ROUTER)
        self._router.setsockopt(zmq.HANDSHAKE_IVL, int(_HANDSHAKE_S * 1000))
        # No heartbeats: libzmq aborts when one is due on a connection that broke while its queue was full. The kernel
        # detects unanswered probes.
        self._router.setsockopt(zmq.TCP_MAXRT, int(CONNECTION_TIMEOUT_S * 1000))
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that reconnects before its loss was noticed
        self._folder: TemporaryFolder | None = None
        try:
            self._router.bind(f"tcp://{bind}:{port or '*'}")
        except zmq.ZMQError as error:
            self._router.close()
            self._context.term()
            words = error.strerror or error
            raise ConfigError(f"tunnel port {bind}:{port}: {words}; choose another with --tunnel-port") from error
        url = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = (bind, int(url.rpartition(":")[2]))
        self.addresses = (f"tcp://{bind}:{self.address[1]}", *self._bind_file(folder))
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="switchml-tunnel", daemon=True)
        self._thread.start()

    def _bind_file(self, folder: str) -> tuple[str, ...]:
        try:
            if not folder:
                self._folder = TemporaryFolder(FOLDER)
                folder = self._folder.name
            url = f"ipc://{folder}/{_FILE}"
            self._router.bind(url)
        except (OSError, zmq.ZMQError) as error:  # for example, the path is too long
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
        """Number of clients."""
        return len(self._peers)

    def close(self) -> None:
        """Stop relaying, close all sockets and remove the socket file. May be called repeatedly."""
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
        for _ in range(TURN):
            try:
                identity, *frames = self._router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            name = identity.bytes
            head = bytes(frames[0].buffer[:2]) if len(frames) == 1 else b""
            peer = self._peers.get(name)
            if head == plain(PACKETS) and peer is not None:
                if not peer.is_settled and self._address_for is not None:
                    peer.relay.turn_to(_reachable(self._address_for(peer.relay.address)))
                peer.is_settled = True
                if not peer.relay.deliver(frames[0]):
                    log.warning("a client of the tunnel sent %d bytes that are not packets", len(frames[0]))
            elif head[:1] == bytes((HELLO,)):
                self._greet(name, head, _host_of(frames[0]))
            elif head == plain(GOODBYE) and peer is not None:
                self._forget(peer)
            elif head == plain(PACKETS):
                self._send(name, plain(STRANGER))

    def _greet(self, name: bytes, head: bytes, host: str) -> None:
        if head != plain(HELLO):
            reason = f"it speaks version {VERSION}, install the same switchml version on both"
            self._send(name, plain(REFUSED, reason))
            return
        if name not in self._peers:
            refusal = self._refusal(host)
            if refusal:
                self._send(name, plain(REFUSED, refusal))
                return
            try:
                peer = _Peer(name, host, Relay(self._data_address, self._bind_ip, self._buffers), time.monotonic())
            except OSError as error:
                log.warning("no socket for another client of the tunnel: %s", error)
                self._send(name, plain(REFUSED, f"it has no socket for another client: {error.strerror or error}"))
                return
            self._peers[name] = self._by_fd[peer.relay.socket.fileno()] = peer
            self._poller.register(peer.relay.socket.fileno(), zmq.POLLIN)
        self._send(name, self._peers[name].welcome)

    def _refusal(self, host: str) -> str:
        """Return why another client of this host is not accepted now; "" if it is."""
        unjoined = Counter(peer.host for peer in self._peers.values() if peer.unjoined_since is not None)
        if unjoined[host] >= UNJOINED_OF_A_HOST:
            return f"{unjoined[host]} clients of {host or 'this machine'} are in no job yet, which are all that may be"
        if unjoined.total() >= UNJOINED:
            return f"{unjoined.total()} clients are in no job yet, which are all that may be"
        return ""

    def _send(self, name: bytes, message: bytes | memoryview) -> bool:
        """Send a message; return False if the client's queue is full or it is not connected."""
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
            peer.disconnected_at = None if connected else peer.disconnected_at or time.monotonic()
        return sent

    def _probe(self, now: float) -> None:
        """Detect clients with lost connections, by sending probes, and those without a job."""
        joined = self._joined([peer.relay.address for peer in self._peers.values()])
        for peer in list(self._peers.values()):
            self._send(peer.identity, plain(PROBE))
            if joined is not None:
                peer.unjoined_since = None if peer.relay.address in joined else peer.unjoined_since or now
            gone_s = 0.0 if peer.disconnected_at is None else now - peer.disconnected_at
            unjoined_s = 0.0 if peer.unjoined_since is None else now - peer.unjoined_since
            if gone_s >= self._grace_s or unjoined_s >= self._join_s or (gone_s and unjoined_s):
                log.info("removed a client of the tunnel: %s", "it is gone" if gone_s else "it is in no job")
                self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        del self._peers[peer.identity], self._by_fd[peer.relay.socket.fileno()]
        self._poller.unregister(peer.relay.socket.fileno())
        peer.relay.close()


def _reachable(address: tuple[str, int]) -> tuple[str, int]:
    """Return the address at which a socket bound to `address` is reachable from its own machine."""
    ip, port = address
    return ("127.0.0.1" if ip == "0.0.0.0" else ip, port)


def _host_of(frame: zmq.Frame) -> str:
    """Return the address that a message came from; "" for a socket file."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
