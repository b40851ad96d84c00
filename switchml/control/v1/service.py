"""The gRPC services `switchml_proto.Session` and `switchml_proto.Sync`, for unchanged p4app-switchML hosts.

The calls of a host: all ranks call Broadcast (root 0 sends the session id), rank 0 calls UdpSession and then Barrier,
the others Barrier and then UdpSession, all call Barrier once more, and packets are sent. Neither Barrier nor Broadcast
names the session, so callers are grouped in the order of their calls. Two sessions of the same size that start at the
very same moment can be mixed up; the original mixes up sessions of any size.

Unlike in the original, errors are gRPC statuses with text instead of zeroed answers, and a host that disconnects while
it waits is removed from its group.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from ipaddress import IPv4Address
from time import monotonic
from typing import NoReturn

import grpc

from switchml import logs
from switchml.control.membership import Refused
from switchml.control.service import STATUS_OF_REASON, Context
from switchml.control.sessions import V1Sessions
from switchml.control.v1 import v1_pb2
from switchml.protocol.packet import V1_MAX_WORKERS

log = logs.of("switchml.control.v1")


class SessionService:
    """Opens sessions. `place_for(ip)` returns the IPv4 and MAC address to send to a host, `client_of(peer)` the client
    of a call."""

    def __init__(
        self, sessions: V1Sessions, place_for: Callable[[str], tuple[str, int]], client_of: Callable[[str], str] = str
    ):
        self._sessions = sessions
        self._client_of = client_of
        self._place_for = place_for

    async def UdpSession(self, request: v1_pb2.UdpSessionRequest, context: Context) -> v1_pb2.UdpSessionResponse:
        client = self._client_of(context.peer())
        try:
            self._sessions.open(
                request.session_id,
                request.rank,
                request.num_workers,
                request.packet_size,
                request.ipv4,
                request.mac,
                monotonic(),
                client,
            )
        except Refused as refusal:
            log.warning("refused %s: %s", context.peer(), refusal, extra=logs.about(client))
            await context.abort(STATUS_OF_REASON[refusal.reason], str(refusal))
        ip, mac = self._place_for(str(IPv4Address(request.ipv4)))
        return v1_pb2.UdpSessionResponse(session_id=request.session_id, mac=mac, ipv4=int(IPv4Address(ip)))

    async def RdmaSession(self, request: v1_pb2.RdmaSessionRequest, context: Context) -> NoReturn:
        # The original's hosts read the answer regardless of the status; they get zeros.
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "RDMA is not served here: use the UDP (DPDK) backend")


class Group:
    """Callers that wait for each other, or for the root of a broadcast. `members` maps each to the future that its call
    awaits."""

    def __init__(self, size: int):
        self.size = size
        self.members: dict[object, asyncio.Future[int]] = {}
        self.value: int | None = None

    async def wait(self, member: object, value: int | None) -> int:
        """Join with the group's value, or None, and return the value once there is one. A caller that is cancelled
        while it waits is removed."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.members[member] = future
        self.value = self.value if value is None else value
        if self.value is not None:
            for waiting in self.members.values():
                if not waiting.done():
                    waiting.set_result(self.value)
        try:
            return await future
        except asyncio.CancelledError:
            if self.value is None:
                del self.members[member]
            raise


class SyncService:
    """Barriers are grouped by num_workers, broadcasts by num_workers and root. As in the original, a broadcast answers
    its root at once, and the others as soon as the root has called."""

    def __init__(self) -> None:
        self._barriers: dict[int, list[Group]] = defaultdict(list)
        self._broadcasts: dict[tuple[int, int], list[Group]] = defaultdict(list)

    async def Barrier(self, request: v1_pb2.BarrierRequest, context: Context) -> v1_pb2.BarrierResponse:
        await self._check_workers(request.num_workers, context)
        # Callers are anonymous: each call is a member of its own.
        await self._wait(self._barriers[request.num_workers], request.num_workers, object(), is_barrier=True)
        return v1_pb2.BarrierResponse()

    async def Broadcast(self, request: v1_pb2.BroadcastRequest, context: Context) -> v1_pb2.BroadcastResponse:
        await self._check_workers(request.num_workers, context)
        for what, rank in (("rank", request.rank), ("root", request.root)):
            if rank >= request.num_workers:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"{what} {rank} of {request.num_workers}: expected 0 to {request.num_workers - 1}",
                )
        value = request.value if request.rank == request.root else None
        groups = self._broadcasts[request.num_workers, request.root]
        if request.rank == request.root:  # called before all have received its last value: it has restarted
            groups[:] = [group for group in groups if group.value is None]
        return v1_pb2.BroadcastResponse(value=await self._wait(groups, request.num_workers, request.rank, value))

    @staticmethod
    async def _check_workers(workers: int, context: Context) -> None:
        if not 1 <= workers <= V1_MAX_WORKERS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"num_workers {workers}: expected 1 to {V1_MAX_WORKERS}"
            )

    @staticmethod
    async def _wait(
        groups: list[Group], size: int, member: object, value: int | None = None, *, is_barrier: bool = False
    ) -> int:
        """Wait in the first group that lacks this member and is not complete: a barrier until it is complete, a
        broadcast until its root has called."""
        group = next((group for group in groups if member not in group.members and len(group.members) < size), None)
        if group is None:
            group = Group(size)
            groups.append(group)
        if is_barrier and len(group.members) + 1 == size:
            value = 0
        try:
            return await group.wait(member, value)
        finally:
            if group in groups and len(group.members) in (0, size):
                groups.remove(group)
