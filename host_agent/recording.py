"""A recording of what this process's agents did, call by call and packet by packet, for host_agent/profile.

`start` makes every agent keep a log, those that join later too, and `stop` ends that. Times are nanoseconds of
CLOCK_MONOTONIC. This module imports quickly, since jobs over Gloo are profiled too.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from host_agent.packet_log import PacketLog  # compiled code takes a while to import

MOST_PACKETS = 1 << 20
"""Default capacity of a packet log (32 MiB of memory, which is only used as records are written)."""


LAUNCH, WAIT, WAIT_FOR_BUCKETS = "switchml.all_reduce", "switchml.wait", "switchml.wait_for_buckets"
"""Names of spans: submitting an all-reduce (its number follows after #), waiting for one, and for all of DDP's."""

KINDS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")
"""Collectives, as records number them."""

Span = Callable[[str], AbstractContextManager[Any]]


@dataclass
class CallRecord:
    """One collective, under way until `done` is set. `kind`: its number in KINDS; `bytes` of the tensor, all ranks'
    shares together; `launch`: the number of the span that
    submitted it (`launching`), -1 if none did; `failed`: it ended with an error, or was still under way when the
    recording ended."""

    tensor: int
    submitted: int
    started: int
    done: int
    bytes: int
    launch: int
    kind: int = 0
    failed: bool = True


CALL = np.dtype([(each.name, "?" if each.type == "bool" else "i8") for each in fields(CallRecord)])
"""The same in an array."""


@dataclass(eq=False)
class AgentLog:
    """One agent's call log and packet log. `before` and `after`: its `stats()` at either end; `ranks`: its ranks in the
    job's default group."""

    job: str
    job_tag: int
    rank: int
    ranks: tuple[int, ...]
    transport: str
    wire: str
    packet_log: PacketLog
    before: dict[str, Any]
    after: dict[str, Any] = field(default_factory=dict)
    calls: dict[int, CallRecord] = field(default_factory=dict)
    ended: int = 0
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Task of the worker's → number of its call, and of its first chunk in it: a seal follows the data."""

    def submitted(self, tensor: int, nbytes: int, kind: str = KINDS[0]) -> None:
        now = time.monotonic_ns()
        self.calls[tensor] = CallRecord(tensor, now, 0, 0, nbytes, _thread.launch, KINDS.index(kind))

    def started(self, tensor: int, places: dict[int, int]) -> None:
        """`places`: the worker's tasks for the call, and the chunk with which each begins."""
        self.places |= {task: (tensor, first) for task, first in places.items()}
        if tensor in self.calls:
            self.calls[tensor].started = time.monotonic_ns()

    def done(self, tensor: int, failed: bool) -> None:
        if tensor in self.calls:
            call = self.calls[tensor]
            call.done, call.failed = time.monotonic_ns(), failed

    @property
    def packets(self) -> np.ndarray:
        """PACKET[records] so far; `tensor` is -1 in those of calls that were under way before."""
        records = self.packet_log.packets[: self.packet_log.counts[0]].copy()
        tasks = np.array([-2, *sorted(self.places)])
        known = np.array([(-1, 0), *(self.places[task] for task in sorted(self.places))])
        at = np.searchsorted(tasks, records["tensor"], side="right") - 1
        at[tasks[at] != records["tensor"]] = 0
        records["tensor"] = known[at, 0]
        records["chunk"] += known[at, 1].astype(np.int32)
        return records

    @property
    def lost(self) -> int:
        """Packets that did not fit into the log."""
        return int(self.packet_log.counts[1])

    def calls_array(self) -> np.ndarray:
        """CALL[calls] in the order of their submission. Calls still under way end with the recording."""
        array = np.array([astuple(call) for call in self.calls.values()], CALL)
        for name in ("started", "done"):
            array[name] = np.where(array[name] == 0, self.ended, array[name])
        return array


class RecordedAgent(Protocol):
    """What a recording needs of an agent."""

    job: str
    job_tag: int
    rank: int
    transport: str
    wire: str
    log: AgentLog | None
    global_ranks: tuple[int, ...]

    def stats(self) -> dict[str, Any]: ...

    def new_packet_log(self, packets: int) -> PacketLog: ...

    def record(self, log: AgentLog | None) -> None: ...


class Recording:
    """The logs of all agents of this process. Make it with `start`."""

    def __init__(self, most_packets: int, span: Span) -> None:
        self.most_packets, self.span = most_packets, span
        self.logs: list[AgentLog] = []


class _Thread(threading.local):
    launch = -1


_thread = _Thread()
_lock = threading.RLock()
_agents: weakref.WeakKeyDictionary[RecordedAgent, None] = weakref.WeakKeyDictionary()
"""In the order in which they joined."""
_current: Recording | None = None
_launches = itertools.count()


def start(most_packets: int = MOST_PACKETS, span: Span = nullcontext) -> Recording:
    """Record all agents of this process, each with at most `most_packets` packets; `span(name)` marks in a profile what
    a thread does. There is one recording at a time: an earlier one ends."""
    global _current
    with _lock:
        if _current is not None:
            stop(_current)
        _current = Recording(most_packets, span)
        for agent in list(_agents):
            _begin(agent, _current)
        return _current


def stop(recording: Recording) -> None:
    """End `recording`; its logs stay as they are."""
    global _current
    with _lock:
        if _current is not recording:
            return
        _current = None
        for agent in list(_agents):
            _finish(agent)


def waiting() -> AbstractContextManager[Any]:
    """Around what waits for an all-reduce."""
    recording = _current
    return nullcontext() if recording is None else recording.span(WAIT)


def is_on() -> bool:
    """Whether a recording is under way."""
    return _current is not None


def launching() -> AbstractContextManager[Any]:
    """Around what submits all-reduces: their records get the number of the span."""
    recording = _current
    return nullcontext() if recording is None else _launching(recording)


@contextlib.contextmanager
def _launching(recording: Recording) -> Iterator[None]:
    number = next(_launches)
    with recording.span(f"{LAUNCH}#{number}"):
        _thread.launch = number
        try:
            yield
        finally:
            _thread.launch = -1


# For agents


def register(agent: RecordedAgent) -> None:
    """An agent begins to work."""
    with _lock:
        _agents[agent] = None
        if _current is not None:
            _begin(agent, _current)


def unregister(agent: RecordedAgent) -> None:
    """An agent has ended its work."""
    with _lock:
        _agents.pop(agent, None)
        _finish(agent)


def _begin(agent: RecordedAgent, recording: Recording) -> None:
    packets = agent.new_packet_log(recording.most_packets)
    log = AgentLog(
        agent.job, agent.job_tag, agent.rank, agent.global_ranks, agent.transport, agent.wire, packets, agent.stats()
    )
    recording.logs.append(log)
    agent.record(log)


def _finish(agent: RecordedAgent) -> None:
    log = agent.log
    if log is not None:
        agent.record(None)
        log.ranks, log.after, log.ended = agent.global_ranks, agent.stats(), time.monotonic_ns()
