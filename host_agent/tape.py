"""Where the agent's compiled loop notes its packets while somebody wants to know them (recording.py): arrays of a fixed
size, which an agent that takes no notes has none of. Times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from switchml.protocol import worker as rules
from switchml.runtime.jit import kernel
from switchml.runtime.memory import be32, serial_difference, u8_at

SENT, RESENT, RECEIVED, REPEATED = range(4)
"""What a record says: a round's first packet, the same once more, a result that was waited for, one that was known."""

PACKET = np.dtype(
    {
        "names": ["at", "tensor", "chunk", "seq", "bytes", "what", "version"],
        "formats": ["i8", "i4", "i4", "u4", "i4", "i1", "i1"],
    },
    align=True,
)
"""One packet. `tensor`: the how-many-eth all-reduce of its agent; `chunk`: its place in it, -1 for a result of a round
from before the notes; `seq`, whose version bit `version` is: the same on all ranks. `bytes` without the headers below
ours; 0 where a result was only asked for in shared memory."""


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
    """The packets of the listed slots, `out[:n]`, leave now; those from `fresh` on once more, or if `asked` only as a
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
