"""The VM: one loop over instructions. The instructions are documented in opcodes, the frame in layout."""

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine import raw
from emulator.p4switch.engine.layout import CELL, CTX
from emulator.p4switch.engine.raw import arg, bits_of, ld8, ld64, ltu, put, shr, st8, st64, val
from emulator.p4switch.engine.vm import tables
from emulator.p4switch.engine.vm.bits import copy, load_bits, store_bits
from switchml.runtime.jit import kernel

ROW_SHIFT = 5
"""log2 of an instruction's bytes."""
MAX_STATES = 1 << 16
"""Maximum parse states of a packet (interpreter.parser has the same)."""
MAX_LOOPS = 1 << 20
"""Maximum backward jumps of a stage."""
STUCK = 1
"""Status of a stage that exceeded MAX_LOOPS."""


@kernel
def _divide_signed(a: int, b: int, want_rest: int) -> int:
    """Quotient truncated towards 0, or remainder; 0 when dividing by 0."""
    if b == 0:
        return 0
    quotient = raw.divu(abs(a), abs(b))
    if (a < 0) != (b < 0):
        quotient = -quotient
    return a - quotient * b if want_rest else quotient


@kernel
def _peek(frame: int, at: int) -> None:
    """PEEK: read byte by byte, as the packet may end before."""
    data, length = ld64(frame + CELL.packet), ld64(frame + CELL.length)
    first = 8 * ld64(frame + CELL.cursor) + arg(at, 2)
    end, n = first + arg(at, 3), arg(at, 4)
    for i in range(n):
        value = 0
        stop = end - 64 * i
        begin = max(stop - 64, first)
        for bit_at in range((begin >> 3) << 3, stop, 8):
            byte = ld8(data + (bit_at >> 3)) if (bit_at >> 3) < length else 0
            keep = min(stop - bit_at, 8)  # bits of this byte before the end
            value = (value << keep) | (byte >> (8 - keep))
        width = stop - begin
        if width <= 0:
            value = 0
        elif width < 64:
            value &= (1 << width) - 1
        st64(frame + arg(at, 1) + 8 * i, value)


@kernel
def _event(frame: int, at: int) -> None:
    context = ld64(frame + CELL.context)
    place, n = ld64(context + CTX.event_at), arg(at, 3)
    if place + 3 + n > ld64(context + CTX.event_end):
        st64(context + CTX.event_open, 0)
        st64(context + CTX.events_lost, ld64(context + CTX.events_lost) + 1)
        return
    words = ld64(context + CTX.events) + 8 * place
    st64(words, arg(at, 1))
    st64(words + 8, arg(at, 2))
    st64(words + 16, n)
    st64(context + CTX.event_at, place + 3)
    st64(context + CTX.event_open, 1)


@kernel
def _event_add(frame: int, at: int) -> None:
    context = ld64(frame + CELL.context)
    if ld64(context + CTX.event_open) == 0:
        return
    place, n = ld64(context + CTX.event_at), arg(at, 2)
    for i in range(n):
        st64(ld64(context + CTX.events) + 8 * (place + i), ld64(frame + arg(at, 1) + 8 * i))
    st64(context + CTX.event_at, place + n)


