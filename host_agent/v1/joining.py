"""Joining a v1 session: options, addresses, the controller's calls, and a first all-reduce which verifies that packets
of this size return and that every rank is counted once."""

import logging
import os
import time
from dataclasses import dataclass

import numpy as np

from host_agent import density, joining, reach
from host_agent.v1 import loop
from host_agent.v1.agent import V1Agent
from switchml import units
from switchml.control.mac import mac_of
from switchml.control.v1 import client
from switchml.errors import CollectiveTimeout, ConfigError, JoinError
from switchml.net import sockets
from switchml.protocol.packet import SIZE_CODE_OF, V1_MAX_WORKERS, V1_SLOTS
from switchml.protocol.worker_v1 import TIMEOUT_S, WorkerV1

log = logging.getLogger("host_agent")

PORT = 4000
"""`worker_port` of the reference's dpdk.cfg. A result is sent to every rank at the port of the rank whose packet was
last, so all have to use the same."""
WINDOW = 256
"""`max_outstanding_packets` of the reference's general.cfg."""
_CHECK_S = 10.0
"""Timeout in seconds for the first results."""
_UNKNOWN_MAC = 0x020000000000
"""Base of the MAC address of a rank on loopback, which has none."""


@dataclass(frozen=True)
class Protocol:
    """The `protocol` option of HostAgent.join. `timeout_s` and `port` apply to v1."""

    version: str = "v2"
    timeout_s: float = TIMEOUT_S
    port: int = PORT


def protocol_of(text: str | None) -> Protocol:
    """Parse "v2", "v1", or "v1:timeout=100ms,port=4000"; None: the value of SWITCHML_PROTOCOL, or v2. Raises
    ConfigError."""
    text = text or os.environ.get("SWITCHML_PROTOCOL") or "v2"
    version, _, options = text.partition(":")
    settings = dict(option.partition("=")[::2] for option in filter(None, options.split(",")))
    if version not in ("v1", "v2") or set(settings) - ({"timeout", "port"} if version == "v1" else set()):
        raise ConfigError(f"protocol {text!r}: expected v2, or v1, as in v1:timeout=100ms,port=4000")
    timeout_s = units.TIME.parse(settings["timeout"], bare=1.0) if "timeout" in settings else TIMEOUT_S
    port = settings.get("port", str(PORT))
    if not port.isdecimal() or not 0 < int(port) < 65536 or not timeout_s > 0:
        raise ConfigError(f"protocol {text!r}: expected a time-out above 0 and a port from 1 to 65535")
    return Protocol(version, timeout_s, int(port))


def join(address: str, options: joining.Options, protocol: Protocol) -> V1Agent:
    """Open a session with the controller at `address` together with the other ranks. Raises ConfigError, JoinError."""
    _check(address, options)
    impaired = joining.impairment(options.rank)
    if impaired is not None and impaired.reorder_rate:
        raise ConfigError("SWITCHML_REORDER_RATE: v1 does not support reordering; expected 0")
    loop.warm_up()  # before the deadline starts, since it may compile
    deadline = time.monotonic() + options.timeout_s
    reach_s = min(options.timeout_s, options.reach_timeout_s)
    port = client.data_port(address, tls_ca=options.tls_ca, timeout_s=reach_s)
    interface = os.environ.get("SWITCHML_INTERFACE")
    ip = options.bind_ip or (reach.address_of(interface) if interface else None)
    ip = ip or reach.own_address(address.rpartition(":")[0], options.job, options.rank)
    sock = reach.bound(ip, protocol.port)
    try:
        sockets.grow_buffers(sock, 4 << 20)
        mac = mac_of(ip) or _UNKNOWN_MAC + options.rank
        reach.announce(sock)  # this project's P4 switch learns this rank's port from it
        host = client.Host(options.rank, options.world_size, ip, mac, options.payload_bytes)
        left_s = options.until(deadline).timeout_s
        switch = client.open_session(address, host, tls_ca=options.tls_ca, timeout_s=left_s), port
        worker = WorkerV1(
            workers=options.world_size,
            window=options.slots or WINDOW,
            payload_bytes=options.payload_bytes,
            timeout_s=protocol.timeout_s,
        )
    except BaseException:
        sock.close()
        raise
    agent = V1Agent(
        worker, sock, switch, job=options.job, rank=options.rank, world_size=options.world_size, impaired=impaired
    )
    try:
        _check_sums(agent, options.payload_bytes, ip, "{}:{}".format(*switch))
    except BaseException:
        agent.leave()
        raise
    log.info(
        f"job '{options.job}' rank {options.rank} of {options.world_size}: v1, {options.payload_bytes} bytes a packet, "
        f"from {ip}:{protocol.port} to {switch[0]}:{switch[1]}"
    )
    if options.rank == 0:
        log.warning(
            f"job '{options.job}': protocol v1 has no epochs, no heartbeat and no tags: packets that the network "
            "reorders or somebody forges make sums wrong unseen; a rank that dies, a switch that restarts, and ranks "
            "that call different all-reduces stall the job"
        )
    return agent


def _check(address: str, options: joining.Options) -> None:
    if not 1 <= options.world_size <= V1_MAX_WORKERS:
        raise ConfigError(f"world size {options.world_size}: v1 has a bit for each of 1 to {V1_MAX_WORKERS} ranks")
    if not 0 <= options.rank < options.world_size:
        raise ConfigError(f"rank {options.rank} of {options.world_size}: expected 0 <= rank < world_size")
    if options.payload_bytes not in SIZE_CODE_OF:
        raise ConfigError(
            f"payload of {options.payload_bytes} bytes: expected one of {', '.join(map(str, SIZE_CODE_OF))}"
        )
    if not 0 <= options.slots <= V1_SLOTS:
        raise ConfigError(f"{options.slots} slots: expected up to {V1_SLOTS}")
    if "," in address:
        raise ConfigError(f"aggregators {address!r}: v1 has one switch and no standbys; expected host:port")
    sparse = density.choice(os.environ.get("SWITCHML_SPARSE") if options.sparse is None else options.sparse)
    for name, value, expected in (
        ("wire", options.wire or os.environ.get("SWITCHML_WIRE"), ("auto", "int32")),
        ("transport", options.transport or os.environ.get("SWITCHML_TRANSPORT"), ("auto", "udp")),
        ("sparse", sparse.mode, ("off", "auto")),
    ):
        if value and value not in expected:
            raise ConfigError(f"{name} {value}: v1 supports only {' and '.join(expected)}")
    asked = options.authenticate or (options.authenticate is None and os.environ.get("SWITCHML_AUTHENTICATE") == "1")
    if asked:
        raise ConfigError("authenticate: v1 packets have no tags; expected protocol v2, or none")


def _check_sums(agent: V1Agent, payload_bytes: int, ip: str, switch: str) -> None:
    """Verify the sum of a packet in which each rank has a lane of its own. Raises JoinError."""
    lanes = np.zeros(payload_bytes // 4, np.int32)
    lanes[agent.rank] = 1
    try:
        sums = agent.allreduce(lanes, timeout_s=_CHECK_S)[: agent.world_size]
    except CollectiveTimeout as error:
        raise JoinError(
            f"packets of {payload_bytes} bytes from {ip} to {switch} had no result within {_CHECK_S:g} s: the switch "
            "may be out of reach, or take smaller ones only (without a folded pipeline payload_bytes=256)"
        ) from error
    if (sums != 1).any():
        raise JoinError(
            f"a first sum counts ranks {np.flatnonzero(sums != 1).tolist()} not exactly once; expected ranks with "
            "addresses of their own, and nobody else's packets at the switch"
        )
