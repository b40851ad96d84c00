"""A rank that runs all-reduces or other collectives, times each repeat and checks every result.

A repeat is three requests: `fill` the tensor, `reduce` it, `check` the result. Thus all ranks are ready before the
first one begins, and no rank compares sums, which keeps a core busy, while another is still reducing.
"""

import functools
import resource
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.lab.bench.ranks.inputs import SharedTensors, numbers
from emulator.lab.bench.ranks.process import CallableRank, RankPlace
from emulator.lab.bench.ranks.workload import Step, Workload
from emulator.lab.bench.sizes import Case
from host_agent.agent import HostAgent
from host_agent.base import Agent
from host_agent.calls import Handle
from host_agent.collectives import CollectiveCall
from host_agent.density import Choice

if TYPE_CHECKING:
    from emulator.lab.bench.ranks.groups import Groups

SWITCHML, DENSE, PLAIN, INT32, NODE, GLOO = "switchml", "dense", "plain", "int32", "node", "gloo"
"""Backends of a benchmark. DENSE: switchml without skipping the blocks of zeros that SWITCHML skips. PLAIN: without the
authentication tags that SWITCHML's packets carry. INT32: one round of int32 lanes where SWITCHML's sums are exact.
NODE: switchml with hierarchy "node"."""


@dataclass(frozen=True)
class Calls:
    """The API that is measured. `api`: "agent", HostAgent with NumPy arrays, or "torch", torch.distributed with the
    backend `switchml`. `device`: "cpu", or "cuda" for torch tensors on a GPU."""

    api: str = "agent"
    device: str = "cpu"

    def needs_torch(self, backends: Sequence[str]) -> bool:
        """Whether measuring these backends needs torch."""
        return self.api == "torch" or GLOO in backends


AGENTS = Calls()
Begin = Callable[[Step, bool], Any]
"""Start a step's collective in a backend: with True, returns a handle whose `wait` completes it; with False, blocks."""
PEER_TIMEOUT_S = 60.0
"""Peer timeout of measured ranks, and of aggregators behind emulated links, whose control connections share lossy links
and cores with the whole network: TCP may then need ten seconds to deliver."""
_COMPARED = 1 << 20
"""Elements compared at once."""
GAUGES = ("rtt_s", "rto_s", "window")
"""Values in `HostAgent.stats()` that describe the current state; all other numbers are counters."""


@dataclass(frozen=True)
class Target:
    """An aggregator: its control port's HOST:PORT, the transport, and the payload size of packets in bytes. `slots`: of
    the job, 0 for the aggregator's choice. `authenticate`: with authentication tags on packets."""

    address: str
    transport: str = "auto"
    payload_bytes: int = 1024
    slots: int = 0
    authenticate: bool = False


@dataclass(frozen=True)
class ReducingJob:
    """A job of reducing ranks. `targets`: the aggregators to join, by backend. `rendezvous`: of the process groups, if
    torch is needed (`needs_torch`). `calls`: the API that is measured."""

    name: str
    wire: str
    backends: tuple[str, ...]
    targets: dict[str, Target]
    tensors: SharedTensors
    rendezvous: str
    calls: Calls = AGENTS


@dataclass(frozen=True)
class Sample:
    """Results of one repeat on one rank."""

    seconds: float
    """Seconds of the whole repeat."""
    error: float
    """Largest absolute difference from an exact sum."""
    largest: float
    """Largest magnitude of an exact sum."""
    checksum: int
    """Checksum of the result's bits."""
    usage: dict[str, float] = field(default_factory=dict)
    """user_s, system_s, voluntary and involuntary context switches of the process in this repeat."""
    agent: dict[str, float] = field(default_factory=dict)
    """`HostAgent.stats()`: the increase of counters, the value of gauges."""


def compare(result: np.ndarray, sums: np.ndarray, dtype: str) -> tuple[float, float, int]:
    """Compare a result of `dtype` with the exact float64 sums. Returns (largest |result - sum|, largest |sum|, checksum
    of the result's bits)."""
    error = largest = 0.0
    for first in range(0, result.size, _COMPARED):
        part = slice(first, first + _COMPARED)
        off = np.abs(numbers(result[part], dtype) - sums[part]).max()
        error = max(error, float(off)) if off == off else np.inf
        largest = max(largest, float(np.abs(sums[part]).max()))
    return error, largest, zlib.crc32(result.data)


