"""One run: the hosts, the aggregator and the network between them, from a plan to its end or its first violation.

Every arriving packet, every message of job control and every completed call is added to a hash. Two runs of a seed have
the same hash; otherwise the code under test has used a real clock or unseeded randomness.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from emulator.networks.faults.agent import VirtualAgent
from emulator.networks.faults.best_effort_plan import draw_best_effort
from emulator.networks.faults.checks import Checks, Ledger, Violation
from emulator.networks.faults.control import Control, Key, Session
from emulator.networks.faults.deadlines_plan import draw_deadlines
from emulator.networks.faults.failover_plan import SUSPICION, draw_failover
from emulator.networks.faults.plan import Fault, FaultPlan, draw
from emulator.networks.faults.program import Program
from emulator.networks.faults.tensors import checksum
from emulator.networks.netsim.config import LinkConfig
from emulator.networks.netsim.link import NS, Environment, Link, at
from emulator.networks.netsim.packets import Packet
from switchml.aggregator.best_effort import BestEffortDataplane
from switchml.protocol.packet import HEADER_BYTES
from switchml.runtime.memory import be16, be32, serial_difference

GRACE_S = 90.0
"""Virtual time in which jobs must end after the last fault: many times the duration of join timeouts, several attempts
and a stalled round's slowest probes."""
_MAX_AT_ONCE = 1000
"""Maximum events at one instant. Seeds have a few tens; more indicate that events trigger each other without advancing
time."""
_MAX_EVENTS = 500_000
"""Maximum events of a run. The busiest seeds have a few tens of thousands."""
_START_NS = 1_000_000_000
"""Initial time of the clock, not 0 as in places a time of 0 means "never"."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a seed. `problem`: the violation, or empty. `events`: steps of the simulation; `sums`, `errors`:
    results and errors that were checked. `trace`: hash of all events. `seconds`: virtual time."""

    seed: int
    problem: str
    trace: str
    events: int
    sums: int
    errors: int
    packets: int
    seconds: float


DRAWS: dict[str, Callable[[int], FaultPlan]] = {
    "": draw,
    "failover": draw_failover,
    "deadlines": draw_deadlines,
    "best-effort": draw_best_effort,
}
"""Kinds of seeds: ordinary ones, and one kind for each option of `switchml simulate`."""


def play(seed: int, log: Callable[[str], None] | None = None, kind: str = "") -> Outcome:
    """Run one seed of a kind. `log` is called with a line for each event."""
    return World(DRAWS[kind](seed), log).run()


@dataclass
class AggregatorNode:
    """An aggregator, and each host's links to and from it. With best-effort slots these lead to a switch, and `behind`
    are the links from the switch to its aggregator and back."""

    control: Control
    up: list[Link] = field(default_factory=list)
    down: list[Link] = field(default_factory=list)
    behind: list[Link] = field(default_factory=list)


