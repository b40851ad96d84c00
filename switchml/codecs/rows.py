"""Rows of embedding tables, as looked up for a batch: each value within a bound, and each distinct row sent once.

Popular rows are looked up many times in a batch. Values are quantized to multiples of twice the bound, and rows whose
codes are equal are sent as one, with the row's number for each sample: the vector-based LZ of H. Feng et al.,
"Accelerating Communication in Deep Learning Recommendation Model Training with Dual-Level Adaptive Lossy Compression",
SC 2024 (arXiv:2407.04272), with codes of as many bits as the table's range needs in place of a Huffman code.

    samples, rows, uint32 | bits of a code, uint8 | lowest value, step, float32 | each sample's row, without gaps |
    codes of the rows, without gaps

Integers and floats are little-endian. If no row repeats, samples have no numbers. With 32 bits, codes are the values
themselves, which loses nothing: for a bound of 0, one too small for float32 or 16 bits, and for infinities and NaN.
"""

import struct

import numpy as np

from switchml.codecs import bitpack
from switchml.errors import PayloadError
from switchml.runtime.jit import kernel

HEADER = struct.Struct("<IIBff")
RAW_BITS = 32
MOST_BITS = 16
"""Of a quantized code."""


def compress(values: np.ndarray, bound: float) -> bytes:
    """Compress float32[samples, width], changing no value by more than `bound`."""
    low, step, bits = _scale(values, bound)
    if bits == RAW_BITS:
        codes = values.view(np.uint32)
    else:
        codes = np.empty(values.shape, np.uint8 if bits <= 8 else np.uint16)
        _quantize(values, low, step, codes)
    numbers = np.empty(len(values), np.uint32)
    firsts = np.empty(len(values), np.int32)
    rows = _match(codes, np.full(2 << len(values).bit_length(), -1, np.int32), numbers, firsts)
    distinct = codes if rows == len(values) else codes[firsts[:rows]]
    parts = [HEADER.pack(len(values), rows, bits, low, step)]
    if rows < len(values):
        parts.append(_pack(numbers, _number_bits(rows)))
    return b"".join([*parts, _pack(distinct.reshape(-1), bits)])


def decompress(raw: np.ndarray, samples: int, width: int) -> np.ndarray:
    """Return float32[samples, width] from `compress`'s bytes, uint8[n]. Raises PayloadError."""
    if raw.size < HEADER.size:
        raise PayloadError(f"rows: {raw.size} bytes, fewer than the header's {HEADER.size}")
    sent, rows, bits, low, step = HEADER.unpack(raw[: HEADER.size].tobytes())
    if sent != samples:
        raise PayloadError(f"rows: {sent} samples, expected {samples}")
    numbered = bitpack.packed_bytes(samples, _number_bits(rows)) if rows < samples else 0
    expected = HEADER.size + numbered + bitpack.packed_bytes(rows * width, bits)
    if rows > samples or bool(samples) > rows or not (bits <= MOST_BITS or bits == RAW_BITS) or raw.size != expected:
        raise PayloadError(f"rows: {raw.size} bytes with {rows} rows are not those of {samples} samples of {width}")
    codes = _unpack(raw[HEADER.size + numbered :], bits, rows * width)
    with np.errstate(over="ignore"):  # a damaged scale
        distinct = codes.view(np.float32) if bits == RAW_BITS else (low + codes * np.float64(step)).astype(np.float32)
    distinct = distinct.reshape(rows, width)
    if not numbered:
        return distinct
    numbers = _unpack(raw[HEADER.size :][:numbered], _number_bits(rows), samples)
    if numbers.max() >= rows:
        raise PayloadError(f"rows: a sample has row {numbers.max()} of {rows}")
    found: np.ndarray = distinct[numbers]
    return found


def _number_bits(rows: int) -> int:
    bits = bitpack.width(rows)
    return bits if bits <= MOST_BITS else RAW_BITS


def _pack(codes: np.ndarray, bits: int) -> bytes:
    return (codes if bits == RAW_BITS else bitpack.pack(codes, bits)).tobytes()


def _unpack(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    if bits == RAW_BITS:
        return np.frombuffer(packed.tobytes(), np.uint32)
    return bitpack.unpack(packed, bits, np.empty(count, np.uint16))


def _scale(values: np.ndarray, bound: float) -> tuple[float, float, int]:
    """Lowest value, step and bits of the codes. A step is short of twice the bound by what rounding to float32 adds."""
    if values.size == 0:
        return 0.0, 0.0, 0
    low, high = values.min(), values.max()
    largest = max(abs(float(low)), abs(float(high)))
    step = np.float32(2 * (bound - largest * 2.0**-22))
    if not (np.isfinite(low) and np.isfinite(high) and step > 0):
        return 0.0, 0.0, RAW_BITS
    steps = (float(high) - float(low)) / float(step)
    if not steps < (1 << MOST_BITS) - 1:
        return 0.0, 0.0, RAW_BITS
    return float(low), float(step), int(round(steps)).bit_length()


@kernel
def _quantize(values: np.ndarray, low: float, step: float, codes: np.ndarray) -> None:
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            codes[i, j] = np.uint16(np.rint((np.float64(values[i, j]) - low) / step))


@kernel
def _match(codes: np.ndarray, seen: np.ndarray, numbers: np.ndarray, firsts: np.ndarray) -> int:
    """Number equal rows alike, in the order of their first samples; return how many rows there are.

    `seen`: int32, filled with -1, of a size that is a power of 2 and more than twice the samples; the hash table."""
    rows = 0
    for i in range(codes.shape[0]):
        digest = np.uint64(14695981039346656037)  # FNV-1a
        for j in range(codes.shape[1]):
            digest = (digest ^ np.uint64(codes[i, j])) * np.uint64(1099511628211)
        at = np.int64((digest ^ (digest >> np.uint64(29))) & np.uint64(seen.size - 1))
        while True:
            row = seen[at]
            if row < 0:
                seen[at] = rows
                firsts[rows] = i
                numbers[i] = rows
                rows += 1
                break
            if np.array_equal(codes[firsts[row]], codes[i]):
                numbers[i] = row
                break
            at = (at + 1) & (seen.size - 1)
    return rows
