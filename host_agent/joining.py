"""How an agent comes into its job: what was asked for is checked, a way to the aggregator is chosen, the session
begun, and memory shared where that can be.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from host_agent import density, reach
from host_agent import loop as compiled
from switchml.errors import ConfigError, JoinError
from switchml.net import shm
from switchml.net.tunnel import TunnelClient, choose_address
from switchml.protocol import worker as rules
from switchml.protocol.sparse import Sparse

if TYPE_CHECKING:
    from host_agent.agent import HostAgent

log = logging.getLogger("host_agent")

WIRES = {"int32": 0, "int16": 1, "int8": 2}
"""Lanes that floats may travel in (packet.py's codes)."""
DENSE_ONLY = "sparse on: this aggregator is a tree of switches, which add dense tensors only; expected off or auto"
_FEW_LEVELS = 8
"""A warning tells of lanes in which a rank has fewer steps than this on each side of zero: int8 from 16 ranks on."""

Agent = TypeVar("Agent", bound="HostAgent")


@dataclass(frozen=True)
class Asked:
    """What `HostAgent.join` was asked for; its docstring says what each means. None: what the environment says."""

    job: str
    rank: int
    world_size: int
    secret: str | None
    timeout_s: float
    peer_timeout_s: float
    payload_bytes: int
    slots: int
    bind_ip: str | None
    tls_ca: str | None
    transport: str | None
    wire: str | None
    sparse: density.Choice | Sparse | bool | str | None


def join(make: type[Agent], address: str, asked: Asked) -> Agent:
    """An agent of class `make` in its job, at one aggregator. Raises JoinError, ConfigError."""
    from host_agent.warmup import warm_up
    from switchml.control import client

    asked, sparse = _settled(asked)
    impaired = _impaired(asked.rank)
    if impaired is not None and asked.transport == "shm":
        raise ConfigError("transport shm: shared memory loses and reorders nothing; use another one or auto")
    warm_up()  # before joining: nobody should wait for a rank that compiles
    host = address.rpartition(":")[0].strip("[]")
    deadline = time.monotonic() + asked.timeout_s
    try:
        status = client.wait_for(address, tls_ca=asked.tls_ca, timeout_s=asked.timeout_s)
    except JoinError:
        if asked.transport == "zmq":
            raise
        status = None  # joining says better what is wrong
    with contextlib.ExitStack() as undo:
        way = reach.choose(asked.transport, status, host, asked.job, asked.rank, asked.bind_ip)
        undo.callback(way.close)
        data_address, buffer_bytes = way.data_address, reach.buffer_bytes(way)
        tunnel = None
        if asked.transport == "zmq":
            url = choose_address(status.tunnel_addresses, host)
            tunnel = TunnelClient(url, data_address, timeout_s=deadline - time.monotonic())
            undo.callback(tunnel.close)
            data_address, buffer_bytes = tunnel.data_address, min(buffer_bytes, tunnel.receive_buffer_bytes)
        session = client.join(
            address,
            job=asked.job,
            rank=asked.rank,
            world_size=asked.world_size,
            data_address=data_address,
            slots=asked.slots,
            payload_bytes=asked.payload_bytes,
            wire=WIRES[asked.wire],
            receive_buffer_bytes=buffer_bytes,
            transport="udp" if way.name == "auto" else way.name,
            mac=way.mac,
            timeout_s=max(deadline - time.monotonic(), 1.0),
            peer_timeout_s=asked.peer_timeout_s,
            tls_ca=asked.tls_ca,
            **({} if asked.secret is None else {"secret": asked.secret}),
        )
        undo.callback(session.leave)
        way.follow(session.info)
        if session.info.dense_only and sparse.mode == "on":
            raise ConfigError(DENSE_ONLY)
        segment, why_not = _shared_memory(session.info.segment, way.name if impaired is None else "udp")
        undo.pop_all()
    agent = make(
        session,
        way,
        rank=asked.rank,
        world_size=asked.world_size,
        job=asked.job,
        segment=segment,
        tunnel=tunnel,
        impaired=impaired,
        sparse=sparse,
    )
    log.info(
        "job '%s' rank %d of %d: %s%s, %s, %d slots, window %d, %d bytes a packet, aggregator %s:%d",
        asked.job,
        asked.rank,
        asked.world_size,
        agent.transport,
        why_not,
        asked.wire,
        session.info.slots,
        agent.stats()["window"],
        asked.payload_bytes,
        *session.info.data_address,
    )
    _warn_of_few_levels(asked)
    return agent


def _settled(asked: Asked) -> tuple[Asked, density.Choice]:
    """With what the environment says of what was left open. Raises ConfigError for what makes no sense."""
    sparse = density.choice(os.environ.get("SWITCHML_SPARSE") if asked.sparse is None else asked.sparse)
    transport = asked.transport or os.environ.get("SWITCHML_TRANSPORT") or "auto"
    wire = asked.wire or os.environ.get("SWITCHML_WIRE") or "int32"
    rank, world_size = asked.rank, asked.world_size
    if transport not in reach.TRANSPORTS:
        raise ConfigError(f"transport {transport!r}: expected one of {', '.join(reach.TRANSPORTS)}")
    if wire not in WIRES:
        raise ConfigError(f"wire {wire!r}: expected one of {', '.join(WIRES)}")
    if WIRES[wire] and not rules.headroom(world_size)[WIRES[wire]]:
        raise ConfigError(f"wire {wire}: its lanes can't hold the sum of {world_size} ranks; use a wider one")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size}: expected 0 <= rank < world_size")
    return replace(asked, transport=transport, wire=wire), sparse


def _warn_of_few_levels(asked: Asked) -> None:
    levels = rules.headroom(asked.world_size)[WIRES[asked.wire]]
    if WIRES[asked.wire] and levels < _FEW_LEVELS:
        log.warning(
            "job '%s': with %d ranks an %s lane has %d steps on each side of zero for a rank's values; int16 or int32 "
            "lanes are more exact",
            asked.job,
            asked.world_size,
            asked.wire,
            levels,
        )


def _shared_memory(name: str, transport: str) -> tuple[shm.Segment | None, str]:
    """The memory to share with the aggregator, None for UDP and the tunnel, and for the log why not. Raises ConfigError
    if `transport` insists and it can't be had."""
    if transport not in ("auto", "shm"):
        return None, ""
    if not name and transport == "shm":
        raise ConfigError(
            "transport shm: the aggregator offers no shared memory (it is told to lose packets, or is no software "
            "aggregator)"
        )
    if not name:
        return None, " (the aggregator offers no shared memory)"
    try:
        return shm.attach(name), ""
    except ConfigError as error:
        if transport == "shm":
            raise
        return None, f" ({error})"


def _impaired(rank: int) -> compiled.Impaired | None:
    """What SWITCHML_LOSS_RATE and SWITCHML_REORDER_RATE (probabilities) and SWITCHML_SEED ask for, for tests. Raises
    ConfigError."""
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
    return compiled.Impaired(*rates, seed=257 * int(seed) + rank) if any(rates) else None
