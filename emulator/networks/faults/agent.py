"""An agent in virtual time: the real core (host_agent/core.py), run on every packet, timer or call."""

import itertools
from collections.abc import Callable

from emulator.networks.faults.checks import Violation
from emulator.networks.faults.clock import TRUE, Clock
from emulator.networks.faults.control import Session
from emulator.networks.netsim.link import NS, Environment
from emulator.networks.netsim.packets import Packet
from emulator.networks.netsim.rank import NEVER, Alarm, SteppedWorker
from host_agent.calls import Request
from host_agent.core import Core, new_worker
from switchml.control.client import SessionEvent
from switchml.errors import JobError
from switchml.protocol.worker import Worker

_MAX_TURNS = 1000
"""Maximum turns per wake-up. An agent needs a few; more indicate a livelock, with each turn creating
work for the next."""


class VirtualAgent:
    """An agent in virtual time. `send(packet)` transmits a datagram, with `endpoint` as its source. `inbox_packets`:
    capacity of the receive buffer; `clock`: its host's; `deadline_s`: the job's. While `is_stopped` the agent does
    nothing."""

    def __init__(
        self,
        env: Environment,
        session: Session,
        *,
        rank: int,
        world_size: int,
        job: str,
        endpoint: int,
        send: Callable[[Packet], object],
        inbox_packets: int,
        exact: bool = False,
        clock: Clock = TRUE,
        deadline_s: float = 0.0,
    ):
        self.env, self.session, self._send, self._clock = env, session, send, clock
        self._inbox: list[Packet] = []
        self._inbox_packets = inbox_packets
        self._is_working = False
        self.is_stopped = self.is_over = self._is_paused = False
        worker = new_worker(session.info, rank, world_size, deadline_s=deadline_s)
        self.core = Core(
            worker,
            session.info,
            job=job,
            rank=rank,
            world_size=world_size,
            wake=lambda: None,
            exact=exact,
            report=lambda report: self.session.waiting(report),
        )
        self._turns = SteppedWorker(worker, endpoint, rank)
        self._alarm = Alarm(env, self.work)

    @property
    def endpoint(self) -> int:
        """Source address of its datagrams."""
        return self._turns.job

    @endpoint.setter
    def endpoint(self, endpoint: int) -> None:
        self._turns.job = endpoint

    @property
    def _now(self) -> int:
        """Time of its own clock in ns."""
        return self._clock.to_local(self.env.now)

    @property
    def _now_s(self) -> float:
        return self._now / NS

    def submit(self, request: Request) -> None:
        self.core.submit(request, self._now_s)
        self.work()

    def receive(self, packet: Packet) -> None:
        """Handle an arriving datagram."""
        if len(self._inbox) < self._inbox_packets and not self._is_paused:
            self._inbox.append(packet)
            self.work()

    def stop(self) -> None:
        """Stop as by SIGSTOP."""
        self.is_stopped = True

    def cont(self) -> None:
        """Continue as by SIGCONT."""
        self.is_stopped = False
        self.work()

    def leave(self) -> None:
        """Leave the job; pending calls fail."""
        self.core.fail(JobError(f"rank {self.core.rank} left job '{self.core.job}'"))
        self.work()
        self.session.leave()

    def vanish(self) -> None:
        """Handle the death of the process."""
        self.is_over = True
        self._alarm.set(None)

    def pause(self) -> None:
        """Stop sending packets; arriving packets are lost."""
        self._is_paused = True
        self._inbox = []

    def resume(self) -> None:
        """Continue after `pause`."""
        self._is_paused = False
        self.work()

    def migrate(self, session: Session, worker: Worker, agreed: bytes) -> None:
        """While paused: switch to another aggregator, with a new worker of the job there."""
        self.core.worker.resume(worker, agreed, self._now)
        self.session = session
        self.core.moved(session.info)

    def on_event(self, event: SessionEvent) -> None:
        """Handle an event of the session."""
        self.core.on_event(event, self._now_s)
        self.work()

    def work(self) -> None:
        """One wake-up of the agent's thread: run turns until no work is left."""
        if self.is_over or self.is_stopped or self._is_working or (self._is_paused and self.core.error is None):
            return
        core = self.core
        self._is_working = True
        try:
            for turn in itertools.count():
                if turn == _MAX_TURNS:
                    raise Violation(f"livelock: rank {core.rank} of {core.job} still has work after {turn:,} turns")
                if not core.start_queued(self._now_s):
                    self.vanish()
                    if core.end():
                        self.session.leave()
                    return
                calls = core.calls
                packets, self._inbox = self._inbox, []
                if not core.is_stopped:
                    for packet in self._turns.turn(packets, self._now):
                        self._send(packet)
                done = self._turns.completed > core.completed
                core.finish_turn(self._now_s)
                # Callbacks may have submitted calls, and the core may have failed. (Queued calls may have to wait.)
                if not (done or core.calls > calls or core.error is not None):
                    break
        finally:
            self._is_working = False
        due = NEVER if core.is_stopped else self._turns.deadline
        if not core.is_idle:
            due = min(due, self._now + core.tick_ns)
        self._alarm.set(self._clock.to_true(due) if due != NEVER else None)
