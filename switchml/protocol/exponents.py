"""Exponents needed by the chunks of a worker, and used by their first rounds (docs/protocol.md, section 4). A large
packet has one for each of its blocks (section 7).

Kernels over a worker's State.
"""

from typing import Any

import numpy as np

from switchml.protocol import digits, exact
from switchml.protocol import packet as wire_format
from switchml.protocol.chunks import block_of, elements_of, is_list, position_of
from switchml.protocol.fixedpoint import INT64, RAW, WIRES, canonical, code32, has_digits, need_of
from switchml.protocol.halves import largest
from switchml.protocol.packet import CODE_UNKNOWN, CODE_ZERO
from switchml.protocol.worker_state import AGREED, NEED, USED, State, task_at
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import signed8, u8_at

_WIRES = np.array(WIRES, np.int64)


@kernel(forceinline=True)
def need_of_chunk(w: State, number: int, chunk: int, index: int, row: int) -> int:
    """The exponent code that a chunk of task `number` needs; for blocks the greatest one, with all of them written to
    this row of the slot's `codes`."""
    task = task_at(w, number)
    if task.codes:
        return need_of_blocks(w, task, chunk, w.codes[index, row], False)
    if task.columns or task.fmt == RAW or is_list(task, chunk):
        return int64(CODE_UNKNOWN)  # announced by the chunk's words; not needed for bytes; not known yet for a list
    return need_in(w, task, chunk, False)


@kernel
def need_of_blocks(w: State, task: Any, chunk: int, codes: np.ndarray, finite_only: bool) -> int:
    """Write the exponent code that each block of a task's chunk needs; returns the greatest."""
    source, _, count = elements_of(task, chunk)
    most = int64(CODE_ZERO)
    for block in range(wire_format.MAX_BLOCKS):
        first, elements = block_of(task, block, count)
        codes[block] = CODE_ZERO
        if elements > 0:
            codes[block] = _need_of(w, task, source + np.uint64(first * task.item), elements, finite_only)
        most = max(most, int64(codes[block]))
    return most


@kernel(forceinline=True)
def need_in(w: State, task: Any, chunk: int, finite_only: bool) -> int:
    """Exponent code that the elements of a task's chunk need, or `need` of integers (digits.py)."""
    source, _, count = elements_of(task, chunk)
    return _need_of(w, task, source, count, finite_only)


@kernel(forceinline=True)
def _need_of(w: State, task: Any, source: Address, count: int, finite_only: bool) -> int:
    if has_digits(task.fmt):
        return int64(digits.need_of(task.fmt == INT64, source, count, w.scalars[0].identity.headroom[0]))
    if task.half:
        return int64(code32(largest(task.half, source, count, finite_only)))
    return int64(need_of(task.fmt, source, count, finite_only))


@kernel(forceinline=True)
def guess(me: Any, slot: Any, task: Any) -> int:
    """The exponent code of a SPECULATE round: from the previous tensor, but no less than this rank needs. If sums may
    exclude a rank, it must be known to that rank, too, so it is derived from the previous tensor only."""
    least = slot.need if slot.need != CODE_UNKNOWN and not task.memory else CODE_ZERO
    position = position_of(task, slot.chunk)
    if position < task.history_length:
        last = signed8(u8_at(task.history, task.history_length)[position])
        least = max(least, min(last + me.identity.spread[_WIRES[task.fmt]] // 2, CODE_UNKNOWN - 1))
    return canonical(least, task.fmt)


@kernel
def guess_blocks(w: State, index: int, task: Any) -> None:
    """Guess the exponent code of each block of a slot's packet."""
    first = position_of(task, w.slots[index].chunk) * (task.per_chunk // task.per_block)
    history = u8_at(task.history, task.history_length)
    for block in range(wire_format.MAX_BLOCKS):
        need = w.codes[index, NEED, block]
        least = need if need != CODE_UNKNOWN else int64(CODE_ZERO)
        if first + block < task.history_length:
            least = max(least, min(signed8(history[first + block]), int64(CODE_UNKNOWN - 1)))
        w.codes[index, USED, block] = canonical(least, task.fmt)


@kernel
def use_agreed(w: State, index: int, task: Any) -> bool:
    """Set each block of a slot's packet to the exponent that `ahead` agreed on; returns False if one needs a larger
    one."""
    for block in range(wire_format.MAX_BLOCKS):
        if w.codes[index, NEED, block] > w.codes[index, AGREED, block]:
            return False
        w.codes[index, USED, block] = canonical(w.codes[index, AGREED, block], task.fmt)
    return True


@kernel(inline=True)
def top_of(fmt: int, need: int) -> Any:
    """`top` of a slot whose ranks agree on `need`: the number of digits of integers, or the exponent from which digits
    of exact sums begin."""
    return digits.rounds(fmt == INT64, need) if has_digits(fmt) else exact.bound(fmt, need)
