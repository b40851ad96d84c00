"""What an agent did, packet by packet and call by call, noted while somebody wants to know it (host_agent/profile).

`start` makes every agent of this process take notes, those that join later too, and `stop` ends that. Packets are noted
by the compiled loop, into a tape: arrays of a fixed size, which an agent that takes no notes has none of. All times are
nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from switchml import worker as rules
from switchml.jit import kernel
from switchml.memory import be32, serial_difference, u8_at

SENT, RESENT, RECEIVED, REPEATED = range(4)
"""What a record says: a round's first packet, one more of the same, a result that was waited for, one that was known."""

PACKET = np.dtype(
    [("at", "i8"), ("tensor", "i4"), ("chunk", "i4"), ("seq", "u4"), ("bytes", "i4"), ("what", "i1"), ("version", "i1")],
    align=True,
)
"""One packet. `tensor`: the how-many-eth all-reduce of its agent; `chunk`: its place in it, -1 for a result of a round
from before the notes; `seq`, whose version bit `version` is: the same on all ranks. `bytes` without the headers below
ours; 0 where a result was only asked for in shared memory."""

CALL = np.dtype(
    [("tensor", "i8"), ("submitted", "i8"), ("started", "i8"), ("done", "i8"), ("bytes", "i8"), ("launch", "i8"), ("failed", "?")]
)
"""One all-reduce. `bytes` of the tensor; `launch`: `here.launch` of the thread that submitted it; `failed`: whether it
came to nothing, or was still under way at the end of the notes."""

MOST_PACKETS = 1 << 20
"""What a tape holds if nobody says otherwise (32 MiB, of which what is not used is never touched)."""


class Tape(NamedTuple):
    """PACKET[capacity], int64[2]: records written and records that had no room; int64[S, 2, 2]: tensor and chunk of the
    last round of each slot and version."""

    packets: np.ndarray
    counts: np.ndarray
    rounds: np.ndarray


def new_tape(capacity: int, slots: int) -> Tape:
    """For no notes `capacity` is 0."""
    return Tape(np.zeros(capacity, PACKET), np.zeros(2, np.int64), np.full((slots, 2, 2), -1, np.int64))


@kernel
def _write(tape, what, at, tensor, chunk, seq, version, length):
    if tape.counts[0] == len(tape.packets):
        tape.counts[1] += 1
        return
    packet = tape.packets[tape.counts[0]]
    packet.at, packet.what, packet.tensor, packet.chunk = at, what, tensor, chunk
    packet.seq, packet.version, packet.bytes = seq, version, length
    tape.counts[0] += 1


@kernel
def note_sent(tape, worker, out, fresh, n, asked, at):
    """The packets of the listed slots, `out[:n]`, have left; those from `fresh` on once more, or if `asked` only as a
    question."""
    me = worker.me[0]
    for i in range(n):
        index = out[i]
        slot = worker.slots[index]
        version = slot.round & 1
        tensor, chunk = slot.task, slot.chunk - worker.tasks[slot.task & (rules.TASKS - 1)].first
        tape.rounds[index, version, 0], tape.rounds[index, version, 1] = tensor, chunk
        seq = (me.isn + slot.round * me.slots + index) & 0xFFFFFFFF
        length = 0 if asked and i >= fresh else slot.length
        _write(tape, RESENT if i >= fresh else SENT, at, tensor, chunk, seq, version, length)


@kernel
def is_awaited(worker, address):
    """Whether the result at `address` is the one that its slot waits for. Ask before it is handed in."""
    me = worker.me[0]
    seq = be32(u8_at(address, 6), 2)
    index = seq & (me.slots - 1)
    slot = worker.slots[index]
    return slot.busy and serial_difference(seq, me.isn + slot.round * me.slots + index) == 0


@kernel
def note_received(tape, worker, address, length, awaited, at):
    """A result has been handed in."""
    me = worker.me[0]
    seq = be32(u8_at(address, 6), 2)
    index = seq & (me.slots - 1)
    version = (((seq - me.isn) & 0xFFFFFFFF) // me.slots) & 1
    tensor, chunk = tape.rounds[index, version, 0], tape.rounds[index, version, 1]
    if awaited:
        slot = worker.slots[index]
        tensor, chunk = slot.task, slot.chunk - worker.tasks[slot.task & (rules.TASKS - 1)].first
    _write(tape, RECEIVED if awaited else REPEATED, at, tensor, chunk, seq, version, length)


class _Here(threading.local):
    launch = -1


here = _Here()
"""What this thread is at: `launch` is the number of the all-reduce that it submits, for whoever joins the notes with a
profiler's."""


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
    calls: dict[int, list] = field(default_factory=dict)

    def submitted(self, tensor: int, nbytes: int) -> None:
        self.calls[tensor] = [tensor, time.monotonic_ns(), 0, 0, nbytes, here.launch, True]

    def started(self, tensor: int) -> None:
        if tensor in self.calls:
            self.calls[tensor][2] = time.monotonic_ns()

    def done(self, tensor: int, failed: bool) -> None:
        if tensor in self.calls:
            self.calls[tensor][3], self.calls[tensor][6] = time.monotonic_ns(), failed

    @property
    def packets(self) -> np.ndarray:
        """PACKET[records] so far."""
        return self.tape.packets[: self.tape.counts[0]]

    @property
    def lost(self) -> int:
        """Records that had no room."""
        return int(self.tape.counts[1])

    def calls_array(self) -> np.ndarray:
        """CALL[calls], in the order of their submission; what is still under way ends now."""
        now = time.monotonic_ns()
        calls = [tuple(call) for call in list(self.calls.values())]
        array = np.array(calls, CALL)
        array["started"] = np.where(array["started"] == 0, array["submitted"], array["started"])
        array["done"] = np.where(array["done"] == 0, now, array["done"])
        return array


class Recording:
    """The notes of all agents of this process. Make it with `start`."""

    def __init__(self, most_packets: int) -> None:
        self.most_packets = most_packets
        self.notes: list[Notes] = []


_lock = threading.RLock()
_agents: weakref.WeakSet = weakref.WeakSet()
_current: Recording | None = None
_launches = itertools.count()


def start(most_packets: int = MOST_PACKETS) -> Recording:
    """Have all agents of this process take notes, each of at most `most_packets` packets. There is one recording at a
    time: an earlier one ends."""
    global _current
    with _lock:
        if _current is not None:
            stop(_current)
        _current = Recording(most_packets)
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


def enter(agent) -> None:
    """An agent begins to work."""
    with _lock:
        _agents.add(agent)
        if _current is not None:
            _take_notes(agent, _current)


def leave(agent) -> None:
    """An agent has ended its work."""
    with _lock:
        _agents.discard(agent)
        _finish(agent)


def next_launch() -> int:
    return next(_launches)


def _take_notes(agent, recording: Recording) -> None:
    notes = Notes(
        agent.job,
        agent.tag,
        agent.rank,
        agent.global_ranks,
        agent.transport,
        agent.wire,
        new_tape(recording.most_packets, agent.slots),
        agent.stats(),
    )
    recording.notes.append(notes)
    agent.take_notes(notes)


def _finish(agent) -> None:
    notes = agent.notes
    if notes is not None:
        agent.take_notes(None)
        notes.ranks, notes.after = agent.global_ranks, agent.stats()
