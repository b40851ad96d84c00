"""A rank's end of the v1 services: opens its session at p4app-switchML's controller, or at this project's.

The sequence is that of the reference's hosts (client_lib/src/backends/dpdk/dpdk_backend.cc): all ranks call Broadcast,
with which rank 0 distributes the session's id; rank 0 calls UdpSession, which resets the switch, and then Barrier, the
others Barrier and then UdpSession; all call Barrier once more.
"""

import time
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import grpc

from switchml.control import client, rpc
from switchml.control.channel import PEER_TIMEOUT_S, open_channel, split_address, words_of
from switchml.control.v1 import v1_pb2
from switchml.errors import JoinError
from switchml.protocol.packet import SIZE_CODE_OF

DATA_PORT = 48864
"""UDP port of the reference's switch for packets."""
_SHORTEST_CALL_S = 0.1


@dataclass(frozen=True)
class Host:
    """A rank's data for the controller, which identifies it by its addresses."""

    rank: int
    workers: int
    ip: str
    mac: int
    payload_bytes: int


def data_port(address: str, *, tls_ca: str | Path | None = None, timeout_s: float) -> int:
    """The UDP port for packets at the aggregator whose control port is `address`: 48864, except for a software
    aggregator of this project, which reports its port. Waits for one that has not started yet. Raises JoinError."""
    try:
        status = client.wait_for(address, tls_ca=tls_ca, timeout_s=timeout_s)
    except JoinError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
            return DATA_PORT  # p4app-switchML's controller
        raise
    return DATA_PORT if status.dataplane.mac else status.dataplane.address.port


def open_session(address: str, host: Host, *, tls_ca: str | Path | None = None, timeout_s: float) -> str:
    """Open a session together with all other ranks, which call this at the same time; returns the switch's IPv4
    address. Raises JoinError."""
    target = "{}:{}".format(*split_address(address))
    deadline = time.monotonic() + timeout_s
    with open_channel(target, PEER_TIMEOUT_S, tls_ca) as channel:
        session = rpc.client(channel, v1_pb2.DESCRIPTOR.services_by_name["Session"])
        sync = rpc.client(channel, v1_pb2.DESCRIPTOR.services_by_name["Sync"])

        def call(method: Any, request: Any) -> Any:
            return method(request, timeout=max(deadline - time.monotonic(), _SHORTEST_CALL_S))

        def barrier() -> None:
            call(sync.Barrier, v1_pb2.BarrierRequest(num_workers=host.workers))

        try:
            own = time.time_ns() if host.rank == 0 else 0
            broadcast = v1_pb2.BroadcastRequest(value=own, rank=host.rank, num_workers=host.workers, root=0)
            request = v1_pb2.UdpSessionRequest(
                session_id=call(sync.Broadcast, broadcast).value,
                rank=host.rank,
                num_workers=host.workers,
                mac=host.mac,
                ipv4=int(IPv4Address(host.ip)),
                packet_size=v1_pb2.PacketSize.Name(SIZE_CODE_OF[host.payload_bytes]),
            )
            if host.rank:
                barrier()
            answer = call(session.UdpSession, request)
            if not host.rank:
                barrier()
            if answer.ipv4:
                barrier()
        except grpc.RpcError as error:
            raise JoinError(_reason(error, target, host, timeout_s)) from error
    if not answer.ipv4:  # the reference has no other way to refuse
        raise JoinError(
            f"the controller at {target} refused rank {host.rank} of {host.workers}; its log says why (it takes up to "
            "32 ranks, with MAC addresses that its ports file knows)"
        )
    return str(IPv4Address(answer.ipv4))


def _reason(error: grpc.RpcError, target: str, host: Host, timeout_s: float) -> str:
    who = f"rank {host.rank} of {host.workers}"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return f"the aggregator at {target} does not serve v1; expected one started with --v1, or protocol v2"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return (
            f"{who} waited {timeout_s:g} s at {target} for the others; expected {host.workers} ranks that join with "
            "this world size, none of them refused"
        )
    return f"{target} refused {who}: {words_of(error)}"
