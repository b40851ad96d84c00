"""The packet log, to which the agent's compiled loop writes packet records during a recording (recording.py). Arrays of
fixed size, empty without a recording. Times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from switchml.protocol.worker_state import seq_of, task_at
from switchml.runtime.jit import kernel
from switchml.runtime.memory import be32, serial_difference, u8_at

SENT, RESENT, RECEIVED, REPEATED = range(4)
"""Kinds of records: a round's first packet, a retransmission, an awaited result, a result that had been received
already."""

PACKET = np.dtype(
    {
        "names": ["at", "tensor", "chunk", "seq", "bytes", "what", "version"],
        "formats": ["i8", "i4", "i4", "u4", "i4", "i1", "i1"],
    },
    align=True,
)
"""Record of one packet. `tensor`: number of the worker's task, which recording.py replaces by the index of the call in
its agent; `chunk`: index in the tensor, -1 for a result of a round from before the recording; `seq`, with its version
bit in `version`: the same on all ranks. `bytes`: without headers of lower layers; 0 if the result was only requested in
shared memory. `what`: one of the kinds above."""


class PacketLog(NamedTuple):
    """PACKET[capacity]; int64[2]: number of records written, and of records dropped because the log was full; int64[S,
    2, 2]: tensor and chunk of the last round of each slot and version."""

    packets: np.ndarray
    counts: np.ndarray
    rounds: np.ndarray


def new_packet_log(capacity: int, slots: int) -> PacketLog:
    """Create a packet log; with a `capacity` of 0 nothing is recorded."""
    return PacketLog(np.zeros(capacity, PACKET), np.zeros(2, np.int64), np.full((slots, 2, 2), -1, np.int64))


@kernel
def _write(log, what, at, tensor, chunk, seq, version, length):
    if log.counts[0] == len(log.packets):
        log.counts[1] += 1
        return
    packet = log.packets[log.counts[0]]
    packet.at, packet.what, packet.tensor, packet.chunk = at, what, tensor, chunk
    packet.seq, packet.version, packet.bytes = seq, version, length
    log.counts[0] += 1


@kernel
def log_sent(log, worker, out, fresh, n, probe_only, at):
    """Record that the packets of the listed slots, `out[:n]`, are sent now; those from `fresh` on are retransmissions,
    or with `probe_only` probes without data."""
    for i in range(n):
        index = out[i]
        slot = worker.slots[index]
        tensor, chunk = slot.task, slot.chunk - task_at(worker, slot.task).first
        number = seq_of(worker, index)
        seq, version = number & 0xFFFFFFFF, ((number - worker.scalars[0].identity.isn) // len(worker.slots)) & 1
        log.rounds[index, version, 0], log.rounds[index, version, 1] = tensor, chunk
        length = 0 if probe_only and i >= fresh else slot.length
        _write(log, RESENT if i >= fresh else SENT, at, tensor, chunk, seq, version, length)


@kernel
def is_awaited(worker, address):
    """Whether the result at `address` is the one that its slot awaits. Call it before `worker.receive`."""
    seq = be32(u8_at(address, 6), 2)
    index = seq & (len(worker.slots) - 1)
    return worker.slots[index].busy and serial_difference(seq, seq_of(worker, index)) == 0


@kernel
def log_received(log, worker, address, length, awaited, at):
    """Record a result that `worker.receive` has accepted."""
    slot_count = len(worker.slots)
    seq = be32(u8_at(address, 6), 2)
    index = seq & (slot_count - 1)
    version = (((seq - worker.scalars[0].identity.isn) & 0xFFFFFFFF) // slot_count) & 1
    tensor, chunk = log.rounds[index, version, 0], log.rounds[index, version, 1]
    if awaited:
        slot = worker.slots[index]
        tensor, chunk = slot.task, slot.chunk - task_at(worker, slot.task).first
    _write(log, RECEIVED if awaited else REPEATED, at, tensor, chunk, seq, version, length)
