"""Job control in virtual time: the real registry (switchml/control/jobs.py) behind simulated connections with latency,
which break when a process ends and time out after the peer timeout when no message gets through.

Both ends behave as client.py and service.py over gRPC: a rank's stream is its membership, joining an unreachable
aggregator is retried, and a refusal is final.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import simpy

from emulator.networks.faults.plan import FaultPlan
from emulator.networks.netsim.link import NS, Environment, at
from switchml.aggregator.best_effort import BestEffortDataplane
from switchml.aggregator.software import SoftwareDataplane
from switchml.control.agreement import Report
from switchml.control.client import ANSWER_GRACE_S, RETRY_S, AggregatorLost, JobInfo
from switchml.control.jobs import JobRegistry
from switchml.control.membership import Disagreement, Ended, JoinRequest, PeerLeft, PeerLost, Refused, Started
from switchml.control.server import EXPIRY_PERIOD_S
from switchml.errors import JoinError

_MAX_STARTS = 1000
"""Maximum starts of one aggregator in a run, so that generations of different aggregators are distinct."""


Key = tuple[int, int]
"""Generation (number of starts) of an aggregator, and the job's number there."""


class Connection:
    """One rank's stream, with both ends. Messages are delivered in order, and are queued while the host is cut off or
    the receiving process is paused."""

    def __init__(self, control: Control, host: int, session: Session):
        self.control, self.host, self.session = control, host, session
        self.ticket = 0
        self.client_open = self.server_open = True
        self._arrival = {"up": 0, "down": 0}
        self._queued: dict[str, list[Callable[[], None]]] = {"up": [], "down": []}

    def send(self, direction: str, action: Callable[[], None]) -> None:
        """Run `action` at the other end, unless that end is closed by then. `direction`: "up" (to the aggregator) or
        "down"."""
        env = self.control.env
        self._arrival[direction] = max(self._arrival[direction], env.now + self.control.latency_ns())
        at(env, self._arrival[direction], lambda _: self._arrive(direction, action))

    def _arrive(self, direction: str, action: Callable[[], None]) -> None:
        is_stuck = self.host in self.control.cut_hosts or (
            direction == "down" and self.host in self.control.paused_hosts
        )
        if self._queued[direction] or is_stuck:
            self._queued[direction].append(action)
        elif self.client_open if direction == "down" else self.server_open:
            action()

    def release(self) -> None:
        """Deliver messages queued while the host was unreachable or paused."""
        queued, self._queued = self._queued, {"up": [], "down": []}
        for direction, actions in queued.items():
            for action in actions:
                self._arrive(direction, action)

    # -- failure of either end --

    def close_client(self) -> None:
        """Close the client's end, when its process ends or leaves; the aggregator is notified."""
        if self.client_open:
            self.client_open = False
            self.send("up", lambda: self.break_server("disconnected"))

    def break_server(self, how: str) -> None:
        """Close the aggregator's end, on a broken connection."""
        if self.server_open:
            self.server_open = False
            self.control.connection_lost(self, how)
            self.send("down", lambda: self.break_client("the connection to the aggregator broke"))

    def break_client(self, reason: str) -> None:
        """Close the client's end, on a broken connection."""
        if self.client_open:
            self.client_open = False
            self.session.disconnected(reason)