@kernel
def run(frame: int, pc: int) -> int:
    """Run from `pc` until END or TRAP; returns the status."""
    code = ld64(ld64(frame + CELL.context) + CTX.code)
    while True:
        at = code + (pc << ROW_SHIFT)
        op = raw.ld32(at)
        pc += 1
        if op == o.END:
            return arg(at, 1)
        elif op == o.JMP:
            pc = arg(at, 1)
        elif op == o.LOOP:
            pc = arg(at, 1)
            n_loops = ld64(frame + CELL.loops) + 1
            st64(frame + CELL.loops, n_loops)
            if n_loops > MAX_LOOPS:
                return STUCK
        elif op == o.JZ:
            if val(frame, at, 1) == 0:
                pc = arg(at, 2)
        elif op == o.JNZ:
            if val(frame, at, 1) != 0:
                pc = arg(at, 2)
        elif op == o.JEQ:
            if val(frame, at, 1) == val(frame, at, 2):
                pc = arg(at, 3)
        elif op == o.JCASE:
            if tables.same_under_mask(frame + arg(at, 1), frame + arg(at, 2), frame + arg(at, 3), arg(at, 4)):
                pc = arg(at, 5)
        elif op == o.JMISS:
            if ld64(frame + CELL.hit) == 0:
                pc = arg(at, 1)
        elif op == o.JMEMBER:
            if ld64(ld64(frame + CELL.target) + tables.TARGET.n_choices) <= 0:
                pc = arg(at, 1)
        elif op == o.JEXIT:
            if ld64(frame + CELL.exit):
                pc = arg(at, 1)
        elif op == o.RNG:
            if ltu(val(frame, at, 1), arg(at, 2)) == 0:
                pc = arg(at, 3)
        elif op == o.MOV:
            put(frame, at, val(frame, at, 2))
        elif op == o.ADD:
            put(frame, at, val(frame, at, 2) + val(frame, at, 3))
        elif op == o.SUB:
            put(frame, at, val(frame, at, 2) - val(frame, at, 3))
        elif op == o.MUL:
            put(frame, at, val(frame, at, 2) * val(frame, at, 3))
        elif op == o.AND:
            put(frame, at, val(frame, at, 2) & val(frame, at, 3))
        elif op == o.OR:
            put(frame, at, val(frame, at, 2) | val(frame, at, 3))
        elif op == o.XOR:
            put(frame, at, val(frame, at, 2) ^ val(frame, at, 3))
        elif op == o.NOT:
            put(frame, at, ~val(frame, at, 2))
        elif op == o.ADDM:
            put(frame, at, (val(frame, at, 2) + val(frame, at, 3)) & val(frame, at, 4))
        elif op == o.SUBM:
            put(frame, at, (val(frame, at, 2) - val(frame, at, 3)) & val(frame, at, 4))
        elif op == o.SHL:
            by = max(val(frame, at, 3), 0)
            put(frame, at, val(frame, at, 2) << (by & 63) if by < 64 else 0)
        elif op == o.SHRU:
            by = max(val(frame, at, 3), 0)
            put(frame, at, shr(val(frame, at, 2), by & 63) if by < 64 else 0)
        elif op == o.SHRS:
            put(frame, at, val(frame, at, 2) >> min(max(val(frame, at, 3), 0), 63))
        elif op == o.SLICE:
            put(frame, at, shr(val(frame, at, 2), arg(at, 3)) & val(frame, at, 4))
        elif op == o.SEXT:
            by = 64 - arg(at, 3)
            put(frame, at, (val(frame, at, 2) << by) >> by)
        elif op == o.DIVS:
            put(frame, at, _divide_signed(val(frame, at, 2), val(frame, at, 3), False))
        elif op == o.REMS:
            put(frame, at, _divide_signed(val(frame, at, 2), val(frame, at, 3), True))
        elif op == o.DIVU:
            by = val(frame, at, 3)
            put(frame, at, raw.divu(val(frame, at, 2), by) if by else 0)
        elif op == o.REMU:
            by = val(frame, at, 3)
            put(frame, at, raw.remu(val(frame, at, 2), by) if by else 0)
        elif op == o.EQ:
            put(frame, at, bits_of(val(frame, at, 2) == val(frame, at, 3)))
        elif op == o.NE:
            put(frame, at, bits_of(val(frame, at, 2) != val(frame, at, 3)))
        elif op == o.LTS:
            put(frame, at, bits_of(val(frame, at, 2) < val(frame, at, 3)))
        elif op == o.LES:
            put(frame, at, bits_of(val(frame, at, 2) <= val(frame, at, 3)))
        elif op == o.LTU:
            put(frame, at, ltu(val(frame, at, 2), val(frame, at, 3)))
        elif op == o.LEU:
            put(frame, at, 1 - ltu(val(frame, at, 3), val(frame, at, 2)))
        elif op == o.SEL:
            put(frame, at, val(frame, at, 3) if val(frame, at, 2) else val(frame, at, 4))
        elif op == o.LD8:
            put(frame, at, ld8(frame + arg(at, 2)))
        elif op == o.LD16:
            put(frame, at, raw.be16(frame + arg(at, 2)))
        elif op == o.LD32:
            put(frame, at, raw.be32(frame + arg(at, 2)))
        elif op == o.LD64:
            put(frame, at, raw.be64(frame + arg(at, 2)))
        elif op == o.LDX:
            put(frame, at, shr(raw.be64(frame + arg(at, 2)), arg(at, 3)) & val(frame, at, 4))
        elif op == o.LDBITS:
            put(frame, at, load_bits(frame + arg(at, 2), arg(at, 3), arg(at, 4)))
        elif op == o.ST8:
            st8(frame + arg(at, 1), val(frame, at, 2))
        elif op == o.ST16:
            raw.ste16(frame + arg(at, 1), val(frame, at, 2))
        elif op == o.ST32:
            raw.ste32(frame + arg(at, 1), val(frame, at, 2))
        elif op == o.ST64:
            raw.ste64(frame + arg(at, 1), val(frame, at, 2))
        elif op == o.STX:
            to, by, mask = frame + arg(at, 1), arg(at, 2), val(frame, at, 3)
            raw.ste64(to, (raw.be64(to) & ~(mask << by)) | ((val(frame, at, 4) & mask) << by))
        elif op == o.STBITS:
            store_bits(frame + arg(at, 1), arg(at, 2), arg(at, 3), val(frame, at, 4))
        elif op == o.SIGNF:
            by = 0 if ld8(frame + arg(at, 4)) else 64 - arg(at, 3)
            put(frame, at, (val(frame, at, 2) << by) >> by)
        elif op == o.EXTR:
            n, cursor = arg(at, 2), ld64(frame + CELL.cursor)
            if cursor + n > ld64(frame + CELL.length):
                pc = arg(at, 4)
            else:
                copy(frame + arg(at, 1), ld64(frame + CELL.packet) + cursor, n)
                st8(frame + arg(at, 3), 1)
                st64(frame + CELL.cursor, cursor + n)
        elif op == o.CLEAR:
            raw.clear_block(frame + arg(at, 1), arg(at, 2))
        elif op == o.LEFT:
            if ld64(frame + CELL.length) - ld64(frame + CELL.cursor) < arg(at, 1):
                pc = arg(at, 2)
        elif op == o.LIMIT:
            n_states = ld64(frame + CELL.states) + 1
            st64(frame + CELL.states, n_states)
            if n_states > MAX_STATES:
                pc = arg(at, 1)
        elif op == o.SKIP:
            by, cursor = val(frame, at, 1), ld64(frame + CELL.cursor)
            if by & 7 or by < 0:
                pc = arg(at, 2)
            elif by >> 3 > ld64(frame + CELL.length) - cursor:
                pc = arg(at, 3)
            else:
                st64(frame + CELL.cursor, cursor + (by >> 3))
        elif op == o.PEEK:
            _peek(frame, at)
        elif op == o.VSET:
            if tables.value_in_set(frame + arg(at, 1), arg(at, 2), frame + arg(at, 3), val(frame, at, 4)):
                pc = arg(at, 5)
        elif op == o.LOOKUP:
            tables.look_up(frame, arg(at, 1), frame + arg(at, 2), arg(at, 3))
        elif op == o.PICK:
            st64(frame + CELL.target, tables.pick(ld64(frame + CELL.target), val(frame, at, 1)))
        elif op == o.CALL:
            target = ld64(frame + CELL.target)
            st64(frame + CELL.args, ld64(target + tables.TARGET.args))
            st64(frame + CELL.return_pc, ld64(target + tables.TARGET.next))
            pc = ld64(target + tables.TARGET.action)
        elif op == o.RET:
            if ld64(frame + CELL.exit):
                return 0
            pc = ld64(frame + CELL.return_pc)
        elif op == o.ARG:
            put(frame, at, ld64(ld64(frame + CELL.args) + 8 * arg(at, 2)))
        elif op == o.REG:
            tables.read_register(frame, at)
        elif op == o.REGW:
            tables.write_register(frame, at)
        elif op == o.COUNT:
            tables.count(frame + arg(at, 1), val(frame, at, 2), ld64(frame + CELL.ingress_length))
        elif op == o.METER:
            length, now = ld64(frame + CELL.ingress_length), ld64(frame + CELL.now)
            put(frame, at, tables.execute_meter(frame + arg(at, 2), val(frame, at, 3), length, now))
        elif op == o.METERD:
            length, now = ld64(frame + CELL.ingress_length), ld64(frame + CELL.now)
            put(frame, at, tables.execute_meter(frame + arg(at, 2), ld64(frame + CELL.index), length, now))
        elif op == o.RANDOM:
            put(frame, at, tables.random_within(frame, val(frame, at, 2), val(frame, at, 3)))
        elif op == o.EMITH:
            if ld8(frame + arg(at, 1)) & 1:
                out, n = ld64(frame + CELL.out), arg(at, 3)
                copy(out, frame + arg(at, 2), n)
                st64(frame + CELL.out, out + n)
        elif op == o.EVENT:
            _event(frame, at)
        elif op == o.EVADD:
            _event_add(frame, at)
        elif op == o.TRAP:
            return arg(at, 1)
        elif op == o.TRUNC:
            limit, before = max(val(frame, at, 1), 0) + 1, ld64(frame + CELL.truncate)
            st64(frame + CELL.truncate, min(before, limit) if before else limit)
        elif op < o.FIRST_HEADER:
            raw.call3(ld64(ld64(frame + CELL.context) + CTX.run_wide), frame, at, op)
        elif op < o.FIRST_HASH:
            pc = raw.call4(ld64(ld64(frame + CELL.context) + CTX.run_headers), frame, at, op, pc)
        else:
            raw.call3(ld64(ld64(frame + CELL.context) + CTX.run_hash), frame, at, op)
