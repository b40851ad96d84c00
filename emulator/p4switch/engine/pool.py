"""Stale fields in the compiled engine (interpreter.packet.FieldPool): the plan's `pool` is a stack of the metadata and
headers of finished packets, from the first metadata field on."""

from emulator.p4switch.engine.layout import CELL, CTX, DESCRIPTOR_BYTES, ROW
from emulator.p4switch.engine.plan import PLAN
from emulator.p4switch.engine.raw import clear_block, copy_block, ld8, ld64, st8, st64
from switchml.runtime.jit import kernel


@kernel
def _pooled(plan: int, n: int) -> int:
    """Address of entry n of the pool."""
    return ld64(plan + PLAN.pool) + n * (ld64(plan + PLAN.phv_end) - ld64(plan + PLAN.metadata))


@kernel
def _take(plan: int) -> int:
    """Pop the fields of the most recently finished packet; returns their address, valid until the next push, or 0 if
    the pool is empty."""
    n = ld64(plan + PLAN.pool_n) - 1
    if n < 0:
        return 0
    st64(plan + PLAN.pool_n, n)
    return _pooled(plan, n)


@kernel
def end_packet(plan: int, frame: int) -> None:
    """Push a finished packet's fields."""
    if ld64(plan + PLAN.pool):
        n, start = ld64(plan + PLAN.pool_n), ld64(plan + PLAN.metadata)
        copy_block(_pooled(plan, n), frame + start, ld64(plan + PLAN.phv_end) - start)
        st64(plan + PLAN.pool_n, n + 1)


@kernel
def become_copy(plan: int, frame: int) -> None:
    """Convert the frame to a copy of a packet: valid headers are kept; the others become fully invalid, with fields
    from the pool."""
    n, fields = ld64(plan + PLAN.n_headers), 0
    if ld64(plan + PLAN.pool):
        fields = _take(plan)
    rows = ld64(ld64(frame + CELL.context) + CTX.headers)
    for row in range(rows, rows + n * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES):
        valid, data, total, varbit = (
            frame + ld64(row + ROW.valid), ld64(row + ROW.data), ld64(row + ROW.total), ld64(row + ROW.varbit)
        )  # fmt: skip
        if ld8(valid) & 1:
            continue
        st8(valid, 0)
        if ld64(plan + PLAN.pool) == 0:
            continue
        width = ld64(frame + varbit)
        if fields:
            copy_block(frame + data, fields + data - ld64(plan + PLAN.metadata), total)
        else:
            clear_block(frame + data, total)
        if varbit:
            st64(frame + varbit, width)


@kernel
def begin(plan: int, frame: int) -> None:
    """`begin` of frames.py with fields from the pool."""
    start, fields = ld64(plan + PLAN.metadata), _take(plan)
    size = ld64(plan + PLAN.phv_end) - start
    clear_block(frame + 8, start - 8)
    if fields:
        copy_block(frame + start, fields, size)
    else:
        clear_block(frame + start, size)
    rows = ld64(ld64(frame + CELL.context) + CTX.headers)
    for row in range(rows, rows + ld64(plan + PLAN.n_headers) * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES):
        varbit = ld64(row + ROW.varbit)
        if varbit:
            st64(frame + varbit, 0)
