"""The gRPC service `switchml.v2.Jobs`: passes requests to the job registry, and its notices to the ranks' streams.

Everything here runs in one event loop, so nothing needs a lock. A rank's stream represents its membership: the handler
of `Join` ends when the rank leaves, when its job is over, or when gRPC detects a broken connection, in which case the
rank is lost.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import grpc

from switchml import logs
from switchml.control import membership, v2_pb2
from switchml.control.agreement import QueueReport, Report
from switchml.control.connections import address_of, closed_by_us
from switchml.control.dataplane import Address
from switchml.control.jobs import JobRegistry, Notice
from switchml.control.membership import Disagreement, Ended, Event, JoinRequest, PeerLeft, PeerLost, Reason, Refused
from switchml.control.messages import address, fields

log = logs.of("switchml.control")

Context = grpc.aio.ServicerContext[Any, Any]

STATUS_OF_REASON = {
    Reason.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SECRET: grpc.StatusCode.PERMISSION_DENIED,
    Reason.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.DUPLICATE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.CAPACITY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC status for each reason of a refusal. UNAVAILABLE is not used: clients interpret it as a temporarily broken
connection."""


class JobsService:
    """Serves v2.proto on a `JobRegistry`. `status(secret, client)` creates the reply of Status, or raises Refused;
    `client_of(peer)` identifies the client of a call.
    """

    def __init__(
        self,
        registry: JobRegistry,
        status: Callable[[str, str], v2_pb2.StatusReply],
        peer_timeout_s: float,
        client_of: Callable[[str], str] = str,
    ):
        self.registry = registry
        self._status = status
        self._peer_timeout_s = peer_timeout_s
        self._client_of = client_of
        self._streams: dict[int, asyncio.Queue[Event | None]] = {}
        self._peer_of: dict[int, str] = {}
        """gRPC's name of the connection of a rank's stream, by ticket."""
        self._ticket_of: dict[str, int] = {}
        self._vanished: dict[int, str] = {}
        self._reporting: asyncio.Task[None] | None = None

    async def Join(self, request: v2_pb2.JoinRequest, context: Context) -> None:
        client = self._client_of(context.peer())
        try:
            joining = from_wire(request, client)
            ticket, notices = self.registry.join(joining, monotonic())
        except Refused as refusal:
            log.warning("refused %s: %s", context.peer(), refusal, extra=logs.about(client))
            await context.abort(STATUS_OF_REASON[refusal.reason], str(refusal))
        # No await between joining and the try: a joined rank must have a stream, so that its loss is detected.
        stream = self._streams[ticket] = asyncio.Queue()
        self._peer_of[ticket] = context.peer()
        token = secrets.token_hex(16)
        self._ticket_of[token] = ticket
        try:
            self.deliver(notices)
            await context.write(v2_pb2.JobEvent(joined=v2_pb2.Joined(token=token)))
            await self._relay(stream, request.data_address.ip, context)
        finally:
            del self._streams[ticket], self._ticket_of[token]
            peer = self._peer_of.pop(ticket)
            # If the rank has left or its job is over, its stream has ended regularly.
            if self.registry.has_started(ticket):
                self._report_lost(ticket, peer)
            elif self.registry.knows(ticket):
                self.deliver(self.registry.lost(ticket, "disconnected", monotonic()))

    async def _relay(self, stream: asyncio.Queue[Event | None], agent_ip: str, context: Context) -> None:
        while True:
            event = await stream.get()
            if event is None:
                return
            if isinstance(event, Refused):
                await context.abort(STATUS_OF_REASON[event.reason], str(event))
            await context.write(to_wire(event, agent_ip))
            if isinstance(event, (PeerLost, Ended, Disagreement)):
                return

    async def Leave(self, request: v2_pb2.LeaveRequest, context: Context) -> v2_pb2.LeaveReply:
        ticket = self._ticket_of.get(request.token)
        if ticket is not None:
            self.deliver(self.registry.leave(ticket, monotonic()))
            self._streams[ticket].put_nowait(None)
        return v2_pb2.LeaveReply()

    async def Waiting(self, request: v2_pb2.WaitingRequest, context: Context) -> v2_pb2.WaitingReply:
        ticket = self._ticket_of.get(request.token)
        if ticket is not None:
            report = Report(tuple(QueueReport(**fields(queue)) for queue in request.queues))
            self.deliver(self.registry.waiting(ticket, request.part, report))
        return v2_pb2.WaitingReply()

    async def Count(self, request: v2_pb2.CountRequest, context: Context) -> v2_pb2.CountReply:
        ticket = self._ticket_of.get(request.token)
        if ticket is not None:
            self.registry.count(ticket, dict(request.calls), dict(request.loading))
        return v2_pb2.CountReply()

    async def Ping(self, request: v2_pb2.PingRequest, context: Context) -> v2_pb2.PingReply:
        return v2_pb2.PingReply()

    async def Status(self, request: v2_pb2.StatusRequest, context: Context) -> v2_pb2.StatusReply:
        try:
            return self._status(request.secret, self._client_of(context.peer()))
        except Refused as refusal:
            await context.abort(STATUS_OF_REASON[refusal.reason], str(refusal))
            raise

    @property
    def rank_connections(self) -> set[Address]:
        """Peer addresses of the connections of ranks' streams."""
        return {address for peer in self._peer_of.values() if (address := address_of(peer)) is not None}

    def deliver(self, notices: Iterable[Notice]) -> None:
        """Put each event on the stream of its rank; events for streams that have ended are dropped."""
        for ticket, event in notices:
            stream = self._streams.get(ticket)
            if stream is not None:
                stream.put_nowait(event)

    def _report_lost(self, ticket: int, peer: str) -> None:
        self._vanished[ticket] = peer
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._report_vanished())

    async def _report_vanished(self) -> None:
        """Report ranks whose streams have ended as lost. The kernel's tables, which show the cause, are long with many
        connections: they are read in a thread, once for all streams that have ended since the last time.
        """
        while self._vanished:
            vanished, self._vanished = self._vanished, {}
            silent = await asyncio.to_thread(closed_by_us, set(vanished.values()))
            for ticket, peer in vanished.items():
                how = f"did not answer for {self._peer_timeout_s:g} s" if peer in silent else "disconnected"
                self.deliver(self.registry.lost(ticket, how, monotonic()))