class ReducingRank(CallableRank):
    """One rank of a `ReducingJob`. Requests: first join, then prepare, fill, reduce and check."""

    def __init__(self, place: RankPlace):
        self._place = place
        self._agents: dict[str, Agent] = {}
        self._begin: dict[str, Begin] = {}
        self._groups: Groups | None = None

    def leave(self) -> None:
        if self._groups is not None:
            self._groups.leave()
        for agent in self._agents.values():
            agent.leave()

    def join(self, job: ReducingJob) -> dict[str, str]:
        """Join all backends. Returns the transports that the agents chose, by backend."""
        self._tensors = job.tensors
        sparse = job.tensors.sparsity.choice if job.tensors.sparsity else Choice()
        if job.calls.needs_torch(job.backends):
            from emulator.lab.bench.ranks.groups import Groups

            self._groups = Groups(self._place, job.rendezvous, job.calls.device)
        for backend in job.backends:
            if backend == GLOO:
                assert self._groups is not None
                self._begin[backend] = self._groups.begins()
            elif job.calls.api == "torch":
                self._begin[backend] = self._join_by_torch(job, backend)
            elif backend in (DENSE, INT32):
                self._agents[backend] = self._agents[SWITCHML]
                self._begin[backend] = _switchml(self._agents[SWITCHML], Choice(), INT32 if backend == INT32 else None)
            else:
                self._agents[backend] = self._join_aggregator(job, backend)
                self._begin[backend] = _switchml(self._agents[backend], sparse)
        return {backend: agent.transport for backend, agent in self._agents.items()}

    def _join_by_torch(self, job: ReducingJob, backend: str) -> Begin:
        target = job.targets[backend]
        assert self._groups is not None
        group = self._groups.switchml(
            aggregator=target.address, transport=target.transport, wire=job.wire, job=f"{job.name}-{backend}"
        )
        assert group.agent is not None
        self._agents[backend] = group.agent
        return self._groups.begins(group)

    def _join_aggregator(self, job: ReducingJob, backend: str) -> Agent:
        target = job.targets[backend]
        return HostAgent.join(
            target.address,
            job=f"{job.name}-{backend}",
            rank=self._place.rank,
            world_size=self._place.world_size,
            peer_timeout_s=PEER_TIMEOUT_S,
            transport=target.transport,
            payload_bytes=target.payload_bytes,
            slots=target.slots,
            wire=job.wire,
            hierarchy="node" if backend == NODE else "none",
            authenticate=target.authenticate,
        )

    def prepare(self, case: Case) -> None:
        """Allocate the tensors for a case."""
        self._case, self._work = case, Workload(case, self._tensors, self._place.rank)
        if self._groups is not None:
            self._groups.prepare(self._work)

    def fill(self) -> None:
        """Write the inputs into the tensors."""
        self._work.fill()
        if self._groups is not None:
            self._groups.put()

    def check(self) -> Sample:
        """Compare the results with the exact sums."""
        if self._groups is not None:
            self._groups.fetch()
        error, largest, bits = compare(self._work.result, self._work.expected, self._case.dtype)
        checksum = bits if self._case.is_same_everywhere else 0
        return Sample(self._seconds, error, largest, checksum, self._usage, self._counts)

    def reduce(self, backend: str) -> None:
        """Run and time one repeat of the case."""
        agent, begin, calls = self._agents.get(backend), self._begin[backend], self._work.calls
        if self._case.overlapped:
            calls = [[step for call in calls for step in call]]
        usage, counts = _usage(), agent.stats() if agent is not None else {}
        started = time.perf_counter()
        for call in calls:
            if len(call) == 1:
                begin(call[0], False)
                continue
            for handle in [begin(step, True) for step in call]:
                handle.wait()
        if self._groups is not None:
            self._groups.synchronize()
        self._seconds = time.perf_counter() - started
        self._usage = _growth(usage, _usage())
        self._counts = _growth(counts, agent.stats() if agent is not None else {})


def _switchml(agent: Agent, sparse: Choice, wire: str | None = None) -> Begin:
    def begin(step: Step, async_op: bool) -> Any:
        if step.dtype == "bfloat16":
            return _begin_bfloat16(agent, step, async_op)
        if step.kind == "all_reduce":
            return agent.allreduce(step.source, out=step.target, async_op=async_op, sparse=sparse, wire=wire)
        return getattr(agent, step.kind)(step.source, out=step.target, async_op=async_op)

    return begin


def _begin_bfloat16(agent: Agent, step: Step, async_op: bool) -> Any:
    """Start a bfloat16 step by memory address, as NumPy has no such dtype."""
    handle, at = Handle(), (step.source.ctypes.data, step.target.ctypes.data)
    done, keep = functools.partial(handle.finish, result=None), step
    if step.kind == "all_reduce":
        agent.allreduce_address(*at, step.target.size, step.dtype, "sum", done, keep=keep)
    else:
        share = step.target if step.kind == "reduce_scatter" else step.source
        agent.submit_collective(CollectiveCall(step.kind, *at, share.size, step.dtype, share.itemsize), done, keep=keep)
    return handle if async_op else handle.wait()


def _usage() -> dict[str, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {"user_s": own.ru_utime, "system_s": own.ru_stime, "voluntary": own.ru_nvcsw, "involuntary": own.ru_nivcsw}


def _growth(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in after.items() if isinstance(value, (int, float))}
    return {name: value if name in GAUGES else value - before.get(name, 0) for name, value in numbers.items()}
