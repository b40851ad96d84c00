"""Where the elements of a task's chunks lie, and which chunks have lists of exact sums (docs/protocol.md, section 5).

Kernels over a worker's task records, as in worker.py.
"""

from typing import Any

import numpy as np

from switchml.protocol.collectives import owner_of, place_of
from switchml.runtime.jit import kernel


@kernel(forceinline=True)
def elements_of(task: Any, chunk: int) -> tuple[Any, Any, Any]:
    """(source address, target address, count) of a task's chunk; of a group's list, the group's."""
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
    """`elements_of` of a collective's chunk."""
    start, owner = place_of(task, position) * task.per_chunk, owner_of(task, position)
    offset = start * task.item
    source, target = offset + owner * task.source_step, offset + owner * task.target_step
    count = min(task.per_chunk, task.numel - start)
    return task.source + np.uint64(source), task.target + np.uint64(target), count


@kernel(inline=True)
def position_of(task: Any, chunk: int) -> Any:
    """Number of a chunk among those of its task that have elements of their own."""
    position = chunk - task.first
    return position - position // (task.group + 1) if task.group else position


@kernel(inline=True)
def is_list(task: Any, chunk: int) -> Any:
    """Whether a chunk has, in place of elements of its own, what the chunks of a group before it left open."""
    position = chunk - task.first
    ends_group = position % (task.group + 1) == task.group or position == task.chunks - 1
    return task.group != 0 and ends_group


@kernel(inline=True)
def list_of(task: Any, chunk: int) -> Any:
    """The chunk that has the list of a chunk's group."""
    position = chunk - task.first
    return task.first + min(position - position % (task.group + 1) + task.group, task.chunks - 1)


@kernel(inline=True)
def members_of(task: Any, chunk: int) -> Any:
    """How many chunks share a list; `chunk` has it."""
    return (chunk - task.first) % (task.group + 1)
