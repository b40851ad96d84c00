"""What the agents of this process did, call by call and packet by packet, noted while somebody wants to know it
(host_agent/profile).

`start` makes every agent take notes, those that join later too, and `stop` ends that. Times are nanoseconds of
CLOCK_MONOTONIC. Nothing here takes long to import: a job over Gloo is profiled too.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from host_agent.agent import HostAgent
    from host_agent.tape import Tape

CALL = np.dtype(
    {
        "names": ["tensor", "submitted", "started", "done", "bytes", "launch", "failed"],
        "formats": ["i8", "i8", "i8", "i8", "i8", "i8", "?"],
    }
)
"""One all-reduce, the fields of `Call`. `bytes` of the tensor; `launch`: the number of the span that submitted it
(`launching`), -1 if none did; `failed`: whether it came to nothing, or was still under way at the end of the notes."""

MOST_PACKETS = 1 << 20
"""What a tape holds if nobody says otherwise (32 MiB, of which what is not used is never touched)."""


LAUNCH, WAIT, WAIT_FOR_BUCKETS = "switchml.all_reduce", "switchml.wait", "switchml.wait_for_buckets"
"""Names of spans: submitting an all-reduce (its number follows after #), waiting for one, and for all of DDP's."""

Span = Callable[[str], AbstractContextManager]


@dataclass
class Call:
    """One all-reduce, under way until `done` is set."""

    tensor: int
    submitted: int
    started: int
    done: int
    bytes: int
    launch: int
    failed: bool = True


@dataclass(eq=False)
class Notes:
    """One agent's. `before` and `after`: its `stats()` at either end; `ranks`: its ranks in the job's default group."""

    job: str
    tag: int
    rank: int
    ranks: tuple[int, ...]
    transport: str
    wire: str
    tape: Tape
    before: dict
    after: dict = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    ended: int = 0

    def submitted(self, tensor: int, nbytes: int) -> None:
        self.calls[tensor] = Call(tensor, time.monotonic_ns(), 0, 0, nbytes, _here.launch)

    def started(self, tensor: int) -> None:
        if tensor in self.calls:
            self.calls[tensor].started = time.monotonic_ns()

    def done(self, tensor: int, failed: bool) -> None:
        if tensor in self.calls:
            call = self.calls[tensor]
            call.done, call.failed = time.monotonic_ns(), failed

    @property
    def packets(self) -> np.ndarray:
        """PACKET[records] so far."""
        return self.tape.packets[: self.tape.counts[0]]

    @property
    def lost(self) -> int:
        """Records that had no room."""
        return int(self.tape.counts[1])

    def calls_array(self) -> np.ndarray:
        """CALL[calls] in the order of their submission. What was still under way ends with the notes."""
        array = np.array([astuple(call) for call in self.calls.values()], CALL)
        for name in ("started", "done"):
            array[name] = np.where(array[name] == 0, self.ended, array[name])
        return array


class Recording:
    """The notes of all agents of this process. Make it with `start`."""

    def __init__(self, most_packets: int, span: Span) -> None:
        self.most_packets, self.span = most_packets, span
        self.notes: list[Notes] = []


class _Here(threading.local):
    launch = -1


_here = _Here()
_lock = threading.RLock()
_agents: weakref.WeakSet[HostAgent] = weakref.WeakSet()
_current: Recording | None = None
_launches = itertools.count()


def start(most_packets: int = MOST_PACKETS, span: Span = nullcontext) -> Recording:
    """Have all agents of this process take notes, each of at most `most_packets` packets; `span(name)` tells a profiler
    what a thread is at. There is one recording at a time: an earlier one ends."""
    global _current
    with _lock:
        if _current is not None:
            stop(_current)
        _current = Recording(most_packets, span)
        for agent in list(_agents):
            _take_notes(agent, _current)
        return _current


def stop(recording: Recording) -> None:
    """End the notes; what `recording` has stays as it is."""
    global _current
    with _lock:
        if _current is not recording:
            return
        _current = None
        for agent in list(_agents):
            _finish(agent)


def waiting() -> AbstractContextManager:
    """Around what waits for an all-reduce."""
    recording = _current
    return nullcontext() if recording is None else recording.span(WAIT)


def launching() -> AbstractContextManager:
    """Around what submits all-reduces: their notes get the number of the span."""
    recording = _current
    return nullcontext() if recording is None else _launching(recording)


@contextlib.contextmanager
def _launching(recording: Recording) -> Iterator[None]:
    number = next(_launches)
    with recording.span(f"{LAUNCH}#{number}"):
        _here.launch = number
        try:
            yield
        finally:
            _here.launch = -1


# For agents


def enter(agent: HostAgent) -> None:
    """An agent begins to work."""
    with _lock:
        _agents.add(agent)
        if _current is not None:
            _take_notes(agent, _current)


def leave(agent: HostAgent) -> None:
    """An agent has ended its work."""
    with _lock:
        _agents.discard(agent)
        _finish(agent)


def _take_notes(agent: HostAgent, recording: Recording) -> None:
    tape = agent.new_tape(recording.most_packets)
    notes = Notes(
        agent.job, agent.tag, agent.rank, agent.global_ranks, agent.transport, agent.wire, tape, agent.stats()
    )
    recording.notes.append(notes)
    agent.take_notes(notes)


def _finish(agent: HostAgent) -> None:
    notes = agent.notes
    if notes is not None:
        agent.take_notes(None)
        notes.ranks, notes.after, notes.ended = agent.global_ranks, agent.stats(), time.monotonic_ns()
