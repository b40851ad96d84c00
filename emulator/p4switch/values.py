"""Arithmetic on values: masks, two's complement, conversion on stores to fields and registers, and byte-padded keys.

A value is an unbounded signed integer during evaluation of an expression and is truncated to its width when it is
stored (BMv2's Data, Field::export_bytes and Register::export_bytes).
"""

from collections.abc import Sequence

MAX_WIDTH = 1 << 16
"""Maximum width in bits; the loader rejects wider fields, parameters and registers (p4c's limit is 2048)."""


def mask(width: int) -> int:
    """`width` one bits."""
    return (1 << width) - 1


def n_bytes(width: int) -> int:
    """Number of bytes that hold `width` bits."""
    return (width + 7) // 8


def two_comp_mod(value: int, width: int) -> int:
    """`value` modulo 2^width as a signed number of `width` bits; 0 for width 0."""
    if width <= 0 or width > MAX_WIDTH:
        return 0 if width <= 0 else value
    value &= mask(width)
    return value - (1 << width) if value >> (width - 1) else value


def sat_cast(value: int, width: int) -> int:
    """The signed number of `width` bits nearest to `value`."""
    limit = 1 << (min(width, MAX_WIDTH) - 1) if width > 0 else 0
    return max(-limit, min(value, limit - 1)) if limit else 0


def usat_cast(value: int, width: int) -> int:
    """The unsigned number of `width` bits nearest to `value`."""
    return max(0, min(value, mask(min(max(width, 0), MAX_WIDTH))))


def stored_in_field(value: int, width: int, signed: bool, saturating: bool = False) -> int:
    """The value of a field after storing `value`.

    A signed field stores any value from -2^(width-1) to 2^width - 1 unchanged (so that results of registers or unsigned
    expressions keep their positive sign: BMv2's known quirk) and wraps only values outside."""
    low, high = (-(1 << (width - 1)), mask(width)) if signed and width else (0, mask(width))
    if saturating:
        high = high >> 1 if signed else high
        return max(low, min(value, high))
    if low <= value <= high:
        return value
    return two_comp_mod(value, width) if signed else value & mask(width)


def stored_in_register(value: int, width: int) -> int:
    """The value of a register after storing `value`: the low bits, unsigned, independent of the P4 type."""
    return value & mask(width)


def padded_width(widths: Sequence[int]) -> int:
    """Bits of a key whose parts have these widths, each padded to whole bytes."""
    return sum(8 * n_bytes(width) for width in widths)


def pad_key(value: int, widths: Sequence[int]) -> int:
    """Convert a value of sum(widths) bits to the byte-padded key of parts with these widths (the first is most
    significant)."""
    padded, shift_in, shift_out = 0, 0, 0
    for width in reversed(widths):
        padded |= ((value >> shift_in) & mask(width)) << shift_out
        shift_in += width
        shift_out += 8 * n_bytes(width)
    return padded
