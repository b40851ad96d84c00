"""The VM's hash buffer and hash functions; hashes.py has the same in plain Python, with the sources."""

import numpy as np

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.layout import CELL, CTX, HASH_BUFFER_BYTES, ROW
from emulator.p4switch.engine.raw import arg, ld8, ld32, ld64, put, shr, st8, st64, val
from emulator.p4switch.engine.vm.bits import copy, load_bits, low_mask, store_bits
from emulator.p4switch.engine.vm.headers import is_valid, row_of, wire_bytes
from switchml.net.checksum import ones_sum
from switchml.runtime.jit import int64, kernel

_ROOM = 8 * HASH_BUFFER_BYTES - 128


@kernel
def _buffer(frame: int) -> int:
    return ld64(ld64(frame + CELL.context) + CTX.hash_buffer)


@kernel
def _append(frame: int, source: int, bit: int, width: int) -> None:
    """Append bits at any bit offset."""
    buffer, at = _buffer(frame), ld64(frame + CELL.bits)
    if at + width > _ROOM:
        return
    st64(frame + CELL.bits, at + width)
    if (at | bit) & 7 == 0:
        copy(buffer + (at >> 3), source, (width + 7) >> 3)
        return
    while width > 0:
        part = min(width, 64)
        store_bits(buffer + (at >> 3), at & 7, part, load_bits(source + (bit >> 3), bit & 7, part))
        at += part
        bit += part
        width -= part


@kernel
def _append_value(frame: int, value: int, width: int) -> None:
    at = ld64(frame + CELL.bits)
    if width > 0 and at + width <= _ROOM:
        st64(frame + CELL.bits, at + width)
        store_bits(_buffer(frame) + (at >> 3), at & 7, width, value)


@kernel
def _pad(frame: int) -> int:
    """Pad the last byte with zeros; returns the number of bytes."""
    at = ld64(frame + CELL.bits)
    if at & 7:
        last = _buffer(frame) + (at >> 3)
        st8(last, ld8(last) & ~low_mask(8 - (at & 7)))
    st64(frame + CELL.bits, (at + 7) & ~7)
    return (at + 7) >> 3


@kernel
def _reflect(value: int, width: int) -> int:
    result = 0
    for _ in range(width):
        result = (result << 1) | (value & 1)
        value = shr(value, 1)
    return result


@kernel
def _crc(parameters: int, data: int, n: int) -> int:
    width, table = ld64(parameters), ld64(parameters + 40)
    remainder, mask = ld64(parameters + 8), low_mask(width)
    reflect_data = ld64(parameters + 24)
    for i in range(n):
        byte = ld8(data + i)
        if reflect_data:
            byte = _reflect(byte, 8)
        shifted = (remainder << 8) if width > 8 else 0
        remainder = (ld64(table + 8 * ((byte ^ shr(remainder, width - 8)) & 255)) ^ shifted) & mask
    if ld64(parameters + 32):
        remainder = _reflect(remainder, width)
    return remainder ^ ld64(parameters + 16)


@kernel
def _xor_words(data: int, n: int, size: int) -> int:
    result = 0
    for i in range(n):
        result ^= ld8(data + i) << (8 * (size - 1 - i % size))
    return result


@kernel
def _toeplitz(key: int, n_words: int, data: int, n: int) -> int:
    result = 0
    for at in range(0, n, 4):
        word = 0
        for k in range(4):
            word = (word << 8) | (ld8(data + at + k) if at + k < n else 0)
        number = at >> 2
        window = (ld64(key + 8 * (number % n_words)) << 32) | ld64(key + 8 * ((number + 1) % n_words))
        for bit in range(32):
            if (word >> (31 - bit)) & 1:
                result ^= shr(window, 32 - bit) & 0xFFFFFFFF
    return result


@kernel
def _fnv(data: int, n: int) -> int:
    value = 2166136261
    for i in range(n):
        byte = ld8(data + i)
        value = ((value ^ ((byte - 256) if byte > 127 else byte)) * 16777619) & 0xFFFFFFFF
    value = (value + (value << 13)) & 0xFFFFFFFF
    value ^= value >> 7
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 17
    return (value + (value << 5)) & 0xFFFFFFFF


