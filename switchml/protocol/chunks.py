"""Positions of the elements of a task's chunks, and of the data in its packets (docs/protocol.md, sections 6, 7 and
11).

Kernels over a worker's State.
"""

from typing import Any

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.protocol.collectives import owner_of, place_of
from switchml.protocol.fixedpoint import LANE_BYTES, LANES
from switchml.protocol.lanes import full_size_code
from switchml.protocol.worker_state import State, task_at
from switchml.runtime.jit import int64, kernel

_ELEMENT_BYTES = np.array(LANES, np.int64) * np.array(LANE_BYTES, np.int64)
"""Bytes of an element in a packet, by format."""
_HEADER = wire_format.HEADER_BYTES
_WORD = wire_format.WORD_BYTES
_STEP = wire_format.LARGE_STEP


@kernel(forceinline=True)
def task_of(w: State, queue: int, chunk: int, hint: int) -> int:
    """Number of the task that has a queue's `chunk`, searching from task number `hint` on."""
    number = hint
    while task_at(w, number).queue != queue or chunk >= task_at(w, number).first + task_at(w, number).chunks:
        number += 1
    return number


@kernel(forceinline=True)
def elements_of(task: Any, chunk: int) -> tuple[Any, Any, Any]:
    """(source address, target address, count) of a task's chunk; for the list of a group, those of the group."""
    if task.addressed:
        return _part_of(task, chunk - task.first)
    start, elements = position_of(task, chunk) * task.per_chunk, task.per_chunk
    if is_list(task, chunk):
        start -= members_of(task, chunk) * task.per_chunk
        elements *= task.group
    offset = np.uint64(start * task.item)
    return task.source + offset, task.target + offset, min(elements, task.numel - start)


@kernel
def _part_of(task: Any, position: int) -> tuple[Any, Any, Any]:
    """`elements_of` for a chunk of a collective."""
    start, owner = place_of(task, position) * task.per_chunk, owner_of(task, position)
    offset = start * task.item
    source, target = offset + owner * task.source_step, offset + owner * task.target_step
    count = min(task.per_chunk, task.numel - start)
    return task.source + np.uint64(source), task.target + np.uint64(target), count


@kernel(inline=True)
def position_of(task: Any, chunk: int) -> Any:
    """Index of a chunk among those of its task that have elements of their own."""
    position = chunk - task.first
    return position - position // (task.group + 1) if task.group else position


@kernel(inline=True)
def is_list(task: Any, chunk: int) -> Any:
    """Whether a chunk is a list of the elements that earlier chunks of its group left undecided, instead of elements of
    its own."""
    position = chunk - task.first
    ends_group = position % (task.group + 1) == task.group or position == task.chunks - 1
    return task.group != 0 and ends_group


@kernel(inline=True)
def list_of(task: Any, chunk: int) -> Any:
    """The chunk with the list of a chunk's group."""
    position = chunk - task.first
    return task.first + min(position - position % (task.group + 1) + task.group, task.chunks - 1)


@kernel(inline=True)
def members_of(task: Any, chunk: int) -> Any:
    """Number of chunks that share the list in `chunk`."""
    return (chunk - task.first) % (task.group + 1)


@kernel(inline=True)
def before_data(slot: Any) -> Any:
    """Bytes of a slot's packet before its data."""
    return _HEADER + _WORD * int64(slot.words) + slot.codes


@kernel(inline=True)
def packet_at(w: State, index: int) -> np.uint64:
    """Address of a slot's packet, which with data ends at the end of its row. Without gaps between rows, packets of
    consecutive slots form one train."""
    slot, end = w.slots[index], rows_before(w, index) + 1
    before = before_data(slot)
    if slot.words:
        return w.wide.ctypes.data + np.uint64(end * w.wide.shape[1] - before - slot.capacity)
    return w.packets.ctypes.data + np.uint64(end * w.packets.shape[1] - before - slot.capacity)


@kernel(inline=True)
def rows_before(w: State, index: int) -> Any:
    """Number of rows before that of a slot's packet: even and odd rounds have separate rows."""
    slot = w.slots[index]
    return index + (slot.round & 1) * w.scalars[0].identity.slots


@kernel(inline=True)
def kept_at(w: State, index: int) -> np.uint64:
    """Address of the lanes that a root stores: after its packet, which has none, and after the packet's tag."""
    return packet_at(w, index) + np.uint64(before_data(w.slots[index]) + w.scalars[0].identity.trailer)


@kernel(inline=True)
def data_of(identity: Any, task: Any, count: int) -> Any:
    """Data bytes in the packets of a chunk of `count` elements, for ranks that send data. Large packets are no larger
    than necessary; others are always full."""
    if task.capacity == identity.payload:
        return task.capacity
    if task.codes:
        whole = count // task.per_block
        rest = ((count - whole * task.per_block) * _ELEMENT_BYTES[task.fmt] + _STEP - 1) & -_STEP
        return whole * identity.payload + rest
    return (count * _ELEMENT_BYTES[task.fmt] + _STEP - 1) & -_STEP


@kernel(inline=True)
def size_code(identity: Any, slot: Any) -> Any:
    """Size code of a slot's packet, if it is a dense one."""
    if slot.capacity > identity.payload:
        return wire_format.BLOCKS if slot.codes else wire_format.LARGE
    return full_size_code(identity.payload)


@kernel(inline=True)
def block_of(task: Any, block: int, count: int) -> tuple[Any, Any]:
    """(first element, count) of a block of a chunk of `count` elements; the count is 0 or negative after the
    last one."""
    first = block * task.per_block
    return first, min(task.per_block, count - first)
