"""Joining a job: check the options, choose a transport to the aggregator, begin the session, and share memory where
possible.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from host_agent import density, loop, reach
from host_agent.core import DENSE_ONLY
from host_agent.loop import warm_up
from switchml import units
from switchml.control import client
from switchml.control.membership import MAX_PARTS, Resumption
from switchml.control.secret import is_beyond_loopback
from switchml.control.v2_pb2 import StatusReply
from switchml.errors import ConfigError, JoinError
from switchml.net import shm
from switchml.net.tunnel import TunnelClient, choose_address
from switchml.protocol.authentication import TAG_BYTES, packet_rows
from switchml.protocol.fixedpoint import headroom
from switchml.protocol.packet import HEADER_BYTES, MAX_SPARSE_BYTES
from switchml.protocol.sizes import AGENT_WIRES, AUTO, EXACT, WIRES, lanes_of
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker_state import QUEUES

log = logging.getLogger("host_agent")

_SHORTEST_JOIN_S = 1.0
LONGEST_DEADLINE_S = 3600.0
_FEW_LEVELS = 8
"""Minimum number of quantization steps on each side of zero; lanes with fewer cause a warning: int8 from 16 ranks on.
"""


@dataclass(frozen=True)
class Options:
    """The options of `HostAgent.join`, which documents each. None: from the environment, or the default."""

    job: str
    rank: int
    world_size: int
    secret: str | None
    timeout_s: float
    reach_timeout_s: float
    peer_timeout_s: float
    payload_bytes: int
    slots: int
    bind_ip: str | None
    tls_ca: str | None
    transport: str | None
    wire: str | None
    sparse: density.Choice | Sparse | bool | str | None
    authenticate: bool | None
    queues: int = QUEUES
    """Number of queues of collectives that the rank requests (docs/protocol.md, section 11)."""
    failover_s: float = 0.0
    """Limit in seconds for failing over when the aggregator is lost."""
    deadline_s: float = 0.0
    """Seconds that sums called with `late` wait for a rank (section 13); 0: the job has no deadline."""
    has_standby: bool = False
    """Whether the job may fail over to another aggregator, where packets may have to be smaller."""
    retry_s: float = math.inf
    """Seconds to wait for an aggregator that is lost before the job has started."""
    resumption: Resumption | None = None
    """State of a job that fails over (section 12), else None."""
    is_given_up: Callable[[], bool] = lambda: False
    """Polled while waiting for the other ranks: whether to stop waiting."""

    def until(self, deadline: float, **changes: Any) -> Options:
        """Copy with `changes` and the time left until `deadline`, at least a second."""
        return replace(self, timeout_s=max(deadline - time.monotonic(), _SHORTEST_JOIN_S), **changes)

    def client_options(self) -> dict[str, Any]:
        """Arguments of every `client.join`, whatever the job."""
        secret = {} if self.secret is None else {"secret": self.secret}
        return {"peer_timeout_s": self.peer_timeout_s, "tls_ca": self.tls_ca, **secret}


@dataclass(frozen=True)
class JoinedPart:
    """Resources of one part of a job that an agent needs to start. `info`: of this part, which has the number `part`;
    `segment`: memory shared with the aggregator, if any; `tunnel`: of transport zmq; `impaired`: loss and reordering
    for tests."""

    options: Options
    session: client.Session
    info: client.JobInfo
    transport: reach.Transport
    segment: shm.Segment | None
    tunnel: TunnelClient | None
    impaired: loop.Impaired | None
    sparse: density.Choice
    part: int = 0

    @property
    def sums_halves(self) -> bool:
        """Whether half precision is summed unconverted: by default, if the aggregator supports it."""
        return self.info.halves and self.options.wire == AUTO

    @property
    def transport_name(self) -> str:
        if self.segment is not None:
            return "shm"
        return "udp" if self.transport.name == "auto" else self.transport.name

    @property
    def key(self) -> bytes:
        """Key with which packets are signed; empty with shared memory, whose writers are known."""
        return self.info.key if self.segment is None else b""

    @property
    def aggregator(self) -> tuple[str, int]:
        """Address to which datagrams are sent."""
        return self.transport.aggregator if self.tunnel is None else self.tunnel.address

    def packet_memory(self) -> dict[str, Any]:
        """Packet buffers of the worker, as arguments of worker.Worker."""
        info = self.info
        if self.segment is not None:
            packets, most = shm.packets_of(self.segment, self.options.rank), self.segment.data_bytes
            return {"packets": packets, "large_bytes": most if most > shm.DATA_BYTES else 0, "lossless": True}
        if self.key:
            return {
                "packets": packet_rows(2 * info.slots, HEADER_BYTES + info.payload_bytes, TAG_BYTES),
                "wide": packet_rows(2 * info.slots, MAX_SPARSE_BYTES, TAG_BYTES),
                "trailer_bytes": TAG_BYTES,
            }
        return {
            "packets": self.transport.packet_rows(info.slots, info.payload_bytes),
            "wide": self.transport.sparse_rows(info.slots),
        }


def join(address: str, options: Options, most_parts: int = MAX_PARTS) -> list[JoinedPart]:
    """Join a job at one aggregator: its parts (docs/protocol.md, section 7), which share a session. Raises JoinError,
    ConfigError."""
    options, sparse = _resolved(options)
    transport_name, wire = options.transport or "auto", options.wire or AUTO
    impaired = impairment(options.rank)
    if impaired is not None and transport_name == "shm":
        raise ConfigError("transport shm: shared memory can't lose or reorder packets; use another one or auto")
    # A suspended rank would read results from memory that is overwritten by later ones.
    may_share = impaired is None and not options.deadline_s
    host = address.rpartition(":")[0].strip("[]")
    deadline = time.monotonic() + options.timeout_s
    reach_s = min(options.timeout_s, options.reach_timeout_s)
    try:
        status = client.wait_for(address, tls_ca=options.tls_ca, timeout_s=reach_s)
    except JoinError:
        if transport_name == "zmq" or time.monotonic() >= deadline - options.timeout_s + reach_s - client.RETRY_S:
            raise
        status = None  # the error of joining is more specific
    reached = time.monotonic()
    if options.resumption is None:
        warm_up()  # before joining, since no rank should wait for another one's compilation
    deadline += time.monotonic() - reached
    with contextlib.ExitStack() as undo:
        transport = reach.choose(transport_name, status, host, options.job, options.rank, options.bind_ip)
        undo.callback(transport.close)
        transports = [transport]
        for _ in range(1, _parts(transport, status, host, 1 if options.deadline_s else most_parts)):
            transports.append(transport.another())
            undo.callback(transports[-1].close)
        data_address, buffer_bytes = transport.data_address, min(map(reach.buffer_bytes, transports))
        tunnel = None
        if transport_name == "zmq" and status is not None:
            url = choose_address(status.tunnel_addresses, host)
            left_s = min(deadline - time.monotonic(), options.reach_timeout_s)
            tunnel = TunnelClient(url, data_address, timeout_s=left_s)
            undo.callback(tunnel.close)
            data_address, buffer_bytes = tunnel.data_address, min(buffer_bytes, tunnel.receive_buffer_bytes)
        # With features that large packets do not support, a job has more in flight with the default number of slots.
        gains = wire in (AUTO, "int32") and sparse.mode == "off" and not options.has_standby
        is_large = gains and may_share and transport_name in ("auto", "shm") and _can_share_memory(status)
        session = client.join(
            address,
            job=options.job,
            rank=options.rank,
            world_size=options.world_size,
            data_address=data_address,
            more_addresses=[other.data_address for other in transports[1:]],
            slots=options.slots,
            payload_bytes=options.payload_bytes,
            wire=WIRES[lanes_of(wire)],
            receive_buffer_bytes=buffer_bytes,
            transport="udp" if transport.name == "auto" else transport.name,
            mac=transport.mac,
            authenticate=bool(options.authenticate),
            queues=options.queues,
            resumption=options.resumption,
            deadline_s=options.deadline_s,
            large_packets=is_large,
            is_given_up=options.is_given_up,
            timeout_s=options.until(deadline).timeout_s,
            retry_s=options.retry_s,
            **options.client_options(),
        )
        undo.callback(session.leave)
        if session.info.dense_only and sparse.mode == "on":
            raise ConfigError(DENSE_ONLY)
        joined = []
        for number, (info, part) in enumerate(zip(session.info.parts, transports, strict=False)):
            part.follow(info)
            by = "shm" if is_large else transport.name if may_share else "udp"
            segment, why_not = _shared_memory(info.segment, by)
            joined.append(JoinedPart(options, session, info, part, segment, tunnel, impaired, sparse, number))
        undo.pop_all()
    for unused in transports[len(joined) :]:  # another rank, or the aggregator, supports fewer parts
        unused.close()
    info, parts = session.info, f" in each of {len(joined)} parts" if len(joined) > 1 else ""
    log.info(
        f"job '{options.job}' rank {options.rank} of {options.world_size}: {joined[0].transport_name}{why_not}, "
        f"{options.wire}, {info.slots} slots, window {info.window}{parts}, {options.payload_bytes} bytes a "
        f"packet, aggregator {', '.join('{}:{}'.format(*part.data_address) for part in info.parts)}"
    )
    if options.resumption is None:
        _warn_of_few_levels(options, wire)
    _warn_of_open_key(options, host)
    return joined


def close(joined: list[JoinedPart]) -> None:
    """Undo `join`."""
    for part in joined:
        if part.tunnel is not None:
            part.tunnel.close()
        part.transport.close()
    joined[0].session.drop()


def deadline_s() -> float:
    """Parse SWITCHML_DEADLINE, a time such as 50ms; 0 if it is not set. Raises ConfigError."""
    try:
        return units.TIME.parse(os.environ.get("SWITCHML_DEADLINE") or "0", bare=1.0)
    except ConfigError as error:
        raise ConfigError(f"SWITCHML_DEADLINE: {error}") from None


def check_deadline(options: Options, address: str, *, is_v1: bool, is_node: bool) -> None:
    """Check that a job with a deadline uses no option that is incompatible with deadlines. Raises ConfigError."""
    if not 0 < options.deadline_s < LONGEST_DEADLINE_S:
        raise ConfigError(f"deadline {options.deadline_s:g} s: expected above 0, and below {LONGEST_DEADLINE_S:g} s")
    options, sparse = _resolved(options)
    for what, is_asked in (
        ("protocol v1", is_v1),
        ("hierarchy node", is_node),
        ("several aggregators, or standbys", "," in address),
        ("wire exact", options.wire == EXACT),
        ("sparse on", sparse.mode == "on"),
        ("transport shm", options.transport == "shm"),
    ):
        if is_asked:
            raise ConfigError(f"deadline {options.deadline_s:g} s: it can't be combined with {what}")


def _parts(transport: reach.Transport, status: StatusReply | None, host: str, most: int) -> int:
    """Number of parts into which this rank can divide its work: up to the aggregator's limit and its own cores. One if
    packets use shared memory, a tunnel, or frames."""
    by_udp = transport.name == "udp" or (transport.name == "auto" and is_beyond_loopback(host))
    if status is None or not by_udp:
        return 1
    return max(1, min(status.dataplane.most_parts, most, len(os.sched_getaffinity(0))))


def _resolved(options: Options) -> tuple[Options, density.Choice]:
    """Fill unspecified options from the environment. Raises ConfigError for invalid ones."""
    sparse = density.choice(os.environ.get("SWITCHML_SPARSE") if options.sparse is None else options.sparse)
    transport = options.transport or os.environ.get("SWITCHML_TRANSPORT") or "auto"
    wire = options.wire or os.environ.get("SWITCHML_WIRE") or AUTO
    rank, world_size = options.rank, options.world_size
    if transport not in reach.TRANSPORTS:
        raise ConfigError(f"transport {transport!r}: expected one of {', '.join(reach.TRANSPORTS)}")
    if wire not in AGENT_WIRES:
        raise ConfigError(f"wire {wire!r}: expected one of {', '.join(AGENT_WIRES)}")
    if wire == EXACT and sparse.mode == "on":
        raise ConfigError("sparse on: exact sums are dense; expected off or auto, or another wire")
    lanes = WIRES[lanes_of(wire)]
    if lanes and not headroom(world_size)[lanes]:
        raise ConfigError(f"wire {wire}: its lanes can't hold the sum of {world_size} ranks; use a wider one")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size}: expected 0 <= rank < world_size")
    authenticate = options.authenticate
    if authenticate is None:
        text = os.environ.get("SWITCHML_AUTHENTICATE") or "0"
        if text not in ("0", "1"):
            raise ConfigError(f"SWITCHML_AUTHENTICATE={text}: expected 0 or 1")
        authenticate = text == "1"
    return replace(options, transport=transport, wire=wire, authenticate=authenticate), sparse


def _warn_of_few_levels(options: Options, wire: str) -> None:
    lanes = WIRES[lanes_of(wire)]
    levels = headroom(options.world_size)[lanes]
    if lanes and levels < _FEW_LEVELS:
        log.warning(
            f"job '{options.job}': with {options.world_size} ranks an {wire} lane has {levels} steps on each side of "
            "zero for a rank's values; int16 or int32 lanes are more exact"
        )


def _warn_of_open_key(options: Options, host: str) -> None:
    is_encrypted = options.tls_ca or os.environ.get("SWITCHML_TLS_CA")
    if options.authenticate and not is_encrypted and is_beyond_loopback(host):
        log.warning(
            f"job '{options.job}': without TLS (SWITCHML_TLS_CA) the key that authenticates its packets is sent to "
            f"{host} unencrypted, and can be read in transit"
        )


def _can_share_memory(status: StatusReply | None) -> bool:
    if status is None or not status.dataplane.memory:
        return False
    with contextlib.suppress(ConfigError):
        shm.attach(status.dataplane.memory)
        return True
    return False


def _shared_memory(name: str, transport: str) -> tuple[shm.Segment | None, str]:
    """Attach the memory shared with the aggregator; returns (None, reason for the log) if packets use another
    transport. Raises ConfigError if `transport` requires shared memory that is not available."""
    if transport not in ("auto", "shm"):
        return None, ""
    if not name and transport == "shm":
        raise ConfigError(
            "transport shm: the aggregator offers no shared memory (it simulates packet loss, or is not a "
            "software aggregator)"
        )
    if not name:
        return None, " (the aggregator offers no shared memory)"
    try:
        return shm.attach(name), ""
    except ConfigError as error:
        if transport == "shm":
            raise
        return None, f" ({error})"


def impairment(rank: int) -> loop.Impaired | None:
    """Impairment described by SWITCHML_LOSS_RATE and SWITCHML_REORDER_RATE (probabilities) and SWITCHML_SEED, for
    tests; None without any. Raises ConfigError."""
    rates = []
    for name in ("SWITCHML_LOSS_RATE", "SWITCHML_REORDER_RATE"):
        text = os.environ.get(name) or "0"
        try:
            rates.append(float(text))
        except ValueError:
            rates.append(-1.0)
        if not 0 <= rates[-1] < 1:
            raise ConfigError(f"{name}={text}: expected a probability, at least 0 and less than 1")
    seed = os.environ.get("SWITCHML_SEED") or "0"
    if not seed.isdecimal():
        raise ConfigError(f"SWITCHML_SEED={seed}: expected a number")
    loss_rate, reorder_rate = rates
    return loop.Impaired(loss_rate, reorder_rate, 257 * int(seed) + rank) if any(rates) else None
