"""The VM's instructions on whole headers, and on headers chosen at run time by their id, the number of their row in the
header table (layout.DESCRIPTOR); -1 stands for a stack element out of bounds."""

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine import raw
from emulator.p4switch.engine.layout import CELL, CTX, DESCRIPTOR_BYTES, ROW
from emulator.p4switch.engine.raw import arg, bits_of, ld8, ld64, put, st8, st64, val
from emulator.p4switch.engine.vm.bits import copy, load_bits, load_wide, store_bits, store_wide
from switchml.runtime.jit import kernel


@kernel
def row_of(frame: int, header: int) -> int:
    """Address of a header's row."""
    return ld64(ld64(frame + CELL.context) + CTX.headers) + header * DESCRIPTOR_BYTES


@kernel
def is_valid(frame: int, row: int) -> int:
    return ld8(frame + ld64(row + ROW.valid)) & 1


@kernel
def set_valid(frame: int, row: int) -> None:
    """Make a header valid, and the other members of its union invalid."""
    siblings = frame + ld64(row + ROW.siblings)
    for i in range(ld64(row + ROW.n_siblings)):
        sibling = row_of(frame, ld64(siblings + 8 * i))
        if is_valid(frame, sibling):
            st8(frame + ld64(sibling + ROW.valid), 0)
    st8(frame + ld64(row + ROW.valid), 1)


@kernel
def varbit_width(frame: int, row: int) -> int:
    """Bits of the varbit field, 0 if there is none."""
    at = ld64(row + ROW.varbit)
    return ld64(frame + at) if at else 0


@kernel
def _assign(frame: int, target: int, source: int) -> None:
    if target < 0:
        return
    to = row_of(frame, target)
    if source < 0 or not is_valid(frame, row_of(frame, source)):
        st8(frame + ld64(to + ROW.valid), 0)
        return
    validity = ld8(frame + ld64(row_of(frame, source) + ROW.valid))
    set_valid(frame, to)
    st8(frame + ld64(to + ROW.valid), validity)
    if target != source:
        copy(frame + ld64(to + ROW.data), frame + ld64(row_of(frame, source) + ROW.data), ld64(to + ROW.total))


@kernel
def _same_bytes(a: int, b: int, n: int) -> bool:
    for i in range(n):  # noqa: SIM110 (compiled: no generators)
        if ld8(a + i) != ld8(b + i):
            return False
    return True


@kernel
def _equal(frame: int, left: int, right: int) -> int:
    if left < 0 or right < 0:
        return 0
    a, b = row_of(frame, left), row_of(frame, right)
    if ld64(a + ROW.type) != ld64(b + ROW.type) or not is_valid(frame, a) or not is_valid(frame, b):
        return 0
    if ld8(frame + ld64(a + ROW.valid)) != ld8(frame + ld64(b + ROW.valid)):
        return 0
    width = varbit_width(frame, a)
    if width != varbit_width(frame, b):
        return 0
    to_varbit = ld64(a + ROW.varbit) - ld64(a + ROW.data)
    fixed = to_varbit if ld64(a + ROW.varbit) else ld64(a + ROW.total)
    if not _same_bytes(frame + ld64(a + ROW.data), frame + ld64(b + ROW.data), fixed):
        return 0
    if width == 0:
        return 1
    return bits_of(_same_bytes(frame + ld64(a + ROW.varbit) + 8, frame + ld64(b + ROW.varbit) + 8, (width + 7) >> 3))


@kernel
def _swap(frame: int, left: int, right: int) -> None:
    if left == right:
        return
    a, b = row_of(frame, left), row_of(frame, right)
    flag = ld8(frame + ld64(a + ROW.valid))
    st8(frame + ld64(a + ROW.valid), ld8(frame + ld64(b + ROW.valid)))
    st8(frame + ld64(b + ROW.valid), flag)
    first, second = frame + ld64(a + ROW.data), frame + ld64(b + ROW.data)
    for at in range(0, ld64(a + ROW.total), 8):
        word = ld64(first + at)
        st64(first + at, ld64(second + at))
        st64(second + at, word)


@kernel
def _shift(frame: int, ids: int, n: int, by: int) -> None:
    """Push or pop: elements are swapped to their new positions; vacated positions become invalid."""
    for step in range(n):
        place = step if by < 0 else n - 1 - step
        source = place - by
        if 0 <= source < n:
            _swap(frame, ld64(ids + 8 * place), ld64(ids + 8 * source))
    for place in range(n):
        if (by > 0 and place < by) or (by < 0 and place >= n + by):
            st8(frame + ld64(row_of(frame, ld64(ids + 8 * place)) + ROW.valid), 0)


@kernel
def _add(frame: int, header: int, is_fast: int) -> None:
    if header < 0:
        return
    row = row_of(frame, header)
    if is_fast:
        set_valid(frame, row)
    elif not is_valid(frame, row):
        width = varbit_width(frame, row)
        raw.clear_block(frame + ld64(row + ROW.data), ld64(row + ROW.total))
        if width:
            st64(frame + ld64(row + ROW.varbit), width)  # a varbit field keeps its width
        set_valid(frame, row)
        st64(frame + CELL.packet_length, ld64(frame + CELL.packet_length) + ld64(row + ROW.n_bytes) + (width >> 3))


@kernel
def _remove(frame: int, header: int) -> None:
    if header < 0:
        return
    row = row_of(frame, header)
    if is_valid(frame, row):
        n = ld64(row + ROW.n_bytes) + (varbit_width(frame, row) >> 3)
        st64(frame + CELL.packet_length, ld64(frame + CELL.packet_length) - n)
        st8(frame + ld64(row + ROW.valid), 0)


