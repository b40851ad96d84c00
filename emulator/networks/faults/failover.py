"""Failover of a simulated rank to another aggregator: the equivalent of the threads of host_agent/failover.py in
virtual time, by the same rules (`failover.route`, handover.py, the registries)."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import simpy

from emulator.networks.faults.agent import VirtualAgent
from emulator.networks.faults.clock import Clock
from emulator.networks.faults.control import Session
from emulator.networks.netsim.link import NS, Environment
from host_agent import failover
from host_agent.core import new_worker
from switchml.control.client import RETRY_S, AggregatorLost
from switchml.control.membership import PeerLeft, Resumption
from switchml.protocol.handover import rounds_of


class Failover:
    """Failover of one agent of `program`, which joined the first aggregator."""

    def __init__(self, program: Any, agent: VirtualAgent):
        self._program, self._agent, self._world = program, agent, program.world
        self._env: Environment = program.env
        self._aggregator, self._session = 0, agent.session
        info = agent.session.info
        self._lineage = info.job_tag << 32 | info.isn
        self._tags: tuple[int, ...] = (info.job_tag,)
        self._has_departed = self._is_moving = False
        self._follow(agent.session)

    def suspect(self) -> None:
        """Treat the aggregator as lost."""
        if not self._has_departed:
            self._on_event(self._session, AggregatorLost("it is silent"))

    def _follow(self, session: Session) -> None:
        session.events(lambda event: self._on_event(session, event))

    def _true_duration(self, seconds: float) -> int:
        """True duration in ns of this many seconds on the host's clock."""
        clock: Clock = self._program.clock
        return clock.true_duration(int(seconds * NS))

    def _on_event(self, session: Session, event: Any) -> None:
        if session is not self._session or self._agent.is_over:
            return
        self._has_departed |= isinstance(event, PeerLeft)
        has_standby = len(self._world.nodes) > 1
        if self._has_departed or not failover.is_loss(event, has_standby):
            self._agent.on_event(event)
        elif not self._is_moving:
            self._is_moving = True
            self._env.process(self._go(event))

    def _go(self, event: Any) -> Generator[simpy.Event, Any, None]:
        agent = self._agent
        agent.pause()
        reports = (rounds_of(agent.core.worker.state),)
        self._session.vanish()
        deadline = self._env.now + self._true_duration(self._world.plan.failover_s)
        for stop in failover.route(range(len(self._world.nodes)), self._aggregator):
            yield from self._program.awake()
            left_s = (deadline - self._env.now) / NS
            if agent.is_over:
                return
            if left_s <= 0:
                break
            if (yield from self._visit(stop, reports, left_s)):
                self._is_moving = False
                agent.resume()
                self._follow(self._session)  # the new session may be lost by now, too
                return
            yield self._env.timeout(self._true_duration(failover.PAUSE_S))
        self._is_moving = False
        agent.resume()
        agent.on_event(event if isinstance(event, AggregatorLost) else AggregatorLost(event.reason))

    def _visit(
        self, stop: failover.RouteStop, reports: tuple[bytes, ...], left_s: float
    ) -> Generator[simpy.Event, Any, bool]:
        """Try to join the other ranks at an aggregator. Returns whether the job continues there."""
        program, control = self._program, self._world.nodes[stop.address].control
        until = self._env.now + self._true_duration(min(stop.reach_s, left_s))
        while not control.is_reachable(program.host):
            if self._env.now >= until:
                return False
            yield self._env.timeout(self._true_duration(RETRY_S))
        info = self._session.info
        program.take_new_port()
        request = replace(
            self._session.request,
            address=program.address,
            slots=info.slots,
            queues=info.queues,
            timeout_s=min(stop.meet_s, left_s),
            resumption=Resumption(self._lineage, info.epoch + 1, reports, self._tags),
        )
        session = Session(control, program.host, request, request.timeout_s)
        while not (session.joined.triggered or self._agent.is_over):  # a rank that leaves gives up
            yield session.joined | self._env.timeout(self._true_duration(failover.PAUSE_S))
        refusal = session.joined.value if session.joined.triggered else None
        yield from program.awake()
        if refusal is not None or self._agent.is_over:
            session.vanish()
            return False
        info = session.info
        self._tags += (info.job_tag,)
        self._aggregator, self._session = stop.address, session
        self._world.log("moved", program.host, stop.address, info.epoch)
        program.moved(session, stop.address)
        worker = new_worker(info, program.rank, program.job.workers)
        self._agent.migrate(session, worker, info.rounds[0])
        return True
