"""The host agent: joins a job and all-reduces arrays through the aggregator, from a thread of its own.

    with HostAgent.join("127.0.0.1:50099", job="demo", rank=0, world_size=2) as agent:
        total = agent.allreduce(x)                       # waits
        handle = agent.allreduce(y, op="mean", async_op=True)
        handle.wait()

Calls are queued in the order they are made, from any thread, and every rank of the job must make the same ones in the
same order. What a rank does is in core.py; here are the thread that drives it, in turns with callers that wait
(driver.py), the compiled loop (loop.py) that moves its packets, and what is opened on joining and closed on leaving.
Results have the same bits on every rank.
"""

import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from host_agent import failover, joining, loop, packet_log, recording
from host_agent.base import Agent, SparseOption
from host_agent.calls import Handle, Request
from host_agent.core import Core, new_worker
from host_agent.driver import DriverLock
from host_agent.failover import Failover, join_first, split_standbys
from host_agent.hierarchy.agent import HierarchicalAgent
from host_agent.hierarchy.hosts import resolve
from host_agent.sharded import ShardedAgent, split_addresses
from host_agent.v1 import joining as v1
from host_agent.watch import INTERVAL_S
from switchml.control import client
from switchml.errors import ConfigError, JobError, SwitchMLError
from switchml.protocol.handover import has_no_result, rounds_of
from switchml.protocol.sizes import EXACT, WIRES
from switchml.runtime.cores import move_to, share_of_cores
from switchml.runtime.entry import entry_point
from switchml.runtime.slices import shorten_slices

__all__ = ["WIRES", "Handle", "HostAgent", "SwitchMLError"]


_PAUSE_S = 0.1
JOIN_TIMEOUT_S = 60.0
"""Default limit in seconds for joining a job, including the wait for an aggregator that has not started yet."""


