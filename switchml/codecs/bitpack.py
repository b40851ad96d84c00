"""Packs codes of 1 to 16 bits without gaps, lowest bits first."""

import numpy as np

from switchml.runtime.jit import kernel
from switchml.runtime.memory import u32_at


def packed_bytes(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def width(codes: int) -> int:
    """Return the bits needed for `codes` different codes; at least 1."""
    return max(1, (codes - 1).bit_length())


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack uint8[n] or uint16[n], all below 2^bits, into uint8[packed_bytes(n, bits)]."""
    packed = np.empty(packed_bytes(codes.size, bits) + 4, np.uint8)
    _pack(codes, bits, packed)
    return packed[:-4]


def unpack(packed: np.ndarray, bits: int, codes: np.ndarray) -> np.ndarray:
    """Unpack uint8[packed_bytes(codes.size, bits)] into `codes` (uint8 or uint16), and return it."""
    _unpack(np.concatenate([packed, np.zeros(4, np.uint8)]), bits, codes)
    return codes


@kernel
def _pack(codes: np.ndarray, bits: int, packed: np.ndarray) -> None:
    base = packed.ctypes.data
    buffer, filled = np.uint64(0), 0
    for i in range(codes.size):
        buffer |= np.uint64(codes[i]) << np.uint64(filled)
        filled += bits
        if filled >= 32:
            u32_at(base, 1)[0] = np.uint32(buffer & np.uint64(0xFFFFFFFF))
            base += 4
            buffer >>= np.uint64(32)
            filled -= 32
    u32_at(base, 1)[0] = np.uint32(buffer & np.uint64(0xFFFFFFFF))


@kernel
def _unpack(packed: np.ndarray, bits: int, codes: np.ndarray) -> None:
    base = packed.ctypes.data
    mask = np.uint32((1 << bits) - 1)
    for i in range(codes.size):
        place = i * bits
        codes[i] = (u32_at(base + (place >> 3), 1)[0] >> np.uint32(place & 7)) & mask
