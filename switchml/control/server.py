"""The aggregator's control plane in one object: gRPC server, job registries, event publisher, tunnel and metrics page
around a data plane.

    controller = Controller(dataplane, bind="127.0.0.1", control_port=0)
    addresses = controller.start()
    ...
    controller.stop()

One background thread runs an event loop that owns all state of this module. An asyncio server rather than a thread
pool, because every rank holds a stream open for the lifetime of its job: 256 ranks would occupy 256 threads.
"""

import asyncio
import ipaddress
import itertools
import logging
import socket
import threading
from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import grpc

from switchml import logs
from switchml.control import metrics, rpc, v2_pb2
from switchml.control.channel import CONTROL_PORT, PEER_TIMEOUT_S, date_problem, keepalive_options, read_key_pair
from switchml.control.connections import IdleConnections, address_of, client_of, is_reached_at
from switchml.control.dataplane import Address, Dataplane
from switchml.control.events import EventPublisher
from switchml.control.jobs import JobRegistry
from switchml.control.mac import mac_of
from switchml.control.quotas import Quotas
from switchml.control.service import JobsService, reachable_address
from switchml.control.sessions import IDLE_TIMEOUT_S, SWITCH_MAC, V1Sessions
from switchml.control.status import Monitor
from switchml.control.v1 import v1_pb2
from switchml.control.v1.service import SessionService, SyncService
from switchml.control.wording import describe
from switchml.errors import ConfigError
from switchml.net.tunnel import TunnelProcess

log = logs.of("switchml.control")

WORTH_A_WARNING = ("peer_lost", "stall")

EXPIRY_PERIOD_S = 0.2
SAMPLE_PERIOD_S = 1.0
STOP_GRACE_S = 1.0
"""Seconds that a stopping server waits until its last messages have reached the agents."""
MAX_REQUEST_BYTES = 128 << 10
"""A rank that comes from another aggregator reports a byte for each of up to 65536 slots."""
IDLE_CONNECTION_MS = 60_000
"""Time after which gRPC closes a connection without a call; a rank's stream is a call."""
HANDSHAKE_MS = 10_000
"""Maximum time until a new connection has completed TLS and HTTP/2 handshakes."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of a running aggregator, as (IPv4, port) each. `tunnel` is the TCP port of the ZeroMQ tunnel, None if
    it is off. `metrics` is None if that page is off.
    """

    control: Address
    data: Address
    events: Address
    tunnel: Address | None
    metrics: Address | None


