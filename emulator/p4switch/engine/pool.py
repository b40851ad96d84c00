"""Stale fields in the compiled packet path (interpreter.packet.FieldPool): the plan's `pool` is a stack of what was in
the metadata and headers of packets that have gone, from the first metadata on."""

from emulator.p4switch.engine.layout import CELL, CTX, DESCRIPTOR_BYTES, ROW
from emulator.p4switch.engine.plan import P
from emulator.p4switch.engine.raw import clear_block, copy_block, ld8, ld64, st8, st64
from switchml.runtime.jit import kernel

_CONTEXT, _HEADERS = CELL["context"], CTX["headers"]
_VALID, _DATA, _TOTAL, _VARBIT = (ROW[name] for name in ("valid", "data", "total", "varbit"))
_METADATA, _PHV_END, _POOL, _POOL_N, _N_HEADERS = (
    P[name] for name in ("metadata", "phv_end", "pool", "pool_n", "n_headers")
)


@kernel
def _pooled(plan, n):
    """The address of entry n of the pool."""
    return ld64(plan + _POOL) + n * (ld64(plan + _PHV_END) - ld64(plan + _METADATA))


@kernel
def _take(plan):
    """The address of the fields that went last, which stay there until something else goes; 0 if none have."""
    n = ld64(plan + _POOL_N) - 1
    if n < 0:
        return 0
    st64(plan + _POOL_N, n)
    return _pooled(plan, n)


@kernel
def end_packet(plan, frame):
    """A packet's way has ended."""
    if ld64(plan + _POOL):
        n, start = ld64(plan + _POOL_N), ld64(plan + _METADATA)
        copy_block(_pooled(plan, n), frame + start, ld64(plan + _PHV_END) - start)
        st64(plan + _POOL_N, n + 1)


@kernel
def become_copy(plan, frame):
    """A copy of a packet has its valid headers; the others are invalid in all respects, with fields of the pool."""
    n, fields = ld64(plan + _N_HEADERS), 0
    if ld64(plan + _POOL):
        fields = _take(plan)
    rows = ld64(ld64(frame + _CONTEXT) + _HEADERS)
    for row in range(rows, rows + n * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES):
        valid, data, total, varbit = (
            frame + ld64(row + _VALID), ld64(row + _DATA), ld64(row + _TOTAL), ld64(row + _VARBIT)
        )  # fmt: skip
        if ld8(valid) & 1:
            continue
        st8(valid, 0)
        if ld64(plan + _POOL) == 0:
            continue
        width = ld64(frame + varbit)
        if fields:
            copy_block(frame + data, fields + data - ld64(plan + _METADATA), total)
        else:
            clear_block(frame + data, total)
        if varbit:
            st64(frame + varbit, width)


@kernel
def begin(plan, frame):
    """`_begin` with fields of the pool."""
    start, fields = ld64(plan + _METADATA), _take(plan)
    size = ld64(plan + _PHV_END) - start
    clear_block(frame + 8, start - 8)
    if fields:
        copy_block(frame + start, fields, size)
    else:
        clear_block(frame + start, size)
    rows = ld64(ld64(frame + _CONTEXT) + _HEADERS)
    for row in range(rows, rows + ld64(plan + _N_HEADERS) * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES):
        varbit = ld64(row + _VARBIT)
        if varbit:
            st64(frame + varbit, 0)
