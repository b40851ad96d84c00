"""Client of the tunnel, on the agent's side."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import zmq

from switchml import logs
from switchml.errors import JoinError
from switchml.net.tunnel.messages import GOODBYE, HELLO, PACKETS, REFUSED, STRANGER, TURN, WELCOME, WELCOME_BODY, plain
from switchml.net.tunnel.relay import CONNECTION_TIMEOUT_S, PROBE_S, Buffers, Relay, new_socket

log = logs.of("switchml.tunnel")


class TunnelClient:
    """Relays between the agent's UDP socket at `agent` (IPv4, port) and the tunnel at `url`, in one thread, until
    `close`.

    `address` is the destination of the agent's packets, `data_address` their source as seen by the aggregator (both
    IPv4, port), and `receive_buffer_bytes` the smaller of the receive buffers on the path. A broken connection is
    re-established. Raises JoinError if the tunnel does not answer within `timeout_s` seconds, or refuses.
    """

    def __init__(self, url: str, agent: tuple[str, int], *, timeout_s: float = 60.0) -> None:
        self.url = url
        buffers = Buffers()  # before the hello: compilation can take a while
        self._context = zmq.Context()
        self._dealer = new_socket(self._context, zmq.DEALER)
        self._dealer.setsockopt(zmq.HEARTBEAT_IVL, int(PROBE_S * 1000))
        self._dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(CONNECTION_TIMEOUT_S * 1000))
        # A new connection with this name is recognized as the old client's; it can't be guessed. Names chosen by libzmq
        # begin with a zero.
        self._dealer.setsockopt(zmq.ROUTING_ID, b"\1" + os.urandom(16))
        self._relay: Relay | None = None
        try:
            self.data_address, self.receive_buffer_bytes = self._say_hello(timeout_s)
            self._relay = Relay(agent, "127.0.0.1", buffers)
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
        self._thread = threading.Thread(target=self._run, args=(self._relay,), name="switchml-tunnel", daemon=True)
        self._thread.start()

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)`, from the client's thread or immediately, when the server no longer knows this client
        because it was restarted or the connection was lost for too long. Nothing is relayed afterwards.
        """
        with self._lock:
            self._on_lost = callback
            lost = self._lost
        if lost:
            callback(lost)

    def close(self) -> None:
        """Send a goodbye and release all resources. May be called repeatedly."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with suppress(zmq.ZMQError):
            self._dealer.send(plain(GOODBYE), zmq.DONTWAIT)
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
        self._dealer.send(plain(HELLO))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self._dealer.poll(200):  # in slices, so that Ctrl-C is handled
                continue
            answer = self._dealer.recv()
            if answer[:1] == bytes((REFUSED,)):
                raise JoinError(f"tunnel {self.url} refused this rank: {answer[2:].decode(errors='replace')}")
            if answer[:2] == plain(WELCOME) and len(answer) == WELCOME_BODY.size:
                _, _, port, ip, buffer_bytes = WELCOME_BODY.unpack(answer)
                return (socket.inet_ntoa(ip), port), buffer_bytes
        raise JoinError(f"tunnel {self.url} did not answer within {timeout_s:g} s: does the network pass TCP?")

    # Everything below runs in the thread.

    def _run(self, relay: Relay) -> None:
        fd = relay.socket.fileno()
        poller = zmq.Poller()
        poller.register(self._dealer, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        poller.register(fd, zmq.POLLIN)
        waiting: memoryview | None = None
        while not self._stopping:
            ready = dict(poller.poll())
            if ready.get(self._dealer, 0) & zmq.POLLIN:
                self._take_messages(relay)
            if self._lost:  # the callback may have closed all sockets
                return
            if fd in ready:
                waiting = relay.fetch()
            if waiting is None:
                continue
            # While the queue is full, the agent's packets stay in the socket, whose buffer is bounded too.
            try:
                self._dealer.send(waiting, zmq.DONTWAIT)
                waiting = None
            except zmq.Again:
                pass
            poller.modify(self._dealer, zmq.POLLIN if waiting is None else zmq.POLLIN | zmq.POLLOUT)
            poller.modify(fd, zmq.POLLIN if waiting is None else 0)

    def _take_messages(self, relay: Relay) -> None:
        for _ in range(TURN):
            try:
                frame = self._dealer.recv(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            kind = frame.buffer[0] if len(frame) else 0
            if kind == PACKETS:
                relay.deliver(frame)
            elif kind == STRANGER:
                self._give_up("the tunnel's server does not know this rank any more; was it restarted?")
                return

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._lost = reason
            callback = self._on_lost
        log.warning("tunnel %s: %s", self.url, reason)
        if callback is not None:
            callback(reason)


def choose_address(addresses: Iterable[str], host: str) -> str:
    """Return the best of a server's `addresses` for a client here: ipc:// if that file is on this machine, otherwise
    tcp://, at `host` if the server listens on all interfaces. Raises JoinError if there is none.
    """
    addresses = tuple(addresses)
    for url in addresses:
        if url.startswith("ipc://") and os.path.exists(url.removeprefix("ipc://")):
            return url
    for url in addresses:
        if url.startswith("tcp://"):
            return url.replace("//0.0.0.0:", f"//{host}:")
    raise JoinError("the aggregator has no ZeroMQ tunnel: start it with --tunnel, or use another transport")
