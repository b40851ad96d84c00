"""The aggregator's side of the tunnel."""

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
"""IPv4 and port."""
Joined = Callable[[Collection[Address]], Collection[Address] | None]
"""Which of these addresses are those of ranks that are in a job; None: not known now."""

GRACE_S = 30.0
"""How long a client whose connection broke may take to come back before the server forgets it."""
_OUR_LOOPBACK = "127.1.0.1"
"""Where the server's sockets are if the aggregator is on loopback: agents of this machine and v1 hosts have other
addresses."""
FOLDER, _FILE = "tunnel", "tunnel"
JOIN_S = 10.0
"""How long a client may be in no job; agents join as soon as they are welcome."""
UNJOINED_OF_A_HOST, UNJOINED = 64, 256
"""How many clients of one host, and of all hosts, may be in no job at once: each costs two file descriptors."""
_HANDSHAKE_S = 3.0
"""How long a connection may take to become a ZeroMQ connection."""


class _Peer:
    """One client: its ROUTER identity and its socket towards the aggregator. `disconnected_at`: when its
    connection was missed first; `unjoined_since`: when it was found to be in no job; `is_settled`: it has sent packets,
    so its job runs and its socket is connected to the job's address.
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
    """Relays between ZeroMQ clients and the aggregator's `data_address`, from one thread, until `close`.

    `address_for(sender)`: for an aggregator with several data addresses, that of a rank; called when the rank's first
    packet comes, as its job has started then. `joined(addresses)`: those of them that belong to ranks of a job; a
    client that is in none for `join_s` seconds, or whose connection breaks meanwhile, is forgotten.

    Listens on tcp://bind:port (0: any free port) and on a socket file that only this user can reach, in
    `folder` or one of its own; `addresses` holds both as URLs, `address` the former as (IPv4, port). A client is
    forgotten when it says goodbye, or `grace_s` seconds after its connection broke. Raises ConfigError if the port
    can't be opened.
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
        self._buffers = Buffers()  # before the first client: while it compiles, queues would fill
        self.dropped = 0
        """Batches from the aggregator that were dropped: their client's queue was full or its connection lost."""
        self._context = zmq.Context()
        self._router = new_socket(self._context, zmq.ROUTER)
        self._router.setsockopt(zmq.HANDSHAKE_IVL, int(_HANDSHAKE_S * 1000))
        # Not heartbeats: libzmq aborts when it is time for one on a connection that broke while its queue was full. The
        # kernel notices that nobody takes our probes.
        self._router.setsockopt(zmq.TCP_MAXRT, int(CONNECTION_TIMEOUT_S * 1000))
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that is back before we noticed that it was gone
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
                    log.warning("a client of the tunnel sent %d bytes that are no packets", len(frames[0]))
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
        """Why no other client of this host is taken now; "" if one is."""
        unjoined = Counter(peer.host for peer in self._peers.values() if peer.unjoined_since is not None)
        if unjoined[host] >= UNJOINED_OF_A_HOST:
            return f"{unjoined[host]} clients of {host or 'this machine'} are in no job yet, which are all that may be"
        if unjoined.total() >= UNJOINED:
            return f"{unjoined.total()} clients are in no job yet, which are all that may be"
        return ""

    def _send(self, name: bytes, message: bytes | memoryview) -> bool:
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
            peer.disconnected_at = None if connected else peer.disconnected_at or time.monotonic()
        return sent

    def _probe(self, now: float) -> None:
        """Find clients whose connections are lost, as sending shows, and those that are in no job."""
        joined = self._joined([peer.relay.address for peer in self._peers.values()])
        for peer in list(self._peers.values()):
            self._send(peer.identity, plain(PROBE))
            if joined is not None:
                peer.unjoined_since = None if peer.relay.address in joined else peer.unjoined_since or now
            gone_s = 0.0 if peer.disconnected_at is None else now - peer.disconnected_at
            unjoined_s = 0.0 if peer.unjoined_since is None else now - peer.unjoined_since
            if gone_s >= self._grace_s or unjoined_s >= self._join_s or (gone_s and unjoined_s):
                log.info("forgot a client of the tunnel: %s", "it is gone" if gone_s else "it is in no job")
                self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        del self._peers[peer.identity], self._by_fd[peer.relay.socket.fileno()]
        self._poller.unregister(peer.relay.socket.fileno())
        peer.relay.close()


def _reachable(address: tuple[str, int]) -> tuple[str, int]:
    """Where a socket bound to `address` is reached from its own machine."""
    ip, port = address
    return ("127.0.0.1" if ip == "0.0.0.0" else ip, port)


def _host_of(frame: zmq.Frame) -> str:
    """The address that a message came from; "" for a socket file."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