class HostAgent(Agent):
    """One rank of one job at one aggregator. Created by `HostAgent.join`."""

    global_ranks: tuple[int, ...] = ()

    def __init__(self, joined: joining.JoinedPart):
        options, info = joined.options, joined.info
        self.transport = joined.transport_name
        self.job, self.rank, self.world_size = options.job, options.rank, options.world_size
        self.job_tag = info.job_tag
        self.global_ranks = tuple(range(options.world_size))
        self.log: recording.AgentLog | None = None
        self._session, self._transport, self._tunnel = joined.session, joined.transport, joined.tunnel
        self._worker = new_worker(
            info, self.rank, self.world_size, deadline_s=options.deadline_s or 0.0, **joined.packet_memory()
        )
        self.deadline_s = options.deadline_s or 0.0
        self._turns = DriverLock()
        part = joined.part  # `joined` itself would keep shared memory mapped
        self._cores = share_of_cores(part, len(joined.session.info.parts))
        self._has_part = False
        self.core = Core(
            self._worker,
            info,
            job=self.job,
            rank=self.rank,
            world_size=self.world_size,
            wake=self._turns.wake,
            udp=self.transport == "udp",
            sparse=joined.sparse,
            exact=options.wire == EXACT,
            halves=joined.sums_halves,
            report=lambda report: self._session.waiting(part, report),
        )
        super().__init__(self.core)
        self.wire, self.takes_sparse = self.core.wire, self.core.takes_sparse
        self.sums_halves = self.core.sums_halves
        self.takes_collectives, self.only_sums = self.core.takes_collectives, self.core.only_sums
        self._loop: loop.Loop | None = self._new_loop(joined)
        self._known: tuple[Any, Any] = None, None
        self._is_pausing = self._is_paused = False
        self._pauses = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"switchml-agent-{self.rank}", daemon=True)
        self._thread.start()
        recording.register(self)

    @classmethod
    def join(
        cls,
        address: str | None = None,
        *,
        job: str,
        rank: int,
        world_size: int,
        secret: str | None = None,
        timeout_s: float | None = None,
        peer_timeout_s: float = 10.0,
        payload_bytes: int = 1024,
        slots: int = 0,
        bind_ip: str | None = None,
        tls_ca: str | None = None,
        transport: str | None = None,
        wire: str | None = None,
        sparse: SparseOption = None,
        hierarchy: str | None = None,
        authenticate: bool | None = None,
        standby: str | None = None,
        failover_timeout_s: float | None = None,
        deadline_s: float | None = None,
        protocol: str | None = None,
    ) -> Agent:
        """Join `job` at the aggregator whose control port is `address` (host:port; default: $SWITCHML_AGGREGATOR).

        Several addresses, separated by commas, share the work (sharded.py); every rank must list the same addresses in
        the same order.

        Waits up to `timeout_s` for the aggregator and all ranks; by default up to $SWITCHML_JOIN_TIMEOUT (30 s) for the
        aggregator, and 60 s in total. `secret`: the job's secret (default: from the environment). `payload_bytes`:
        payload of a packet, 256 or 1024. `slots`: a power of two, or 0 for the aggregator's choice. `bind_ip`: address
        to receive on; by default an address 127.0.x.y derived from job and rank if the aggregator is on this machine's
        loopback, else the local address of the route to the aggregator.

        `transport`: "udp", "shm" (memory shared with an aggregator on this machine), "zmq" (the aggregator's tunnel,
        for networks that drop UDP), or "auto": shm where available, else udp (default: $SWITCHML_TRANSPORT, or auto). A
        P4 switch (docs/p4.md) is reached by "udp" through an interface on one of its ports, by "raw" (frames built by
        the agent; needs root), or by "frames" (Ethernet in UDP, without an interface); auto takes the first that is
        available.

        `wire`: lanes for float32 and half precision: "int32"; "int16" or "int8" for two or four times as many values
        per packet at lower precision (switchml/protocol/narrow.py); or "exact": sums of floats within one unit in the
        last place, at the cost of further rounds. Except with "exact", a value smaller than about 2^-24 of the largest
        in its block of 256 elements (float32) is lost (docs/protocol.md, section 5). "auto" is int32, except that half
        precision is sent unconverted if the aggregator can add it in float32 (section 11). Other dtypes always use
        int32 lanes (default: $SWITCHML_WIRE, or auto).

        `sparse`: default handling of zero blocks in all-reduces: "off" sends them, "on" skips those that are zero on
        every rank, "auto" skips them if the previous tensor with the same signature had enough of them; with options,
        "on:block=64,threshold=1e-6" (elements, and the magnitude up to which an element counts as zero), or a
        `Sparse(…)` (default: $SWITCHML_SPARSE, or off).

        `hierarchy`: with "node" the ranks of a host sum in shared memory, and one of them communicates with the
        aggregator (docs/hierarchy.md); "node:NAME" names the host, which otherwise is this machine and network
        namespace (default: $SWITCHML_HIERARCHY, or none). `authenticate`: packets carry authentication tags with a
        per-job key, so that nobody else can forge them (docs/protocol.md, section 10); the same on all ranks, and not
        supported by P4 switches (default: whether $SWITCHML_AUTHENTICATE is 1).

        `standby`: aggregators, separated by commas, to which the job fails over if this aggregator is lost; the same on
        all ranks. `address` may list them, too: "a:50099,standby=b:50099". Without standbys, the agent waits for the
        aggregator itself to return. `failover_timeout_s`: limit for failover before calls fail; 0 fails them at once
        (default: $SWITCHML_FAILOVER_TIMEOUT, or 20 s). `deadline_s`: time that sums called with `late` wait for a rank;
        the same on all ranks (docs/reliability.md); not supported with shared memory, several aggregators, standbys,
        hierarchy or exact sums (default: $SWITCHML_DEADLINE, or none).

        `protocol`: "v1" for p4app-switchML's controller and switch, which sum float32 and int32 over UDP for one job of
        up to 32 ranks, or "v1:timeout=100ms,port=4000" (docs/p4app-switchml.md); with v1, `slots` is the window, by
        default 256, and `job` and `secret` are ignored (default: $SWITCHML_PROTOCOL, or v2).

        Raises JoinError if the aggregator refuses or can't be reached, ConfigError for invalid arguments.
        """
        address = address or os.environ.get("SWITCHML_AGGREGATOR")
        if not address:
            raise ConfigError(
                "no aggregator: pass address='host:port' or set SWITCHML_AGGREGATOR (start one with `switchml "
                "aggregate`)"
            )
        if standby:
            address = ",".join([address, *(f"standby={each}" for each in split_addresses(standby))])
        options = joining.Options(
            job=job,
            rank=rank,
            world_size=world_size,
            secret=secret,
            timeout_s=JOIN_TIMEOUT_S if timeout_s is None else timeout_s,
            reach_timeout_s=client.reach_timeout_s() if timeout_s is None else timeout_s,
            peer_timeout_s=peer_timeout_s,
            payload_bytes=payload_bytes,
            slots=slots,
            bind_ip=bind_ip,
            tls_ca=tls_ca,
            transport=transport,
            wire=wire,
            sparse=sparse,
            authenticate=authenticate,
            failover_s=failover.timeout_s() if failover_timeout_s is None else failover_timeout_s,
            deadline_s=joining.deadline_s() if deadline_s is None else deadline_s,
        )
        level, host = resolve(hierarchy)
        spoken = v1.protocol_of(protocol)
        if options.deadline_s:
            joining.check_deadline(options, address, is_v1=spoken.version == "v1", is_node=level == "node")
            options = replace(options, failover_s=0.0)
        if spoken.version == "v1":
            if level == "node":
                raise ConfigError("hierarchy: v1 supports single ranks only; expected none")
            return v1.join(address, options, spoken)
        join = functools.partial(_join_aggregators, cls)
        if level == "node":
            if split_standbys(address)[1]:
                raise ConfigError(
                    "standby: ranks that share hosts (hierarchy) stay with their aggregator; expected none"
                )
            options = replace(options, failover_s=0.0)
            return HierarchicalAgent.join_hosts(address, options, host, join)
        return join(address, options)

    def leave(self) -> None:
        if not self._ends(self._thread):
            return
        recording.unregister(self)
        if self._tunnel is not None:
            self._tunnel.close()
        self._transport.close()
        self._turns.close()
        # Shared memory is freed here, and not when the last traceback that refers to a frame of this module is freed.
        self._loop, self._known = None, (None, None)
        nothing = np.zeros((0, 1), np.uint8)
        self._worker.state = self._worker.state._replace(packets=nothing, wide=nothing)
        self._session.leave()

    def submit(self, request: Request) -> None:
        self._has_part |= request.is_part
        self.core.submit(request, time.monotonic())

    def report_counts(self, calls: dict[str, int], loading: dict[str, float]) -> None:
        self._session.count(calls, loading)

    def missing_ranks(self) -> tuple[int, ...]:
        return self.core.missing_ranks(time.monotonic())

    def stats(self) -> dict[str, Any]:
        return self.core.stats() | {"transport": self.transport}

    # Interface for recording.py

    def new_packet_log(self, packets: int) -> packet_log.PacketLog:
        return packet_log.new_packet_log(packets, len(self._worker.state.slots))

    def record(self, log: recording.AgentLog | None) -> None:
        """Log calls and packets to `log` from now on; None stops logging."""
        self.log = self.core.call_log = log
        assert self._loop is not None
        self._loop = self._loop._replace(log=self.new_packet_log(0) if log is None else log.packet_log)
        self._turns.wake()  # the running loop still writes to the previous log

    # Interface for failover.py

    def pause(self) -> bytes:
        """Stop moving packets until `resume`; returns this rank's progress (handover.rounds_of)."""
        self._is_pausing = True
        with self._close_lock:
            if not self._closing:
                self._turns.wake()
        with self._pauses:
            while self._thread.is_alive() and not self._is_paused:
                self._pauses.wait(_PAUSE_S)
        return rounds_of(self._worker.state)

    def resume(self) -> None:
        """Continue after `pause`."""
        with self._pauses:
            self._is_pausing = False
            self._pauses.notify_all()

    def migrate(self, joined: joining.JoinedPart, agreed: bytes) -> None:
        """While paused: continue at another aggregator, from the rounds `agreed` by all ranks. Raises ConfigError;
        JobError if this rank leaves the job."""
        with self._close_lock:
            if self._closing:
                raise JobError(f"rank {self.rank} left job '{self.job}'")
            other = new_worker(joined.info, self.rank, self.world_size, **joined.packet_memory())
            self._worker.resume(other, agreed, time.monotonic_ns())
            assert self._loop is not None
            self._loop = self._new_loop(joined)._replace(log=self._loop.log)
            if self._tunnel is not None:
                self._tunnel.close()
            self._transport.close()
            self.transport, self.job_tag = joined.transport_name, joined.info.job_tag
            self._session, self._transport, self._tunnel = joined.session, joined.transport, joined.tunnel
            self.core.moved(joined.info)

    def fail(self, error: BaseException) -> None:
        """End this rank's participation in the job with `error`."""
        self.core.fail(error)

    @property
    def has_no_result(self) -> bool:
        """Whether no round has completed yet."""
        return has_no_result(self._worker.state)

    @property
    def is_over(self) -> bool:
        """Whether this rank's participation in the job has ended with an error."""
        return self.core.error is not None

    @property
    def heard(self) -> int:
        """Number of packets received from aggregators."""
        counters = self._worker.counters
        return int(counters["received"] + counters["waits"])

    @property
    def is_waiting(self) -> bool:
        """Whether packets are in flight."""
        return bool(self._worker.window["in_flight"])

    def _new_loop(self, joined: joining.JoinedPart) -> loop.Loop:
        return loop.new_loop(
            self._worker,
            joined.transport.socket,
            self._turns.wake_fd,
            joined.aggregator,
            joined.segment,
            joined.transport.kind,
            joined.transport.raw,
            joined.transport.ends,
            joined.impaired,
            joined.key,
        )

    # The agent's thread, and callers that drive the loop in its place

    def _carry_out(self, submit: Callable[[], None], handle: Handle, async_op: bool) -> Any:
        if async_op or self.is_forked or not self._turns.take():
            return super()._carry_out(submit, handle, async_op)
        try:
            shorten_slices()
            submit()
            while not (handle.is_done() or self._is_idle() or self._is_pausing) and self._turn():
                pass
        finally:
            self._turns.give_back(self._is_idle)
        return handle.wait()

    def _run(self) -> None:
        shorten_slices()
        try:
            while True:
                if self._is_pausing:
                    self._stay_paused()
                if not self._turn():
                    break
                self._turns.rest(self._is_idle)
        except Exception as error:
            self._died(error)
            self._session.leave()
        if self.core.end():
            self._session.leave()

    def _turn(self) -> bool:
        """Start queued calls and move packets until there is something to report or the loop is woken. Returns False
        once this rank's participation in the job has ended."""
        core = self.core
        if not core.start_queued(time.monotonic()):
            return False
        if core.is_stopped:
            self._turns.sleep(INTERVAL_S)
            core.finish_turn(time.monotonic())
            return True
        if self._has_part:
            self._has_part = False
            move_to(self._cores)
        known, run = self._known
        if self._loop is not known:
            run = entry_point(loop.run, self._loop, 0, 0)
            self._known = self._loop, run
        if run(self._loop, core.completed, core.tick_ns) == loop.WOKEN:
            with suppress(BlockingIOError):  # the wake-up was read together with an earlier one
                os.eventfd_read(self._turns.wake_fd)
        core.finish_turn(time.monotonic())
        return True

    def _is_idle(self) -> bool:
        """Whether no call is queued or running, no packet is in flight, and neither pause nor failure is pending."""
        core = self.core
        return (
            core.is_idle and not core.has_queued and core.error is None and not self.is_waiting and not self._is_pausing
        )

    def _stay_paused(self) -> None:
        """Block until `resume`, or until this rank's participation in the job ends."""
        while True:
            with self._pauses:
                self._is_paused = self._is_pausing and not self.is_over
                self._pauses.notify_all()
                if not self._is_paused:
                    return
                self._pauses.wait(INTERVAL_S)
            self.core.idle(time.monotonic())


def _join_aggregators(agent: type[HostAgent], address: str, options: joining.Options) -> Agent:
    """Join at one aggregator, or at several that share the job, each with its standbys."""
    active, standbys = split_standbys(address)
    if "," not in active:
        return _join_one(agent, standbys, active, options)
    join = functools.partial(_join_one, agent, standbys, most_parts=1)
    return ShardedAgent.join_all(split_addresses(active), options, join)


def _join_one(
    agent: type[HostAgent], standbys: tuple[str, ...], address: str, options: joining.Options, **limit: int
) -> Agent:
    """Join one aggregator as one rank, with one agent for each part into which the aggregator splits the job."""
    parts, addresses = join_first(address, standbys, options, **limit)
    agents: list[HostAgent] = []
    try:
        agents += (agent(part) for part in parts)
    except BaseException:
        for each in agents:
            each.leave()
        parts[0].session.leave()
        raise

    def on_event(event: client.SessionEvent) -> None:
        for each in agents:
            each.core.on_event(event, time.monotonic())

    Failover(agents, parts[0], addresses, on_event)
    if len(agents) == 1:
        return agents[0]
    return ShardedAgent([*agents], [], job=options.job, payload_bytes=options.payload_bytes)
