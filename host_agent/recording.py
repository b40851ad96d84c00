"""Recording of the calls and packets of this process's agents, for host_agent/profile.

`start` makes every agent keep a log, including those that join later, and `stop` ends that. Times are nanoseconds of
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
    from host_agent.packet_log import PacketLog  # importing compiled code takes a while

MAX_PACKETS = 1 << 20
"""Default capacity of a packet log (32 MiB of memory, which is only used as records are written)."""


MIN_CHUNK_BYTES = 256
"""No chunk but the last of a call is shorter."""
LAUNCH, WAIT, WAIT_FOR_BUCKETS = "switchml.all_reduce", "switchml.wait", "switchml.wait_for_buckets"
"""Names of spans: submitting an all-reduce (with its number after #), waiting for one, and waiting for all of DDP's."""

KINDS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")
"""Kinds of collectives, numbered as in records."""

Span = Callable[[str], AbstractContextManager[Any]]


@dataclass
class CallRecord:
    """One collective, in progress until `done` is set. `kind`: index in KINDS; `bytes` of the tensor, including all
    ranks' shares; `launch`: number of the span that submitted it (`launching`), -1 without one; `failed`: it ended with
    an error, or was still in progress when the recording ended."""

    tensor: int
    submitted: int
    started: int
    done: int
    bytes: int
    launch: int
    kind: int = 0
    failed: bool = True


CALL = np.dtype([(each.name, "?" if each.type == "bool" else "i8") for each in fields(CallRecord)])
"""dtype of call records."""


@dataclass(eq=False)
class AgentLog:
    """One agent's call log and packet log. `before` and `after`: its `stats()` at the start and the end; `ranks`: its
    ranks in the job's default group."""

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
    """Task of the worker → number of its call, and of its first chunk in the call: a seal follows the data."""
    _piece_of: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Call → the recorded call that it is a later piece of, and a chunk number that no earlier piece reaches."""
    _pending: dict[int, int] = field(default_factory=dict)
    """Pieces under way, by recorded call."""
    _failed: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def submitted(self, tensor: int, nbytes: int, kind: str = KINDS[0]) -> None:
        """Record a new call, or a further piece of the call before (`resumed`)."""
        now, last = time.monotonic_ns(), next(reversed(self.calls), -1)
        with self._lock:
            if _thread.continues and last >= 0 and self.calls[last].launch == _thread.launch:
                whole = self.calls[last]
                self._piece_of[tensor] = last, whole.bytes // MIN_CHUNK_BYTES + tensor - last
                whole.bytes, whole.done, whole.failed = whole.bytes + nbytes, 0, True
                self._pending[last] += 1
                return
            self.calls[tensor] = CallRecord(tensor, now, 0, 0, nbytes, _thread.launch, KINDS.index(kind))
            self._pending[tensor] = 1

    def started(self, tensor: int, places: dict[int, int]) -> None:
        """Record the start of a call. `places`: the worker's tasks for the call, and the first chunk of each."""
        tensor, offset = self._piece_of.get(tensor, (tensor, 0))
        self.places |= {task: (tensor, first + offset) for task, first in places.items()}
        if tensor in self.calls and not self.calls[tensor].started:
            self.calls[tensor].started = time.monotonic_ns()

    def done(self, tensor: int, failed: bool) -> None:
        """Record the end of a call: that of its last piece."""
        tensor, _ = self._piece_of.get(tensor, (tensor, 0))
        if tensor not in self.calls:
            return
        with self._lock:
            self._pending[tensor] -= 1
            self._failed |= {tensor} if failed else set()
            if not self._pending[tensor]:
                call = self.calls[tensor]
                call.done, call.failed = time.monotonic_ns(), tensor in self._failed

    @property
    def packets(self) -> np.ndarray:
        """PACKET[records] so far; `tensor` is -1 for calls that were in progress before the recording."""
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
        """Number of packets that did not fit into the log."""
        return int(self.packet_log.counts[1])

    def calls_array(self) -> np.ndarray:
        """CALL[calls] in the order of submission. Calls still in progress end with the recording."""
        array = np.array([astuple(call) for call in self.calls.values()], CALL)
        for name in ("started", "done"):
            array[name] = np.where(array[name] == 0, self.ended, array[name])
        return array


class RecordedAgent(Protocol):
    """Interface of an agent that a recording uses."""

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
    """The logs of all agents of this process. Created by `start`."""

    def __init__(self, most_packets: int, span: Span) -> None:
        self.most_packets, self.span = most_packets, span
        self.logs: list[AgentLog] = []


class _Thread(threading.local):
    launch, continues = -1, False


_thread = _Thread()
_lock = threading.RLock()
_agents: weakref.WeakKeyDictionary[RecordedAgent, None] = weakref.WeakKeyDictionary()
"""Agents in the order in which they joined."""
_current: Recording | None = None
_launches = itertools.count()


def start(most_packets: int = MAX_PACKETS, span: Span = nullcontext) -> Recording:
    """Record all agents of this process, each with at most `most_packets` packets; `span(name)` creates a profiler
    span. There is one recording at a time: an earlier one ends."""
    global _current
    with _lock:
        if _current is not None:
            stop(_current)
        _current = Recording(most_packets, span)
        for agent in list(_agents):
            _begin(agent, _current)
        return _current


def stop(recording: Recording) -> None:
    """End `recording`; its logs remain unchanged."""
    global _current
    with _lock:
        if _current is not recording:
            return
        _current = None
        for agent in list(_agents):
            _finish(agent)


def waiting() -> AbstractContextManager[Any]:
    """Span around waiting for an all-reduce."""
    recording = _current
    return nullcontext() if recording is None else recording.span(WAIT)


def is_on() -> bool:
    """Whether a recording is active."""
    return _current is not None


def launching() -> AbstractContextManager[Any]:
    """Span around submitting all-reduces: their records get the number of the span."""
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


def launch() -> int:
    """Return the number of the span in which this thread submits collectives, or -1."""
    return _thread.launch


@contextlib.contextmanager
def resumed(launch: int, continues: bool) -> Iterator[None]:
    """Context for submitting, on another thread, a part of what span `launch` has begun. `continues`: as a further
    piece of the call before."""
    _thread.launch, _thread.continues = launch, continues
    try:
        yield
    finally:
        _thread.launch, _thread.continues = -1, False


# Called by agents


def register(agent: RecordedAgent) -> None:
    """Register an agent that starts to work."""
    with _lock:
        _agents[agent] = None
        if _current is not None:
            _begin(agent, _current)


def unregister(agent: RecordedAgent) -> None:
    """Unregister an agent that has stopped working."""
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