def from_wire(request: v2_pb2.JoinRequest, client: str) -> JoinRequest:
    values = fields(request)
    # The host's name appears in messages to other users, so it must be short and printable.
    values["host"] = "".join(character for character in request.host[:64] if character.isprintable())
    return JoinRequest(address=values.pop("data_address") or ("", 0), client=client, **values)


def to_wire(event: Event, agent_ip: str) -> v2_pb2.JobEvent:
    """Convert an event to a message for `agent_ip`, on which the address of an aggregator that listens on all
    interfaces depends."""
    if isinstance(event, membership.Started):
        started = vars(event) | {
            "data_address": address(reachable_address(event.data_address, agent_ip)),
            "peers": [v2_pb2.Peer(**vars(peer)) for peer in event.peers],
            "link": v2_pb2.Link(**vars(event.link)) if event.link is not None else None,
            "more_parts": [
                v2_pb2.Part(**vars(part) | {"data_address": address(reachable_address(part.data_address, agent_ip))})
                for part in event.more_parts
            ],
        }
        return v2_pb2.JobEvent(started=v2_pb2.Started(**started))
    if isinstance(event, PeerLost):
        return v2_pb2.JobEvent(peer_lost=v2_pb2.PeerLost(ranks=event.ranks, reason=event.reason))
    if isinstance(event, PeerLeft):
        return v2_pb2.JobEvent(peer_left=v2_pb2.PeerLeft(ranks=event.ranks, reason=event.reason))
    if isinstance(event, Disagreement):
        return v2_pb2.JobEvent(disagreement=v2_pb2.Disagreement(reason=event.reason))
    assert isinstance(event, Ended)
    return v2_pb2.JobEvent(ended=v2_pb2.Ended(reason=event.reason))


def reachable_address(listening: Address, peer_ip: str) -> Address:
    """`listening`, with 0.0.0.0 replaced by the address of the interface on the route to `peer_ip`. Sends no packet."""
    ip, port = listening
    if ip != "0.0.0.0":
        return listening
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer_ip, 9))
            return probe.getsockname()[0], port
        except OSError:
            return listening
