"""A worker's processing of the result of a large packet with one exponent per block (docs/protocol.md, sections 4 and
7): the rules of results.py, applied block by block.

Kernels over a worker's State.
"""

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.protocol import worker_state
from switchml.protocol.chunks import before_data, block_of, elements_of, position_of
from switchml.protocol.exponents import need_of_blocks
from switchml.protocol.fixedpoint import apply_classes, canonical, decode, keep_classes
from switchml.protocol.halves import narrow
from switchml.protocol.packet import CODE_UNKNOWN
from switchml.protocol.worker_state import State, task_at
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import signed8, u8_at


@kernel
def next_round_of_blocks(w: State, index: int, address: Address, lanes_at: Address) -> int:
    """Mode of the next round, of all blocks; the exponents that they use are written to `codes`. Repeating a block that
    does not need another round gives the same sums."""
    slot, mine, n = w.slots[index], w.codes[index], wire_format.MAX_BLOCKS
    me, task = w.scalars[0], task_at(w, slot.task)
    identity = me.identity
    _, _, count = elements_of(task, slot.chunk)
    flags = u8_at(address, wire_format.HEADER_BYTES)[9] & (wire_format.FLAG_OVERFLOW | wire_format.FLAG_MIXED)
    codes = u8_at(address + np.uint64(before_data(slot) - slot.codes), wire_format.CODES_BYTES)
    need, agreed, differs = int64(wire_format.CODE_ZERO), int64(wire_format.CODE_ZERO), False
    for block in range(n):
        mine[worker_state.AGREED, block] = signed8(codes[block])
        agreed = max(agreed, signed8(codes[block]))
        need = max(need, signed8(codes[n + block]))
        is_there = block_of(task, block, count)[1] > 0
        differs |= is_there and mine[worker_state.USED, block] != canonical(signed8(codes[n + block]), task.fmt)
    slot.agreed = agreed if slot.scanned else CODE_UNKNOWN
    mode = worker_state.SPECULATE
    if slot.mode == worker_state.SPECULATE and need == CODE_UNKNOWN:
        slot.need = need_of_blocks(w, task, slot.chunk, mine[worker_state.NEED], True)
        mine[worker_state.USED, :] = CODE_UNKNOWN
        return worker_state.CLASSIFY
    if slot.mode == worker_state.SPECULATE:
        mode = worker_state.EXACT if flags or differs else worker_state.SPECULATE
    elif flags & wire_format.FLAG_MIXED:
        me.failure.code, me.failure.chunk = worker_state.ERROR_MIXED, slot.chunk
    elif flags & wire_format.FLAG_OVERFLOW:
        me.failure.code, me.failure.chunk = worker_state.ERROR_OVERFLOW, slot.chunk
    elif slot.mode == worker_state.CLASSIFY:
        for block in range(n):
            first, elements = block_of(task, block, count)
            if lanes_at and elements > 0:
                at = lanes_at + np.uint64(block * identity.payload)
                keep_classes(task.fmt, at, elements, w.classes[index, first:])
        slot.classed = 1
        mode = worker_state.EXACT
    if mode == worker_state.EXACT:
        for block in range(n):
            mine[worker_state.USED, block] = canonical(signed8(codes[n + block]), task.fmt)
    return mode


@kernel
def store_blocks(w: State, index: int, address: Address, lanes_at: Address) -> None:
    """Write the sums of a chunk to the target, and store the exponents its blocks needed. Lanes at address 0 are for
    other ranks."""
    slot, n = w.slots[index], wire_format.MAX_BLOCKS
    task, identity = task_at(w, slot.task), w.scalars[0].identity
    _, final, count = elements_of(task, slot.chunk)
    target, item = (np.uint64(w.floats.ctypes.data), 4) if task.half else (final, task.item)
    codes = u8_at(address + np.uint64(before_data(slot) - slot.codes), wire_format.CODES_BYTES)
    first_block = position_of(task, slot.chunk) * (task.per_chunk // task.per_block)
    for block in range(n):
        first, elements = block_of(task, block, count)
        if elements <= 0:
            break
        if lanes_at:
            at, to = lanes_at + np.uint64(block * identity.payload), target + np.uint64(first * item)
            used = w.codes[index, worker_state.USED, block]
            task.misfits += decode(task.fmt, at, to, elements, used, identity.headroom[0], task.divisor)
        if first_block + block < task.history_length:
            u8_at(task.history, task.history_length)[first_block + block] = codes[n + block]
    if slot.classed and lanes_at:
        apply_classes(task.fmt, w.classes[index], target, count)
    if task.half and lanes_at:
        narrow(task.half, target, final, count)