class Session:
    """The client's side of one membership; stands in for client.Session. `joined` succeeds with None or a JoinError."""

    def __init__(self, control: Control, host: int, request: JoinRequest, timeout_s: float):
        self.control, self.host, self.request = control, host, request
        self.joined = control.env.event()
        self._info: JobInfo | None = None
        self.key: Key | None = None
        """Generation of the aggregator and the job's number there, once the job has started."""
        self._deadline_ns = control.env.now + int(timeout_s * NS)
        at(control.env, self._deadline_ns + int(ANSWER_GRACE_S * NS), self._give_up)
        self._callback: Callable[[Any], None] | None = None
        self._early: list[Any] = []
        self._left = False
        self._connection: Connection | None = None
        self._try("")

    # -- the interface that an agent uses --

    @property
    def info(self) -> JobInfo:
        """The job, once it has started."""
        assert self._info is not None, "the job has not begun"
        return self._info

    def events(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        for event in self._early:
            callback(event)

    def waiting(self, report: Report) -> None:
        connection = self._connection
        if not self._left and connection is not None and connection.client_open:
            connection.send("up", lambda: self.control.waiting(connection, report))

    def leave(self) -> None:
        if not self._left:
            self._left = True
            connection = self._connection
            if connection is not None and connection.client_open:
                connection.send("up", lambda: self.control.leave(connection))
                # The stream is cancelled once Leave has been answered; messages before that are no longer read.
                connection.client_open = False

    # -- the process --

    def vanish(self) -> None:
        """Handle the death of the process."""
        self._left = True
        if self._connection is not None:
            self._connection.close_client()

    # -- the connection --

    def _try(self, reason: str) -> None:
        env = self.control.env
        if self._left:
            return
        if env.now >= self._deadline_ns:
            self._decide(JoinError(f"no aggregator answered: {reason}"))
        elif not self.control.is_reachable(self.host):
            at(env, env.now + int(RETRY_S * NS), lambda _: self._try("not reachable"))
        else:
            connection = self._connection = self.control.connect(self.host, self)
            connection.send("up", lambda: self.control.join(connection, self.request))

    def receive(self, event: Any) -> None:
        """Handle a message of the aggregator."""
        if self._left:
            return
        if isinstance(event, Started):
            request = self.request
            self._info = JobInfo(**vars(event), job=request.job, rank=request.rank, world_size=request.world_size)
            self._decide(None)
        elif isinstance(event, Refused):
            if self._connection is not None:
                self._connection.client_open = False
            self._decide(event)
        elif isinstance(event, (PeerLost, PeerLeft, Disagreement)):
            self._report(event)
        elif isinstance(event, Ended) and self._info is None:
            self._decide(JoinError(event.reason))
        elif isinstance(event, Ended):
            self._report(AggregatorLost(event.reason))

    def disconnected(self, reason: str) -> None:
        """Handle the end of the stream: before the job starts, join again; afterwards the aggregator is lost."""
        if self._left:
            return
        if self._info is None:
            at(self.control.env, self.control.env.now + int(RETRY_S * NS), lambda _: self._try(reason))
        else:
            self._report(AggregatorLost(reason))

    def _give_up(self, _: Any) -> None:
        self._decide(JoinError("the aggregator accepted this rank, but its job did not start in time"))

    def _decide(self, error: JoinError | None) -> None:
        if not self.joined.triggered:
            self.joined.succeed(error)

    def _report(self, event: Any) -> None:
        if self._callback is None:
            self._early.append(event)
        else:
            self._callback(event)


class Control:
    """The aggregator's process: data plane and registry, created anew at each start. Callbacks report events known only
    to the aggregator: `started`, a job has started for a rank, and `departed`, a rank "left" or was "lost"."""

    def __init__(
        self,
        env: Environment,
        plan: FaultPlan,
        started: Callable[[Session, Key], None],
        departed: Callable[[Session, str], None],
        aggregator: int = 0,
    ):
        self.env, self._plan, self._started, self._departed = env, plan, started, departed
        self._chooser = random.Random(f"control {plan.seed}" + (f" at {aggregator}" if aggregator else ""))
        self.cut_hosts: set[int] = set()
        self.paused_hosts: set[int] = set()
        self.registry: JobRegistry | None = None
        self.dataplane: SoftwareDataplane | BestEffortDataplane | None = None
        self.generation = aggregator * _MAX_STARTS
        self._connections: list[Connection] = []
        self._streams: dict[int, Connection] = {}
        self._silent_since: dict[int, int] = {}
        self.gave_up: set[int] = set()
        """Hosts that were silent for longer than the peer timeout."""
        self.start()

    def is_reachable(self, host: int) -> bool:
        """Whether a host can connect."""
        return self.registry is not None and host not in self.cut_hosts

    def latency_ns(self) -> int:
        return self._chooser.randint(50_000, 500_000)

    # -- life cycle --

    def start(self) -> None:
        """Start the process."""
        self.generation += 1
        capacity, shared = self._plan.slot_capacity, self._plan.shared_slots
        if shared:
            self.dataplane = BestEffortDataplane(port=0, slot_capacity=capacity, shared_slots=shared)
        else:
            self.dataplane = SoftwareDataplane(port=0, slot_capacity=capacity, shared_memory=False)
        self.registry = JobRegistry(
            self.dataplane, join_timeout_s=self._plan.join_timeout_s, randbelow=self._chooser.randrange
        )
        self.env.process(self._expire(self.generation))

    def crash(self) -> None:
        """Kill the process; the kernel resets its connections."""
        self.stop()
        for connection in self._connections:
            if connection.server_open:
                connection.server_open = False
                connection.send("down", partial(connection.break_client, "the connection to the aggregator broke"))
        self._streams = {}

    def stop(self) -> None:
        if self.dataplane is not None:
            self.dataplane.stop()
        self.dataplane = self.registry = None

    def _expire(self, generation: int) -> Generator[simpy.Event, Any, None]:
        while self.registry is not None and self.generation == generation:
            self._deliver(self.registry.expire(self.env.now / NS))
            yield self.env.timeout(int(EXPIRY_PERIOD_S * NS))

    # -- faults between a host and the aggregator --

    def isolate(self, host: int, among: set[int]) -> None:
        """Cut a host off: `among` is `cut_hosts` or `paused_hosts`. Its pings go unanswered: after the peer timeout
        both ends close the connection, except a paused process."""
        among.add(host)
        since = self._silent_since.setdefault(host, self.env.now)
        if since == self.env.now:
            due = since + int(self._plan.peer_timeout_s * NS) + self.latency_ns()
            at(self.env, due, lambda _: self._give_up(host, since))

    def release(self, host: int, among: set[int]) -> None:
        """Remove a host from `among`, and deliver its queued messages."""
        among.discard(host)
        if host not in self.cut_hosts and host not in self.paused_hosts:
            self._silent_since.pop(host, None)
        for connection in list(self._connections):
            if connection.host == host:
                connection.release()

    def _give_up(self, host: int, since: int) -> None:
        if self._silent_since.get(host) != since:
            return
        self.gave_up.add(host)
        for connection in [c for c in self._connections if c.host == host]:
            connection.break_server(f"did not answer for {self._plan.peer_timeout_s:g} s")
            if host in self.cut_hosts and host not in self.paused_hosts:
                connection.break_client(f"the aggregator did not answer for {self._plan.peer_timeout_s:g} s")

    # -- the part of service.py --

    @property
    def _live(self) -> JobRegistry:
        assert self.registry is not None, "a message has reached an aggregator that is down"
        return self.registry

    def connect(self, host: int, session: Session) -> Connection:
        self._connections = [c for c in self._connections if c.client_open or c.server_open]
        self._connections.append(Connection(self, host, session))
        return self._connections[-1]

    def join(self, connection: Connection, request: JoinRequest) -> None:
        try:
            connection.ticket, notices = self._live.join(request, self.env.now / NS)
        except Refused as error:
            refusal = error  # `error` is unbound after this clause
            connection.server_open = False
            connection.send("down", lambda: connection.session.receive(refusal))
            return
        self._streams[connection.ticket] = connection
        self._deliver(notices)

    def waiting(self, connection: Connection, report: Report) -> None:
        if self.registry is not None:
            self._deliver(self.registry.waiting(connection.ticket, 0, report))

    def leave(self, connection: Connection) -> None:
        connection.server_open = False
        if self._streams.pop(connection.ticket, None) is not None:
            self._departed(connection.session, "left")
            self._deliver(self._live.leave(connection.ticket, self.env.now / NS))

    def connection_lost(self, connection: Connection, how: str) -> None:
        """Handle a stream that ended without a leave message."""
        if self._streams.pop(connection.ticket, None) is not None and self._live.knows(connection.ticket):
            self._departed(connection.session, "lost")
            self._deliver(self._live.lost(connection.ticket, how, self.env.now / NS))

    def _deliver(self, notices: list[tuple[int, Any]]) -> None:
        for ticket, event in notices:
            connection = self._streams.get(ticket)
            if connection is None:
                continue
            if isinstance(event, Started):
                self._started(connection.session, (self.generation, event.job_id))
            connection.send("down", partial(connection.session.receive, event))
            if isinstance(event, (PeerLost, Ended, Disagreement, Refused)):
                del self._streams[ticket]
                connection.server_open = False
