"""The VM's instructions on multi-limb numbers and on lanes. Limb 0 is the least significant; results may overwrite
operands, except in WMUL."""

from typing import Any

import numba
import numpy as np

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine import raw
from emulator.p4switch.engine.raw import arg, ld8, ld64, ltu, shr, st8, st64, val
from emulator.p4switch.engine.vm.bits import load_wide, low_mask, store_wide
from switchml.runtime.jit import kernel
from switchml.runtime.memory import pointer


@kernel(inline=True)
def _u64(address: int, n: int) -> Any:
    """uint64[n]: an array view, whose indexing the compiler can vectorize."""
    return numba.carray(pointer(np.uintp(address)), (n,), np.uint64)


@kernel(inline=True)
def _u32(address: int, n: int) -> Any:
    return numba.carray(pointer(np.uintp(address)), (n,), np.uint32)


@kernel
def _add(d: int, a: int, b: int, n: int) -> None:
    carry = 0
    for i in range(0, 8 * n, 8):
        left, right = ld64(a + i), ld64(b + i)
        total = left + right
        with_carry = total + carry
        carry = ltu(total, left) | ltu(with_carry, total)
        st64(d + i, with_carry)


@kernel
def _subtract(d: int, a: int, b: int, n: int) -> None:
    borrow = 0
    for i in range(0, 8 * n, 8):
        left, right = ld64(a + i), ld64(b + i)
        rest = left - right
        st64(d + i, rest - borrow)
        borrow = ltu(left, right) | ltu(rest, borrow)


@kernel
def _multiply(d: int, a: int, b: int, n: int) -> None:
    for i in range(n):
        st64(d + 8 * i, 0)
    for i in range(n):
        carry, factor = 0, ld64(a + 8 * i)
        for j in range(n - i):
            other, old = ld64(b + 8 * j), ld64(d + 8 * (i + j))
            low, high = factor * other, raw.mulhu(factor, other)
            total = low + old
            high += ltu(total, low)
            with_carry = total + carry
            high += ltu(with_carry, total)
            st64(d + 8 * (i + j), with_carry)
            carry = high


@kernel
def _extend(d: int, n: int, a: int, k: int, is_signed: int) -> None:
    fill = ld64(a + 8 * (k - 1)) >> 63 if is_signed else 0
    for i in range(n):
        st64(d + 8 * i, ld64(a + 8 * i) if i < k else fill)


@kernel
def _shift_left(d: int, a: int, by: int, n: int) -> None:
    limbs, bits = by >> 6, by & 63
    for i in range(n - 1, -1, -1):
        value = 0
        if i >= limbs:
            value = ld64(a + 8 * (i - limbs)) << bits
            if bits and i > limbs:
                value |= shr(ld64(a + 8 * (i - limbs - 1)), 64 - bits)
        st64(d + 8 * i, value)


@kernel
def _shift_right(d: int, n: int, a: int, k: int, by: int, is_signed: int) -> None:
    limbs, bits = by >> 6, by & 63
    fill = ld64(a + 8 * (k - 1)) >> 63 if is_signed else 0
    for i in range(n):
        at = i + limbs
        low = ld64(a + 8 * at) if at < k else fill
        high = ld64(a + 8 * (at + 1)) if at + 1 < k else fill
        st64(d + 8 * i, (shr(low, bits) | (high << (64 - bits))) if bits else low)


@kernel
def _sign_extend(d: int, a: int, width: int, n: int) -> None:
    whole, bits = width >> 6, width & 63
    sign = (ld64(a + 8 * ((width - 1) >> 6)) << (63 - ((width - 1) & 63))) >> 63
    for i in range(n):
        limb = ld64(a + 8 * i)
        if i == whole and bits:
            limb = (limb & low_mask(bits)) | (sign & ~low_mask(bits))
        elif i >= whole:
            limb = sign
        st64(d + 8 * i, limb)


@kernel
def _compare(a: int, b: int, n: int) -> int:
    top = 8 * (n - 1)
    left, right = ld64(a + top), ld64(b + top)
    if left != right:
        return -1 if left < right else 1
    for i in range(top - 8, -8, -8):
        left, right = ld64(a + i), ld64(b + i)
        if left != right:
            return -1 if ltu(left, right) else 1
    return 0


@kernel(inline=True)
def _swapped(field: Any) -> Any:
    """Byte-swap a uint32, in a form that the compiler can vectorize."""
    ends = ((field & np.uint32(0xFF)) << np.uint32(24)) | (field >> np.uint32(24))
    return ends | ((field & np.uint32(0xFF00)) << np.uint32(8)) | ((field >> np.uint32(8)) & np.uint32(0xFF00))


@kernel
def _load_lanes(d: int, source: int, size: int, n: int) -> None:
    lanes = _u64(d, n)
    if size == 4:
        fields = _u32(source, n)
        for i in range(n):
            lanes[i] = np.uint64(_swapped(fields[i]))
    else:
        for i in range(n):
            at = source + i * size
            st64(d + 8 * i, ld8(at) if size == 1 else raw.be16(at) if size == 2 else raw.be64(at))


