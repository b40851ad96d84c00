"""The user's program on one host: joins, calls its collectives and leaves; on failure it restarts, until it has all
results or its job has ended without it."""

import random
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import simpy

from emulator.networks.faults import late, tensors
from emulator.networks.faults.agent import VirtualAgent
from emulator.networks.faults.control import Session
from emulator.networks.faults.failover import Failover
from emulator.networks.faults.late import ErrorMemories
from emulator.networks.faults.plan import ONE_SENDS, JobPlan, PlannedCall
from emulator.networks.netsim.link import NS, Environment
from host_agent.collectives import CollectiveCall, request_of
from switchml.control.membership import JoinRequest
from switchml.errors import CollectiveTimeout, SumOverflow
from switchml.net import udp
from switchml.protocol.sizes import EXACT, WIRES, lanes_of
from switchml.protocol.worker_state import QUEUES

_FIRST_PORT = 20000
_ROUNDING_NS = 1000


class Program:
    """The program of rank `rank` of `job`. `state`: "running", "done" (has all results), "late" (a collective timed
    out, so that retrying is pointless) or "given up" (its job ended without it)."""

    def __init__(self, world: Any, job: JobPlan, rank: int):
        self.world, self.job, self.rank, self.host = world, job, rank, job.hosts[rank]
        self._aggregator = 0
        self.env: Environment = world.env
        self.clock = world.plan.clock(self.host)
        self.state, self.attempts = "running", 0
        self.agent: VirtualAgent | None = None
        self._mover: Failover | None = None
        self.session: Session | None = None
        self._chooser = random.Random(f"program {world.plan.seed} {self.host}")
        self._port = _FIRST_PORT
        self.agent_endpoint = 0
        self._is_paused: simpy.Event | None = None
        self._memories: ErrorMemories | None = None
        self._computes = True
        self._submitted = self._resumed_at = 0
        self._due: dict[int, float] = {}
        """Deadlines of the calls without a result (ns)."""
        self.process = self.env.process(self._run())

    @property
    def address(self) -> tuple[str, int]:
        return f"10.0.{self.host}.1", self._port

    # -- faults --

    def crash(self, restart_s: float) -> None:
        """Kill the process; it restarts after `restart_s`."""
        if self.state == "running" and self.process.is_alive and self.process is not self.env.active_process:
            self.process.interrupt(restart_s)

    def pause(self) -> None:
        if self._is_paused is None:
            self._is_paused = self.env.event()
        if self.agent is not None:
            self.agent.stop()

    def resume(self) -> None:
        self._resumed_at = self.env.now
        if self._is_paused is not None:
            self._is_paused.succeed()
            self._is_paused = None
        if self.agent is not None:
            self.agent.cont()

    def suspect(self) -> None:
        """Treat the aggregator as lost, whether it is or not."""
        if self._mover is not None and self._is_paused is None:
            self._mover.suspect()

    # -- the script --

    def _run(self) -> Generator[simpy.Event, Any, None]:
        wait_s = self.job.starts_s[self.rank]
        while self.state == "running":
            try:
                yield self.env.timeout(int(wait_s * NS))
                yield from self._attempt()
                wait_s = self._chooser.uniform(0.02, 0.5)
            except simpy.Interrupt as kill:
                self.world.log("crash", self.host)
                self._vanish()
                wait_s = float(kill.cause or 0.0)
        self.world.ended(self)

    def take_new_port(self) -> None:
        """Take the next port, as every join opens a new socket."""
        self._port += 1

    def moved(self, session: Session, aggregator: int) -> None:
        """Send the agent's packets to another aggregator from now on."""
        self.session, self._aggregator = session, aggregator
        assert self.agent is not None
        del self.world.agents[self.agent_endpoint]
        self.agent_endpoint = self.agent.endpoint = udp.endpoint(*self.address)
        self.world.agents[self.agent_endpoint] = self.agent

    def awake(self) -> Generator[simpy.Event, Any, None]:
        """Wait until the process is not stopped."""
        while self._is_paused is not None:
            yield self._is_paused

    def _vanish(self) -> None:
        if self.agent is not None:
            self.agent.vanish()
            del self.world.agents[self.agent_endpoint]
            self.agent = None
        if self.session is not None:
            self.session.vanish()
            self.session = None

    def _attempt(self) -> Generator[simpy.Event, Any, None]:
        """Join, run all calls, leave. `state` stays "running" if another attempt is needed."""
        yield from self.awake()
        if self.world.is_over_for(self):
            self.state = "given up"
            return
        self.attempts += 1
        if not self.job.keeps_port:
            self._port += 1
        job = self.job
        request = JoinRequest(
            job=job.name,
            rank=self.rank,
            world_size=job.workers,
            address=self.address,
            slots=job.slots,
            payload_bytes=job.payload_bytes,
            wire=WIRES[lanes_of(job.wire)],
            timeout_s=self.world.plan.join_timeout_s,
            host=f"host{self.host}",
            pid=self.attempts,
            queues=QUEUES,
            deadline_s=job.deadline_s,
        )
        self._aggregator = 0
        self.session = Session(self.world.control, self.host, request, self.world.plan.join_timeout_s)
        refusal = yield self.session.joined
        yield from self.awake()
        if refusal is not None:
            self.world.log("refused", self.host, str(refusal))
            self.world.checks.refusal(job, self.rank, refusal)
            self.session.leave()
            self.session = None
            return
        yield from self._work(self.session)
        self.session = None

    def _work(self, session: Session) -> Generator[simpy.Event, Any, None]:
        key = session.key
        assert key is not None  # the job has started
        self.world.checks.ledgers[key].started.add(self.rank)
        self.agent_endpoint = udp.endpoint(*self.address)
        agent = self.agent = VirtualAgent(
            self.env,
            session,
            rank=self.rank,
            world_size=self.job.workers,
            job=self.job.name,
            endpoint=self.agent_endpoint,
            send=lambda packet: self.world.nodes[self._aggregator].up[self.host].send(packet),
            inbox_packets=self.world.plan.inbox_packets,
            exact=self.job.wire == EXACT,
            clock=self.clock,
            deadline_s=self.job.deadline_s,
        )
        self.world.agents[self.agent_endpoint] = agent
        if self.world.plan.failover_s:
            self._mover = Failover(self, agent)
        else:
            session.events(agent.on_event)
        pending: list[simpy.Event] = []
        failed, self._due, self._is_late, self._submitted = False, {}, False, 0
        self._memories = ErrorMemories(self.job, self._chooser.random() < 0.5) if self.job.deadline_s else None
        for number, call in enumerate(self.job.calls):
            if self.job.misfit == "leaves" and (self.rank, number) == (self.job.misfit_rank, self.job.misfit_call):
                break
            if call.bucket == 0:
                failed = (yield from self._end_of(pending)) or failed
                pending = []
                if failed:
                    break
                yield from self._compute()
            yield self.env.timeout(int(call.pause_s * NS))
            yield from self.awake()
            pending.append(self._submit(agent, key, number, call))
            if not self.job.at_once[self.rank]:
                failed = (yield pending[-1]) or failed
                if failed:
                    break
        failed = (yield from self._end_of(pending)) or failed
        yield from self.awake()
        self.world.checks.ledgers[key].finished[self.rank] = min(self._due, default=self._submitted)
        if self.world.plan.failover_s and not failed:  # a rank that has left can't repeat rounds that others may lack
            yield self.world.all_finished(key)
            yield from self.awake()
        agent.leave()
        del self.world.agents[self.agent_endpoint]
        self.agent = None
        if not failed or self.job.misfit:
            self.state = "done"
        elif self._is_late:
            self.state = "late"

    @staticmethod
    def _end_of(pending: list[simpy.Event]) -> Generator[simpy.Event, Any, bool]:
        """Wait for calls. Returns whether one has failed."""
        failed = False
        for done in pending:
            failed = (yield done) or failed
        return failed

    def _compute(self) -> Generator[simpy.Event, Any, None]:
        """Compute a step's gradients; a rank that is behind skips this."""
        assert self._memories is not None
        self._computes = not self._memories.is_behind
        if not self._computes:
            return
        pace = self.job.paces[self.rank]
        seconds = pace.step_s
        if self._chooser.random() < pace.chance and not self.world.is_healed:
            seconds += pace.slow_s
        yield self.env.timeout(int(seconds * NS))

    def _submit(self, agent: VirtualAgent, key: tuple[int, int], number: int, call: PlannedCall) -> simpy.Event:
        """Start a collective. The event's value: whether this attempt has failed."""
        ledger = self.world.checks.ledgers[key]
        self._submitted = number + 1
        if call.bucket >= 0:
            return self._submit_late(agent, key, number, call)
        if self.job.misfit == "dtype" and (self.rank, number) == (self.job.misfit_rank, self.job.misfit_call):
            call = replace(call, dtype="int64" if call.dtype != "int64" else "float32", special="")
            ledger.disagrees = True
        if self.job.misfit == "kind" and (self.rank, number) == (self.job.misfit_rank, self.job.misfit_call):
            call = replace(call, kind="all_reduce" if call.kind in ONE_SENDS else "broadcast", special="")
            ledger.disagrees = True
        source = tensors.source(self.job, call, (*ledger.seed, number), self.rank)
        target = tensors.target(self.job, call, source.dtype)
        done = self._due_at(number, call)

        def on_done(error: BaseException | None) -> None:
            self._ended(agent, key, number, error, target, done)

        move = CollectiveCall(
            call.kind,
            source.ctypes.data,
            target.ctypes.data,
            call.numel,
            call.dtype,
            source.itemsize,
            call.op,
            call.root,
        )
        n, wire, keep = self.job.workers, agent.core.wire, (source, target)
        agent.submit(request_of(move, self.rank, n, wire, on_done, timeout_s=call.timeout_s, keep=keep))
        return done

    def _submit_late(self, agent: VirtualAgent, key: tuple[int, int], number: int, call: PlannedCall) -> simpy.Event:
        """Start a sum that doesn't wait for late ranks, as `_submit` does."""
        ledger, memories, plan = self.world.checks.ledgers[key], self._memories, self.world.plan
        assert memories is not None
        own = late.gradient(self.job, call, (*ledger.seed, number), self.rank) if self._computes else None
        book = ledger.books.setdefault(number, late.CallRecord())
        done, begun = self._due_at(number, call), self.env.now

        def on_done(error: BaseException | None, target: np.ndarray) -> None:
            if error is None and plan.is_steady and self._resumed_at < begun:
                seconds = (self.env.now - begun) / NS
                self.world.check(self.world.checks.waited, self.job, plan.link, number, self.rank, seconds)
            self._ended(agent, key, number, error, target, done)

        agent.submit(memories.request(self.job, call, own, book, self.rank, on_done))
        return done

    def _due_at(self, number: int, call: PlannedCall) -> simpy.Event:
        """Record a starting call's deadline; returns its completion event."""
        self._due[number] = np.inf
        if call.timeout_s:  # the agent stores seconds, a fraction of a microsecond off
            self._due[number] = self.env.now + self.clock.true_duration(int(call.timeout_s * NS)) - _ROUNDING_NS
        return self.env.event()

    def _ended(
        self,
        agent: VirtualAgent,
        key: tuple[int, int],
        number: int,
        error: BaseException | None,
        target: np.ndarray,
        done: simpy.Event,
    ) -> None:
        """Check and record the end of a call."""
        checks = self.world.checks
        what = type(error).__name__ if error else f"{tensors.checksum(target):08x}"
        self.world.log("call", self.host, number, what)
        if error is None or isinstance(error, SumOverflow):
            del self._due[number]
        if error is None:
            self.world.check(checks.result, key, number, self.rank, target)
        else:
            is_late = min(self._due.values(), default=np.inf) <= self.env.now
            self._is_late = isinstance(error, CollectiveTimeout)
            broke = self.world.connection_broke(self, key)
            is_behind = self.world.is_behind(agent)
            self.world.check(checks.error, key, number, self.rank, error, is_late, broke, is_behind)
        done.succeed(error is not None and not isinstance(error, SumOverflow))
