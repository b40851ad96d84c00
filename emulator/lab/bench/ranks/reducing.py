"""A rank that all-reduces tensors, or has another collective, times each repeat and checks every result.

A repeat is three requests: `fill` the tensor, `reduce` it, `check` the result. So all ranks are ready before the first
one begins, and none compares sums, which keeps a core busy, while another still waits for the last of its own.
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
"""DENSE: switchml without skipping the blocks of zeros that SWITCHML skips. PLAIN: without the tags that SWITCHML's
packets carry. INT32: one round of int32 lanes where SWITCHML's sums are exact. NODE: switchml with hierarchy "node"."""


@dataclass(frozen=True)
class Calls:
    """Whose calls are measured. `api`: "agent", HostAgent's of NumPy arrays, or "torch", torch.distributed's with the
    backend `switchml`. `device`: "cpu", or "cuda" for torch's tensors on a GPU."""

    api: str = "agent"
    device: str = "cpu"

    def needs_torch(self, backends: Sequence[str]) -> bool:
        """To measure those."""
        return self.api == "torch" or GLOO in backends


AGENTS = Calls()
Begin = Callable[[Step, bool], Any]
"""Has a step of a backend: with True, begins it and returns what `wait` ends; else carries it out."""
PEER_TIMEOUT_S = 60.0
"""Of ranks that are measured, and of aggregators behind emulated links: their control connections lose packets there,
too, and share cores with all of the network. TCP then may take ten seconds to be heard."""
_COMPARED = 1 << 20
"""Elements compared at once."""
GAUGES = ("rtt_s", "rto_s", "window")
"""Values in `HostAgent.stats()` that describe the present; all other numbers are counters."""


@dataclass(frozen=True)
class Target:
    """An aggregator: its control port's HOST:PORT, how to reach it, and the payload of its packets. `slots`: of the
    job, 0 for the aggregator's choice. `authenticate`: with tags on packets."""

    address: str
    transport: str = "auto"
    payload_bytes: int = 1024
    slots: int = 0
    authenticate: bool = False


@dataclass(frozen=True)
class ReducingJob:
    """Which aggregators to join, `targets` by backend, and, if torch has a part in it (`needs_torch`), where its
    process groups meet, `rendezvous`. `calls`: whose."""

    name: str
    wire: str
    backends: tuple[str, ...]
    targets: dict[str, Target]
    tensors: SharedTensors
    rendezvous: str
    calls: Calls = AGENTS


@dataclass(frozen=True)
class Sample:
    """One repeat on one rank."""

    seconds: float
    """Of the whole repeat."""
    error: float
    """The largest absolute difference from an exact sum."""
    largest: float
    """The largest magnitude of an exact sum."""
    checksum: int
    """Equal on two ranks whose results have the same bits."""
    usage: dict[str, float] = field(default_factory=dict)
    """user_s, system_s, voluntary and involuntary context switches of the process in this repeat."""
    agent: dict[str, float] = field(default_factory=dict)
    """Counters of `HostAgent.stats()`: by how much they grew; gauges: their value."""


def compare(result: np.ndarray, sums: np.ndarray, dtype: str) -> tuple[float, float, int]:
    """(largest |result - sum|, largest |sum|, checksum of result's bits), of elements of `dtype` and float64."""
    error = largest = 0.0
    for first in range(0, result.size, _COMPARED):
        part = slice(first, first + _COMPARED)
        off = np.abs(numbers(result[part], dtype) - sums[part]).max()
        error = max(error, float(off)) if off == off else np.inf
        largest = max(largest, float(np.abs(sums[part]).max()))
    return error, largest, zlib.crc32(result.data)


class ReducingRank(CallableRank):
    """One rank of a `ReducingJob`: is asked to join, then to prepare, fill, reduce and check."""

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
        """The transports that the agents have chosen, by backend."""
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
        """Have tensors ready for a case."""
        self._case, self._work = case, Workload(case, self._tensors, self._place.rank)
        if self._groups is not None:
            self._groups.prepare(self._work)

    def fill(self) -> None:
        """Put the input into the tensor."""
        self._work.fill()
        if self._groups is not None:
            self._groups.put()

    def check(self) -> Sample:
        """Compare the result with the exact sums."""
        if self._groups is not None:
            self._groups.fetch()
        error, largest, bits = compare(self._work.result, self._work.expected, self._case.dtype)
        checksum = bits if self._case.is_same_everywhere else 0
        return Sample(self._seconds, error, largest, checksum, self._usage, self._counts)

    def reduce(self, backend: str) -> None:
        """One repeat of the case."""
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
    """By address, as NumPy has no such dtype."""
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