@kernel
def _store_lanes(target: int, size: int, a: int, n: int) -> None:
    if size == 4:
        lanes, fields = _u64(a, n), _u32(target, n)
        for i in range(n):
            fields[i] = _swapped(np.uint32(lanes[i]))
    else:
        for i in range(n):
            at, lane = target + i * size, ld64(a + 8 * i)
            if size == 1:
                st8(at, lane)
            elif size == 2:
                raw.ste16(at, lane)
            else:
                raw.ste64(at, lane)


@kernel
def _lanes(frame: int, at: int, op: int) -> None:
    """VAND to VMUL."""
    n = arg(at, 4)
    d, a, b = _u64(frame + arg(at, 1), n), _u64(frame + arg(at, 2), n), _u64(frame + arg(at, 3), n)
    if op == o.VAND:
        for i in range(n):
            d[i] = a[i] & b[i]
    elif op == o.VOR:
        for i in range(n):
            d[i] = a[i] | b[i]
    elif op == o.VXOR:
        for i in range(n):
            d[i] = a[i] ^ b[i]
    elif op == o.VADD:
        for i in range(n):
            d[i] = a[i] + b[i]
    elif op == o.VSUB:
        for i in range(n):
            d[i] = a[i] - b[i]
    else:
        for i in range(n):
            d[i] = a[i] * b[i]


@kernel
def _registers(frame: int, at: int, op: int) -> None:
    """VREG, VREGW."""
    if op == o.VREG:
        words, index, n = frame + arg(at, 2), val(frame, at, 3), arg(at, 4)
        if ltu(index, ld64(words + 8)):
            cells = _u64(ld64(words) + index * ld64(words + 16), n)
            lanes = _u64(frame + arg(at, 1), n)
            for i in range(n):
                lanes[i] = cells[i]
    else:
        words, index, n = frame + arg(at, 1), val(frame, at, 2), arg(at, 3)
        if ltu(index, ld64(words + 8)):
            cells = _u64(ld64(words) + index * ld64(words + 16), n)
            lanes, mask = _u64(frame + arg(at, 4), n), np.uint64(ld64(words + 24))
            for i in range(n):
                cells[i] = lanes[i] & mask


@kernel
def run_wide(frame: int, at: int, op: int) -> int:
    """Execute one instruction of the wide group."""
    d, a, b = frame + arg(at, 1), frame + arg(at, 2), frame + arg(at, 3)
    if op == o.WLD:
        load_wide(d, a, arg(at, 3), arg(at, 4), arg(at, 5))
    elif op == o.VBLD:
        load_wide(d, a + 8, 0, ld64(a), arg(at, 3))
    elif op == o.WST:
        store_wide(d, arg(at, 2), arg(at, 3), frame + arg(at, 4))
    elif op == o.WEXT:
        _extend(d, arg(at, 2), b, arg(at, 4), arg(at, 5))
    elif op == o.WADD:
        _add(d, a, b, arg(at, 4))
    elif op == o.WSUB:
        _subtract(d, a, b, arg(at, 4))
    elif op == o.WMUL:
        _multiply(d, a, b, arg(at, 4))
    elif op == o.WNOT:
        for i in range(0, 8 * arg(at, 3), 8):
            st64(d + i, ~ld64(a + i))
    elif op == o.WSHL:
        _shift_left(d, a, max(ld64(b), 0), arg(at, 4))
    elif op == o.WSHR:
        _shift_right(d, arg(at, 2), b, arg(at, 4), max(val(frame, at, 5), 0), arg(at, 6))
    elif op == o.WSEXT:
        _sign_extend(d, a, arg(at, 3), arg(at, 4))
    elif op == o.WCMP:
        st64(d, _compare(a, b, arg(at, 4)))
    elif op == o.WSEL:
        source = b if ld64(a) else frame + arg(at, 4)
        for i in range(0, 8 * arg(at, 5), 8):
            st64(d + i, ld64(source + i))
    elif op == o.WMOV:
        for i in range(0, 8 * arg(at, 3), 8):
            st64(d + i, ld64(a + i))
    elif op <= o.VMUL:
        _lanes(frame, at, op)
    elif op == o.VANDC:
        n = arg(at, 4)
        lanes, source, mask = _u64(d, n), _u64(a, n), np.uint64(ld64(b))
        for i in range(n):
            lanes[i] = source[i] & mask
    elif op == o.VFILL:
        n = arg(at, 3)
        lanes, value = _u64(d, n), np.uint64(ld64(a))
        for i in range(n):
            lanes[i] = value
    elif op == o.VLD:
        _load_lanes(d, a, arg(at, 3), arg(at, 4))
    elif op == o.VST:
        _store_lanes(d, arg(at, 2), b, arg(at, 4))
    else:
        _registers(frame, at, op)
    return 0