@dataclass(eq=False)
class Controller:
    """The control plane of one aggregator. `start` and `stop` are called by one thread, once each; the data plane is
    owned by the caller.

    Ports may be 0 for any free one. `events_port` None means the one after the control port, `tunnel_port` None the one
    after that. `metrics_port` None turns the Prometheus page off. `join_timeout_s`: seconds for a job to form unless
    its first rank sets a timeout. A rank that is silent for `peer_timeout_s` is lost. TLS is on when `tls_cert` and
    `tls_key` (PEM files) are given. With `v1`, v1 hosts are served, too, and are sent `mac`: None means the data
    plane's, or that of the interface which has its address. `quotas`: limits per client. `tunnel` opens the ZeroMQ
    tunnel, and so does a `tunnel_port`.

    Raises ConfigError from `start` if a port is in use or a file can't be used.
    """

    dataplane: Dataplane
    _: KW_ONLY
    bind: str = "127.0.0.1"
    control_port: int = CONTROL_PORT
    events_port: int | None = None
    tunnel: bool = False
    tunnel_port: int | None = None
    metrics_port: int | None = None
    peer_timeout_s: float = PEER_TIMEOUT_S
    join_timeout_s: float = 60.0
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    v1: bool = False
    v1_idle_timeout_s: float = IDLE_TIMEOUT_S
    mac: int | None = None
    quotas: Quotas = Quotas()

    def __post_init__(self) -> None:
        try:
            ipaddress.IPv4Address(self.bind)
        except ValueError:
            raise ConfigError(
                f"bind address {self.bind!r}: expected an IPv4 address, 0.0.0.0 for all of them"
            ) from None
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both a certificate and a key: one of the two is missing")
        self._key_pair = read_key_pair(self.tls_cert, self.tls_key) if self.tls_cert and self.tls_key else None
        if self.tls_cert and self.tls_key and (problem := date_problem(self.tls_cert, self.tls_key)):
            log.warning("TLS certificate %s: %s; agents will refuse it", self.tls_cert, problem)
        self._options = [
            *keepalive_options(self.peer_timeout_s),
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MS),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ]
        plane, journal = self.dataplane, self._publish
        shared: dict[str, Any] = {
            "job_ids": itertools.count(1),
            "journal": journal,
            "quotas": self.quotas,
            "is_own": lambda address: is_reached_at(address, list(getattr(plane, "addresses", [plane.address]))),
        }
        self._sessions = V1Sessions(plane, idle_timeout_s=self.v1_idle_timeout_s, **shared)
        self._registry = JobRegistry(
            plane, join_timeout_s=self.join_timeout_s, evict_unused=self._sessions.evict_unused, **shared
        )
        self._monitor = Monitor(self._registry, self._sessions, plane, monotonic(), journal)
        self._jobs = JobsService(self._registry, self._status, self.peer_timeout_s, self._client_of)
        self._idle = IdleConnections(self.quotas.connections)
        self._control: Address = (self.bind, self.control_port)
        self._publisher: EventPublisher | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_reason: asyncio.Future[str] | None = None

    def start(self) -> Addresses:
        """Start serving; returns when the ports are open. Raises ConfigError if they can't be opened."""
        ready: Future[Addresses] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="switchml-controller", daemon=True)
        self._thread.start()
        return ready.result()

    def stop(self, reason: str = "aggregator shut down") -> None:
        """End all jobs, notify every rank of `reason`, and close the ports. May be called twice."""
        if self._thread is None or self._loop is None:
            return
        with suppress(RuntimeError):  # the loop is closed: stopped already
            self._loop.call_soon_threadsafe(self._request_stop, reason)
        self._thread.join()

    # Internal: everything below runs in the event loop's thread.

    def _run(self, ready: Future[Addresses]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except Exception as error:
            if ready.done():
                log.exception("the control plane failed")
            else:
                ready.set_exception(error)

    def _request_stop(self, reason: str) -> None:
        if self._stop_reason is not None and not self._stop_reason.done():
            self._stop_reason.set_result(reason)

    async def _serve(self, ready: Future[Addresses]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(_quiet_about_wakeups)
        self._stop_reason = loop.create_future()
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers(self._services())
        page = tunnel = None
        tickers: list[asyncio.Task[None]] = []
        try:
            control = self._control = (self.bind, self._open_control_port(server))
            self._publisher = EventPublisher(self.bind, self._choose_port(self.events_port, 1))
            self._monitor.events_address = "{}:{}".format(*self._publisher.address)
            if self.tunnel or self.tunnel_port is not None:
                tunnel = await asyncio.to_thread(self._start_tunnel)
                self._monitor.tunnel_addresses = tunnel.addresses
            if self.metrics_port is not None:
                page = metrics.serve(self.bind, self.metrics_port, self._status_from_any_thread)
            await server.start()
            tickers = [
                loop.create_task(self._tick(EXPIRY_PERIOD_S, self._expire)),
                loop.create_task(self._tick(SAMPLE_PERIOD_S, self._sample)),
            ]
            addresses = Addresses(
                control=control,
                data=self.dataplane.address,
                events=self._publisher.address,
                tunnel=tunnel.address if tunnel else None,
                metrics=page.address if page else None,
            )
            if self._key_pair is not None:
                plain = [name for name, at in vars(addresses).items() if at is not None and name != "control"]
                log.warning("TLS protects the control port alone; not encrypted: %s", ", ".join(plain))
            ready.set_result(addresses)
            reason = await self._stop_reason
            self._jobs.deliver(self._registry.shutdown(reason))
            self._sessions.shutdown(reason)
        finally:
            for ticker in tickers:
                ticker.cancel()
            if page is not None:
                page.close()
            # Even if it never started, since its port may be open.
            await server.stop(STOP_GRACE_S if tickers else None)
            if tunnel is not None:
                await asyncio.to_thread(tunnel.close)  # it may be waiting for this loop
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None

    def _services(self) -> tuple[grpc.GenericRpcHandler, ...]:
        services = (rpc.handler(v2_pb2.DESCRIPTOR.services_by_name["Jobs"], self._jobs, malformed=self._malformed),)
        if not self.v1:
            return services
        v1_services = v1_pb2.DESCRIPTOR.services_by_name
        sessions = SessionService(self._sessions, self._v1_place, self._client_of)
        return (
            *services,
            rpc.handler(v1_services["Session"], sessions, malformed=self._malformed),
            rpc.handler(v1_services["Sync"], SyncService(), malformed=self._malformed),
        )

    def _v1_place(self, host: str) -> tuple[str, int]:
        """(IPv4 address, MAC address) to which the v1 host at address `host` sends its packets."""
        if self.dataplane.v1_place is not None:
            return self.dataplane.v1_place
        ip, _ = reachable_address(self.dataplane.address, host)
        return ip, self.mac or self.dataplane.mac or mac_of(ip) or SWITCH_MAC

    def _client_of(self, peer: str) -> str:
        return client_of(address_of(peer), self._control)

    def _malformed(self, peer: str) -> None:
        client = self._client_of(peer)
        self._monitor.malformed += 1
        log.warning("refused a message of %s: it can't be read", client, extra=logs.about(client))

    def _status(self, secret: str, client: str) -> v2_pb2.StatusReply:
        now = monotonic()
        return self._monitor.reply(now, self._registry.shown_to(secret, client, now))

    def _start_tunnel(self) -> TunnelProcess:
        if "zmq" not in self.dataplane.transports:
            raise ConfigError("--tunnel: only the software aggregator (switchml aggregate) has a ZeroMQ tunnel")
        return TunnelProcess(
            self.dataplane.address,
            bind=self.bind,
            port=self._choose_port(self.tunnel_port, 2),
            address_for=self.dataplane.address_for,
            joined=self._joined_from_any_thread,
        )

    def _open_control_port(self, server: grpc.aio.Server) -> int:
        address = f"{self.bind}:{self.control_port}"
        refusal = ConfigError(f"control port {address} can't be opened: is another aggregator running there?")
        # The kernel reports the cause, which gRPC hides.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.bind, self.control_port))
            except OSError as error:
                raise ConfigError(
                    f"control port {address} can't be opened: {error.strerror}; choose another with --control-port"
                ) from error
        try:
            if self._key_pair is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, grpc.ssl_server_credentials([self._key_pair]))
        except RuntimeError as error:
            raise refusal from error
        if port == 0:
            raise refusal
        return port

    def _choose_port(self, port: int | None, offset: int) -> int:
        if port is not None:
            return port
        return self.control_port + offset if self.control_port else 0

    async def _tick(self, period_s: float, work: Any) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                work(monotonic())
            except Exception:  # a failure of one job must not stop the monitoring of others
                log.exception("%s failed", work.__name__)

    def _expire(self, now: float) -> None:
        for job_id, reason in self.dataplane.failed().items():
            self._jobs.deliver(self._registry.fail(job_id, reason))
            self._sessions.fail(job_id, reason)
        self._jobs.deliver(self._registry.expire(now))

    def _sample(self, now: float) -> None:
        self._idle.trim(self._control, self._jobs.rank_connections)
        self._sessions.expire(now)
        self._monitor.sample(now)

    def _publish(self, kind: str, **fields: Any) -> None:
        if kind != "rates":
            level = logging.WARNING if kind in WORTH_A_WARNING else logging.INFO
            log.log(level, "%s", describe({"event": kind, **fields}))
        if self._publisher is not None:
            self._publisher.publish(kind, fields)

    def _status_from_any_thread(self) -> v2_pb2.StatusReply:
        """Status for the metrics page, whose requests are handled by other threads."""

        async def reply() -> v2_pb2.StatusReply:
            return self._status("", "the metrics page")

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(reply(), self._loop).result(timeout=5)

    def _joined_from_any_thread(self, addresses: Collection[Address]) -> list[Address] | None:
        """Those of `addresses` that belong to ranks of jobs; None if the loop is too busy to answer."""

        async def reply() -> list[Address]:
            return list(self._registry.addresses.intersection(addresses))

        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(reply(), self._loop).result(timeout=5)
        except NoAnswer:
            return None


def _quiet_about_wakeups(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Suppress a harmless error: grpc.aio has one wake-up pipe for all loops of a process, so with several, the second
    one finds it empty.
    """
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