class World:
    """The simulation of one plan."""

    def __init__(self, plan: FaultPlan, log: Callable[[str], None] | None = None):
        self.plan, self._log = plan, log
        self._hash = hashlib.blake2b(digest_size=8)
        self.env = Environment(_START_NS)
        self._has_deadlines = any(job.deadline_s for job in plan.jobs)
        has_faults = bool(plan.faults) or plan.slot_capacity < 1000 or (self._has_deadlines and not plan.is_calm)
        self.checks = Checks(has_faults, bool(plan.failover_s))
        self.is_healed = False
        """Whether there are no more faults."""
        self._latest: dict[tuple[int, int, int], int] = {}
        """The last round with a packet, by the aggregator's generation, the job's tag and the row."""
        self._violation: Violation | None = None
        self._events = self._at_once = 0
        self._now = _START_NS
        self.agents: dict[int, VirtualAgent] = {}
        """Receiving agent by endpoint."""
        self.nodes = [self._node(number) for number in range(plan.aggregators)]
        self.control, self.up, self.down = self.nodes[0].control, self.nodes[0].up, self.nodes[0].down
        """The first aggregator's, where all jobs start."""
        self.programs = [Program(self, job, rank) for job in plan.jobs for rank in range(job.workers)]
        self._by_host = {program.host: program for program in self.programs}
        self._running = len(self.programs)
        for fault in plan.faults:
            at(self.env, _START_NS + int(fault.at_s * NS), self._begin_fault, fault)
        at(self.env, _START_NS + int(plan.heal_s * NS), self._clear_up)

    def _node(self, number: int) -> AggregatorNode:
        plan = self.plan
        node = AggregatorNode(Control(self.env, plan, self._started, self._departed, number))
        suffix = f" at {number}" if number else ""

        def link(name: str, deliver: Callable[[Packet], None], config: LinkConfig = plan.link) -> Link:
            return Link(self.env, config, random.Random(f"{name} {plan.seed}{suffix}"), deliver)

        def arrive(packet: Packet) -> None:
            self._at_aggregator(node, packet)

        node.up += [link(f"up {host}", arrive) for host in range(plan.hosts)]
        node.down += [link(f"down {host}", self._at_host) for host in range(plan.hosts)]
        if plan.behind is not None:
            node.behind.append(link("to behind", lambda packet: self._at_behind(node, packet), plan.behind))
            node.behind.append(link("from behind", arrive, plan.behind))
        return node

    def run(self) -> Outcome:
        problem = ""
        limit = _START_NS + int((self.plan.heal_s + GRACE_S) * NS)
        try:
            while self._running:
                self._step()
                if self.env.now > limit:
                    raise Violation(f"not done {GRACE_S:g} s after the last fault: {self._whereabouts()}")
            self._check_end()
        except Violation as violation:
            problem = str(violation)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if self._log is not None:
                raise
        finally:
            for node in self.nodes:
                node.control.stop()
        return Outcome(
            self.plan.seed,
            problem,
            self._hash.hexdigest(),
            self._events,
            self.checks.sums,
            self.checks.errors,
            sum(link.counts.packets for node in self.nodes for link in (*node.up, *node.down, *node.behind)),
            (self.env.now - _START_NS) / NS,
        )

    # -- events --

    def _step(self) -> None:
        """Process one event. Raises Violation if it caused one, or if a livelock is detected."""
        self.env.step()
        self._events += 1
        now = self.env.now
        self._at_once = self._at_once + 1 if now == self._now else 0
        self._now = now
        if self._violation is not None:
            raise self._violation
        if self._at_once > _MAX_AT_ONCE:
            raise Violation(f"livelock: time stands still after {_MAX_AT_ONCE:,} events at once: {self._whereabouts()}")
        if self._events > _MAX_EVENTS:
            raise Violation(f"livelock: not done after {_MAX_EVENTS:,} events: {self._whereabouts()}")

    def log(self, kind: str, *details: Any) -> None:
        """Add an event to the hash, and pass it to the log callback, if any."""
        line = f"{self.env.now - _START_NS} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode())
        if self._log is not None:
            self._log(f"{(self.env.now - _START_NS) / 1e6:12.6f} ms  {line.partition(' ')[2]}")

    def check(self, what: Callable[..., None], *arguments: Any) -> None:
        """Run a check, and store the first violation until the agent's code, which would swallow the exception, has
        returned."""
        try:
            what(*arguments)
        except Violation as violation:
            self._violation = self._violation or violation

    def _at_aggregator(self, node: AggregatorNode, packet: Packet) -> None:
        plane = node.control.dataplane
        if plane is None:
            return
        self.log("up", packet.job, checksum(packet.data))
        if self._has_deadlines:
            self._note_round(node, packet)
        if isinstance(plane, BestEffortDataplane):
            sender = packet.job or plane.behind  # after a crash, the current aggregator
            caused = plane.handle(sender, packet.address, packet.length, self.env.now)
        else:
            caused = plane.handle(packet.job, packet.address, packet.length)
        for endpoint, data in caused:
            is_behind = isinstance(plane, BestEffortDataplane) and endpoint == plane.behind
            link = node.behind[0] if is_behind else node.down[endpoint >> 24 & 0xFF]
            link.send(Packet(np.frombuffer(data, np.uint8), 0, 0, endpoint))

    def _at_behind(self, node: AggregatorNode, packet: Packet) -> None:
        """Handle a packet of the switch at the aggregator behind it."""
        plane = node.control.dataplane
        if isinstance(plane, BestEffortDataplane):
            self.log("behind", checksum(packet.data))
            for data in plane.handle_behind(packet.address, packet.length):
                node.behind[1].send(Packet(np.frombuffer(data, np.uint8), 0, 0))

    def _note_round(self, node: AggregatorNode, packet: Packet) -> None:
        seq, job_tag = be32(packet.data[:HEADER_BYTES], 2), be16(packet.data[:HEADER_BYTES], 6)
        for slots in {job.slots for job in self.plan.jobs}:
            key = node.control.generation, job_tag, seq % (2 * slots)
            if serial_difference(seq, self._latest.get(key, seq - 1)) > 0:
                self._latest[key] = seq

    def is_behind(self, agent: VirtualAgent) -> bool:
        """Whether the aggregator no longer has a result that an agent waits for: the round after next has been
        requested in its row."""
        slots, job_tag = agent.core.worker.state.slots, int(agent.core.worker.identity["job_tag"])
        count = len(slots)
        for slot in slots[slots["busy"] == 1]:
            seq = int(slot["start"] + slot["round"] * count)
            latest = self._latest.get((self.control.generation, job_tag, seq % (2 * count)))
            if latest is not None and serial_difference(latest, seq) >= 2 * count:
                return True
        return False

    def _at_host(self, packet: Packet) -> None:
        agent = self.agents.get(packet.to)
        self.log("down", packet.to, checksum(packet.data))
        if agent is not None:
            agent.receive(packet)

    def _started(self, session: Session, key: Key) -> None:
        """Record that a job has started for a rank."""
        self.log("started", session.host, *key)
        if session.request.resumption is None:  # with a resumption, the ledger is that of the job's start
            session.key = key
            job = next(job for job in self.plan.jobs if job.name == session.request.job)
            self.checks.ledgers.setdefault(key, Ledger(job, (self.plan.seed, *key)))

    def _departed(self, session: Session, how: str) -> None:
        """Record that a rank "left" or was "lost"."""
        self.log(how, session.host)
        if session.request.resumption is None and session.key is not None:
            self.checks.ledgers[session.key].departed[session.request.rank] = how

    def connection_broke(self, program: Program, key: tuple[int, int]) -> bool:
        """Whether a rank's own control connection may be broken."""
        ledger = self.checks.ledgers[key]
        crashed = key[0] != self.control.generation or self.control.registry is None
        lost = ledger.departed.get(program.rank) == "lost"
        return crashed or lost or program.host in self.control.gave_up

    # -- faults --

    def _begin_fault(self, fault: Fault) -> None:
        self.log("begin", fault.kind, fault.host)
        host, node = fault.host, self.nodes[fault.aggregator]
        if fault.kind.startswith("cut"):
            self._cut(fault, True)
            if fault.kind == "cut":
                node.control.isolate(host, node.control.cut_hosts)
        elif fault.kind == "pause":
            self._by_host[host].pause()
            for each in self.nodes:
                each.control.isolate(host, each.control.paused_hosts)
        elif fault.kind == "crash":
            self._by_host[host].crash(fault.duration_s)
            return
        elif fault.kind == SUSPICION:
            self._by_host[host].suspect()
            return
        elif node.control.registry is not None:
            node.control.crash()
        else:
            return
        at(self.env, self.env.now + int(fault.duration_s * NS), self._end_fault, fault)

    def _end_fault(self, fault: Fault) -> None:
        self.log("end", fault.kind, fault.host)
        host, node = fault.host, self.nodes[fault.aggregator]
        if fault.kind.startswith("cut"):
            self._cut(fault, False)
            node.control.release(host, node.control.cut_hosts)
        elif fault.kind == "pause":
            for each in self.nodes:
                each.control.release(host, each.control.paused_hosts)
            self._by_host[host].resume()
        elif node.control.registry is None:
            node.control.start()

    def _cut(self, fault: Fault, is_cut: bool) -> None:
        """Cut or restore the links between a host and an aggregator that a fault affects."""
        node = self.nodes[fault.aggregator]
        if fault.kind != "cut down":
            node.up[fault.host].is_cut = is_cut
        if fault.kind != "cut up":
            node.down[fault.host].is_cut = is_cut

    def _clear_up(self, _: Any) -> None:
        """End all impairments of the links; ranks are no longer slow."""
        self.is_healed = True
        for node in self.nodes:
            for link in (*node.up, *node.down, *node.behind):
                link.become(LinkConfig(rate_bps=link.config.rate_bps, delay_s=link.config.delay_s))

    # -- the end --

    def is_over_for(self, program: Program) -> bool:
        """Whether the job can't be restarted: another rank has finished it."""
        return any(
            other.job is program.job and other is not program and other.state != "running" for other in self.programs
        )

    def all_finished(self, key: tuple[int, int]) -> simpy.Event:
        """Event that triggers when every rank of an incarnation has all its results."""
        ledger = self.checks.ledgers[key]
        if ledger.all_finished is None:
            ledger.all_finished = self.env.event()
        if len(ledger.finished) == ledger.job.workers and not ledger.all_finished.triggered:
            ledger.all_finished.succeed()
        return ledger.all_finished

    def ended(self, program: Program) -> None:
        self.log("ended", program.host, program.state)
        self._running -= 1

    def _whereabouts(self) -> str:
        return ", ".join(
            f"{program.job.name} rank {program.rank} (attempt {program.attempts})"
            for program in self.programs
            if program.state == "running"
        )

    def _check_end(self) -> None:
        """Check that every job has ended, and that the aggregator has freed all resources."""
        for job in self.plan.jobs:
            states = [program.state for program in self.programs if program.job is job]
            if not {"done", "late"} & set(states):
                raise Violation(f"{job.name}: no rank came through: {states}")
            if self.plan.failover_s and set(states) != {"done"}:
                raise Violation(f"{job.name}: only aggregators died, but its ranks are {states}")
            may_fail = self.plan.faults or job.misfit or (job.deadline_s and not self.plan.is_calm)
            if not may_fail and "late" not in states and set(states) != {"done"}:
                raise Violation(f"{job.name}: nothing went wrong, but its ranks are {states}")
        self.checks.balance_all()
        # Let the last leave messages arrive.
        until = self.env.now + int((self.plan.peer_timeout_s + 15) * NS)
        while self.env.peek() <= until:
            self._step()
        for node in self.nodes:
            registry = node.control.registry
            if registry is not None and (registry.live or registry.slots_allocated):
                raise Violation(f"the aggregator still holds {[(job.name, job.state) for job in registry.live]}")
            if isinstance(plane := node.control.dataplane, BestEffortDataplane):
                self.log("shared", plane.shared_counts())
                if in_use := plane.shared_in_use():
                    raise Violation(f"no job is left, but {in_use} slots of the switch are in use")
