"""Bit fields in memory, most significant bit first, and small copies: shared by all parts of the VM."""

from emulator.p4switch.engine.raw import be64, copy_block, ld8, ld64, shr, st8, st64, ste64
from switchml.runtime.jit import kernel


@kernel
def low_mask(width: int) -> int:
    """`width` (0..64) one bits."""
    return -1 if width >= 64 else (1 << width) - 1


@kernel
def load_bits(address: int, bit: int, width: int) -> int:
    """Load `width` (1..64) bits that begin `bit` (0..7) bits after an address. Up to 9 bytes are read."""
    word = be64(address)
    if bit + width > 64:
        word = (word << bit) | (ld8(address + 8) >> (8 - bit))
        bit = 0
    return shr(word, 64 - bit - width) & low_mask(width)


@kernel
def store_bits(address: int, bit: int, width: int, value: int) -> None:
    """Store `width` (1..64) bits; up to 9 bytes are read and written."""
    over = bit + width - 64
    if over > 0:
        rest = ld8(address + 8) & low_mask(8 - over)
        st8(address + 8, ((value << (8 - over)) & 255) | rest)
        value = shr(value, over)
        width -= over
    shift = 64 - bit - width
    mask = low_mask(width) << shift
    ste64(address, (be64(address) & ~mask) | ((value << shift) & mask))


@kernel
def load_wide(to: int, address: int, bit: int, width: int, n: int) -> None:
    """Load a field of any width into n limbs."""
    start = bit + width
    if bit == 0 and width == 64 * n:
        for i in range(n):
            st64(to + 8 * i, be64(address + 8 * (n - 1 - i)))
        return
    for i in range(n):
        part = min(width - 64 * i, 64)
        if part <= 0:
            st64(to + 8 * i, 0)
        else:
            start -= part
            if start & 7 == 0 and part == 64:
                st64(to + 8 * i, be64(address + (start >> 3)))
            else:
                st64(to + 8 * i, load_bits(address + (start >> 3), start & 7, part))


@kernel
def store_wide(address: int, bit: int, width: int, source: int) -> None:
    """Store the low `width` bits of limbs into a field."""
    start, i = bit + width, 0
    if bit == 0 and width & 63 == 0:
        n = width >> 6
        for k in range(n):
            ste64(address + 8 * (n - 1 - k), ld64(source + 8 * k))
        return
    while width > 0:
        part = min(width, 64)
        start -= part
        if start & 7 == 0 and part == 64:
            ste64(address + (start >> 3), ld64(source + 8 * i))
        else:
            store_bits(address + (start >> 3), start & 7, part, ld64(source + 8 * i))
        width -= part
        i += 1


@kernel
def copy(to: int, source: int, n: int) -> None:
    """Copy n non-overlapping bytes; short copies need no call."""
    if n > 128:
        copy_block(to, source, n)
    elif n >= 8:
        for at in range(0, n - 7, 8):
            st64(to + at, ld64(source + at))
        if n & 7:
            st64(to + n - 8, ld64(source + n - 8))
    else:
        for at in range(n):
            st8(to + at, ld8(source + at))