_P1, _P2, _P3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_P4, _P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)

_R1, _R7, _R11, _R12, _R18, _R23, _R27, _R31 = (np.uint64(n) for n in (1, 7, 11, 12, 18, 23, 27, 31))


@kernel
def _rotate(value: np.uint64, n: np.uint64) -> np.uint64:
    return (value << n) | (value >> (np.uint64(64) - n))


@kernel
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, _R31) * _P1


@kernel
def _xxh64(data: int, n: int) -> int:
    at, zero = 0, np.uint64(0)
    if n >= 32:
        a, b, c, d = _P1 + _P2, _P2, zero, zero - _P1
        while n - at >= 32:
            a = _round(a, np.uint64(ld64(data + at)))
            b = _round(b, np.uint64(ld64(data + at + 8)))
            c = _round(c, np.uint64(ld64(data + at + 16)))
            d = _round(d, np.uint64(ld64(data + at + 24)))
            at += 32
        value = _rotate(a, _R1) + _rotate(b, _R7) + _rotate(c, _R12) + _rotate(d, _R18)
        value = (value ^ _round(zero, a)) * _P1 + _P4
        value = (value ^ _round(zero, b)) * _P1 + _P4
        value = (value ^ _round(zero, c)) * _P1 + _P4
        value = (value ^ _round(zero, d)) * _P1 + _P4
    else:
        value = _P5
    value += np.uint64(n)
    while n - at >= 8:
        value = _rotate(value ^ _round(zero, np.uint64(ld64(data + at))), _R27) * _P1 + _P4
        at += 8
    if n - at >= 4:
        value = _rotate(value ^ (np.uint64(ld32(data + at)) * _P1), _R23) * _P2 + _P3
        at += 4
    while at < n:
        value = _rotate(value ^ (np.uint64(ld8(data + at)) * _P5), _R11) * _P1
        at += 1
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return int64(value ^ (value >> np.uint64(32)))


@kernel
def _hash(kind: int, parameters: int, data: int, n: int) -> int:
    if kind == o.CSUM16:
        total: int = ones_sum(data, n, 0)
        return total ^ 0xFFFF
    if kind == o.CRC:
        return _crc(parameters, data, n)
    if kind == o.XOR16:
        return _xor_words(data, n, 2)
    if kind == o.XOR32:
        return _xor_words(data, n, 4)
    if kind == o.IDENTITY:
        return 0 if n == 0 else load_bits(data, 0, 8 * min(n, 8))
    if kind == o.FNV:
        return _fnv(data, n)
    if kind == o.TOEPLITZ:
        return _toeplitz(ld64(parameters + 48), ld64(parameters + 56), data, n)
    return _xxh64(data, n)


@kernel
def run_hash(frame: int, at: int, op: int) -> int:
    """Execute one instruction of the hash group."""
    if op == o.HPUT:
        if ld8(frame + arg(at, 1)) & 1:
            _append(frame, frame + arg(at, 2), arg(at, 3), arg(at, 4))
    elif op == o.HASH:
        n = _pad(frame)
        put(frame, at, _hash(arg(at, 2), val(frame, at, 3), _buffer(frame), n))
    elif op == o.HBEGIN:
        st64(frame + CELL.bits, 0)
    elif op == o.HPUTC:
        _append_value(frame, val(frame, at, 1), arg(at, 2))
    elif op == o.HPUTV:
        row = row_of(frame, val(frame, at, 1))
        if is_valid(frame, row):
            varbit = frame + ld64(row + ROW.varbit)
            _append(frame, varbit + 8, 0, ld64(varbit))
    elif op == o.HPUTH:
        row = row_of(frame, val(frame, at, 1))
        if is_valid(frame, row):
            # Through the buffer's end: the header may have a varbit field, and the buffer may end at any bit.
            spare = _buffer(frame) + HASH_BUFFER_BYTES
            _append(frame, spare, 0, 8 * wire_bytes(frame, row, spare))
    else:  # HPAY
        _pad(frame)
        cursor = ld64(frame + CELL.cursor)
        _append(frame, ld64(frame + CELL.packet) + cursor, 0, 8 * (ld64(frame + CELL.length) - cursor))
    return 0
