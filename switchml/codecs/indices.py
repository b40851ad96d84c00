"""Packs ascending indices in about 2 + log2(n/k) bits each: Elias-Fano code, whose size depends on k and n only.

The `low` = floor(log2(n/k)) lower bits of every index are packed unchanged; the upper parts never decrease and are
written in unary: bit (index >> low) + i is set for the i-th index. (P. Elias, "Efficient storage and retrieval by
content and address of static files", 1974.)
"""

import numpy as np

from switchml.errors import PayloadError
from switchml.runtime.jit import int64, kernel


def _low_bits(k: int, n: int) -> int:
    return (n // k).bit_length() - 1


def packed_bytes(k: int, n: int) -> int:
    """Return the size of k packed indices below n."""
    if k == 0:
        return 0
    low = _low_bits(k, n)
    return (k * low + 7) // 8 + (k + ((n - 1) >> low) + 8) // 8


def pack(indices: np.ndarray, n: int) -> np.ndarray:
    """Pack int64[k], strictly ascending, below n, into uint8[packed_bytes(k, n)]."""
    k = indices.size
    packed = np.zeros(packed_bytes(k, n), np.uint8)
    if k:
        low = _low_bits(k, n)
        _pack(indices, low, packed[: (k * low + 7) // 8], packed[(k * low + 7) // 8 :])
    return packed


def unpack(packed: np.ndarray, k: int, n: int) -> np.ndarray:
    """Invert `pack`, and return int64[k]. Raises PayloadError unless these are k ascending indices below n."""
    if k > n or packed.size != packed_bytes(k, n):
        raise PayloadError(f"{k} indices below {n} in {packed.size} bytes: the payload is damaged")
    indices = np.empty(k, np.int64)
    if k:
        low = _low_bits(k, n)
        split = (k * low + 7) // 8
        if not _unpack(packed[:split], packed[split:], low, n, indices):
            raise PayloadError(f"{k} indices below {n} are not in ascending order: the payload is damaged")
    return indices


@kernel
def _pack(indices: np.ndarray, low: int, lower: np.ndarray, upper: np.ndarray) -> None:
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    buffer, bits, place = np.uint64(0), 0, 0
    for i in range(indices.size):
        index = np.uint64(indices[i])
        unary = int64(index >> np.uint64(low)) + i
        upper[unary >> 3] |= np.uint8(1 << (unary & 7))
        buffer |= (index & mask) << np.uint64(bits)
        bits += low
        while bits >= 8:  # low is at most about 40, so that 64 bits hold the remainder and the next index
            lower[place] = np.uint8(buffer & np.uint64(0xFF))
            buffer >>= np.uint64(8)
            bits -= 8
            place += 1
    if bits:
        lower[place] = np.uint8(buffer & np.uint64(0xFF))


@kernel
def _unpack(lower: np.ndarray, upper: np.ndarray, low: int, n: int, indices: np.ndarray) -> bool:
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    buffer, bits, place = np.uint64(0), 0, 0
    i, previous = 0, -1
    for byte in range(upper.size):
        ones = upper[byte]
        if ones == 0:
            continue
        for bit in range(8):
            if not (ones >> bit) & 1:
                continue
            if i == indices.size:
                return False
            while bits < low:
                buffer |= np.uint64(lower[place]) << np.uint64(bits)
                bits += 8
                place += 1
            index = ((byte * 8 + bit - i) << low) | int64(buffer & mask)
            buffer >>= np.uint64(low)
            bits -= low
            if index <= previous or index >= n:
                return False
            indices[i] = previous = index
            i += 1
    return i == indices.size