@kernel
def _extract(frame: int, at: int, pc: int) -> int:
    """EXTH: returns the next pc."""
    width, has_varbit, longest = val(frame, at, 2), arg(at, 3), arg(at, 4)
    row = row_of(frame, val(frame, at, 1))
    if has_varbit and (width & 7 or width < 0):
        return arg(at, 5)
    extra, fixed = width >> 3, ld64(row + ROW.n_bytes)
    cursor = ld64(frame + CELL.cursor)
    if fixed + extra > ld64(frame + CELL.length) - cursor:
        return arg(at, 6)
    if extra and ((longest and fixed + extra > longest) or extra > ld64(row + ROW.varbit_max)):
        return arg(at, 7)
    source, to = ld64(frame + CELL.packet) + cursor, frame + ld64(row + ROW.data)
    before = ld64(row + ROW.varbit_at) if has_varbit else fixed
    copy(to, source, before)
    if has_varbit:
        varbit = frame + ld64(row + ROW.varbit)
        st64(varbit, width)
        copy(varbit + 8, source + before, extra)
        copy(to + before, source + before + extra, fixed - before)
    end = ld64(row + ROW.varbit) if has_varbit else ld64(row + ROW.data) + ld64(row + ROW.total)
    raw.clear_block(frame + ld64(row + ROW.flags), end - ld64(row + ROW.flags))
    set_valid(frame, row)
    st64(frame + CELL.cursor, cursor + fixed + extra)
    return pc


@kernel
def wire_bytes(frame: int, row: int, to: int) -> int:
    """Write a header in wire format; returns the number of bytes."""
    fixed, data = ld64(row + ROW.n_bytes), frame + ld64(row + ROW.data)
    if ld64(row + ROW.varbit) == 0:
        copy(to, data, fixed)
        return fixed
    before, varbit = ld64(row + ROW.varbit_at), frame + ld64(row + ROW.varbit)
    extra = (ld64(varbit) + 7) >> 3
    copy(to, data, before)
    copy(to + before, varbit + 8, extra)
    copy(to + before + extra, data + before, fixed - before)
    return fixed + extra


@kernel
def _load(frame: int, at: int) -> int:
    """HFIELD: load a field of a header chosen at run time."""
    header, bit, width, number = val(frame, at, 2), arg(at, 3), arg(at, 4), arg(at, 5)
    if header < 0 or width == 0:
        return 0
    row = row_of(frame, header)
    value = load_bits(frame + ld64(row + ROW.data) + (bit >> 3), bit & 7, width)
    if number >= 0 and ld8(frame + ld64(row + ROW.flags) + number) == 0:
        value = (value << (64 - width)) >> (64 - width)
    return value


@kernel
def _store(frame: int, at: int) -> None:
    """HSET: store a field of a header chosen at run time."""
    header, bit, number = val(frame, at, 1), arg(at, 2), arg(at, 5)
    if header < 0:
        return
    row = row_of(frame, header)
    store_bits(frame + ld64(row + ROW.data) + (bit >> 3), bit & 7, arg(at, 3), val(frame, at, 4))
    if number >= 0:
        st8(frame + ld64(row + ROW.flags) + number, val(frame, at, 6))


@kernel
def run_headers(frame: int, at: int, op: int, pc: int) -> int:
    """Execute one instruction of the headers group; returns the next pc."""
    if op == o.HIDX:
        index = val(frame, at, 2)
        put(frame, at, ld64(frame + arg(at, 3) + 8 * index) if 0 <= index < arg(at, 4) else -1)
    elif op == o.HVALID:
        header = val(frame, at, 2)
        put(frame, at, 0 if header < 0 else is_valid(frame, row_of(frame, header)))
    elif op == o.HFIELD:
        put(frame, at, _load(frame, at))
    elif op == o.HSET:
        _store(frame, at)
    elif op == o.HWIDE:
        header, bit, n = val(frame, at, 2), arg(at, 3), arg(at, 5)
        if header < 0:
            raw.clear_block(frame + arg(at, 1), 8 * n)
        else:
            source = frame + ld64(row_of(frame, header) + ROW.data) + (bit >> 3)
            load_wide(frame + arg(at, 1), source, bit & 7, arg(at, 4), n)
    elif op == o.HWSET:
        header, bit = val(frame, at, 1), arg(at, 2)
        if header >= 0:
            to = frame + ld64(row_of(frame, header) + ROW.data) + (bit >> 3)
            store_wide(to, bit & 7, arg(at, 3), frame + arg(at, 4))
    elif op == o.HEQ:
        put(frame, at, _equal(frame, val(frame, at, 2), val(frame, at, 3)))
    elif op == o.HSHIFT:
        _shift(frame, frame + arg(at, 1), arg(at, 2), val(frame, at, 3))
    elif op == o.NEXT:
        put(frame, at, min(max(ld64(frame + arg(at, 1)) + val(frame, at, 2), 0), arg(at, 3)))
    elif op == o.VCOPY:
        raw.copy_block(frame + arg(at, 1), frame + arg(at, 2), 8 + arg(at, 3))
    elif op == o.HADD:
        _add(frame, val(frame, at, 1), arg(at, 2))
    elif op == o.HREM:
        _remove(frame, val(frame, at, 1))
    elif op == o.HCOPY:
        _assign(frame, val(frame, at, 1), val(frame, at, 2))
    elif op == o.EXTH:
        return _extract(frame, at, pc)
    else:  # EMITV
        row = row_of(frame, val(frame, at, 1))
        if is_valid(frame, row):
            out = ld64(frame + CELL.out)
            st64(frame + CELL.out, out + wire_bytes(frame, row, out))
    return pc
