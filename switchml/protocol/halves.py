"""float16 and bfloat16 at addresses: widening to float32, which is exact, narrowing to the nearest, ties to even, and
summation.

NumPy has no bfloat16 and converts float16 one by one; these loops are branchless, so LLVM vectorizes them. A NaN stays
a NaN, with its sign, and becomes quiet.
"""

from typing import Any

import numpy as np

from switchml.protocol.packet import OP_MEAN_BFLOAT16, OP_MEAN_FLOAT16, OP_SUM_BFLOAT16, OP_SUM_FLOAT16
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import (
    CONVERTS_HALVES,
    bits_of_float32,
    f32_at,
    float32_of_bits,
    float32_of_half,
    half_of_float32,
    u16_at,
    u32_at,
)

WHOLE, FLOAT16, BFLOAT16 = range(3)
"""Kinds of elements: no half precision, float16, bfloat16."""
KINDS = {"float16": FLOAT16, "bfloat16": BFLOAT16}
OPS = {
    ("float16", "sum"): OP_SUM_FLOAT16,
    ("bfloat16", "sum"): OP_SUM_BFLOAT16,
    ("float16", "mean"): OP_MEAN_FLOAT16,
    ("bfloat16", "mean"): OP_MEAN_BFLOAT16,
}
"""The aggregator's op for unconverted half precision, by dtype and operation."""

_SIGN, _MAGNITUDE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_INFINITY, _INFINITY16 = np.uint32(0x7F800000), np.uint32(0x7C00 << 13)
_REBIAS = np.float32(2.0**112)
"""The bias of float32's exponents is 112 above float16's; a product with this is exact for subnormals, too."""
_MIN_NORMAL16, _BEYOND16 = np.uint32(0x38800000), np.uint32(0x47800000)
"""float32 bits of float16's least normal number, 2^-14, and of 2^16, which is beyond its largest."""
_HALF = np.float32(0.5)
"""Adding it rounds to the units of float16's subnormals, which are its units in the last place."""


@kernel(inline=True)
def _wide16(half: Any) -> Any:
    """Convert a float16's bits (uint32) to float32's."""
    if CONVERTS_HALVES:
        return bits_of_float32(float32_of_half(np.uint16(half)))
    shifted = np.uint32((half & np.uint32(0x7FFF)) << np.uint32(13))
    bits = bits_of_float32(float32_of_bits(shifted) * _REBIAS) | (_INFINITY if shifted >= _INFINITY16 else np.uint32(0))
    return np.uint32(bits | ((half & np.uint32(0x8000)) << np.uint32(16)))


@kernel
def _widen16(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(x.size):
        out[i] = _wide16(np.uint32(x[i]))


@kernel
def _widen_bf16(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(x.size):
        out[i] = np.uint32(x[i]) << np.uint32(16)


@kernel
def _narrow16(x: np.ndarray, out: np.ndarray) -> None:
    if CONVERTS_HALVES:
        for i in range(x.size):
            out[i] = half_of_float32(float32_of_bits(x[i]))
        return
    for i in range(x.size):
        magnitude = np.uint32(x[i] & _MAGNITUDE)
        even = np.uint32(magnitude >> np.uint32(13)) & np.uint32(1)
        normal = np.uint32(magnitude - (np.uint32(112) << np.uint32(23)) + np.uint32(0xFFF) + even) >> np.uint32(13)
        small = np.uint32(bits_of_float32(float32_of_bits(magnitude) + _HALF) - bits_of_float32(_HALF))
        nan = np.uint32(0x7E00) | (np.uint32(magnitude >> np.uint32(13)) & np.uint32(0x3FF))
        half = normal if magnitude >= _MIN_NORMAL16 else small
        half = np.uint32(0x7C00) if magnitude >= _BEYOND16 else half
        half = nan if magnitude > _INFINITY else half
        out[i] = np.uint16(half | (np.uint32(x[i] & _SIGN) >> np.uint32(16)))


@kernel
def _narrow_bf16(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(x.size):
        bits = np.uint32(x[i])
        rounded = np.uint32(bits + np.uint32(0x7FFF) + (np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
        rounded = np.uint32(bits | np.uint32(0x400000)) if bits & _MAGNITUDE > _INFINITY else rounded
        out[i] = np.uint16(rounded >> np.uint32(16))


@kernel
def widen(kind: int, source: Address, target: Address, count: int) -> None:
    """Convert `count` elements of `kind` to float32."""
    if kind == FLOAT16:
        _widen16(u16_at(source, count), u32_at(target, count))
    else:
        _widen_bf16(u16_at(source, count), u32_at(target, count))


@kernel
def narrow(kind: int, source: Address, target: Address, count: int) -> None:
    """Convert `count` float32 to elements of `kind`; values beyond its largest become infinity."""
    if kind == FLOAT16:
        _narrow16(u32_at(source, count), u16_at(target, count))
    else:
        _narrow_bf16(u32_at(source, count), u16_at(target, count))


@kernel
def largest(kind: int, address: Address, count: int, finite_only: bool) -> int:
    """float32 bits of the largest magnitude of `count` elements of `kind`, or of the finite ones with `finite_only`."""
    halves = u16_at(address, count)
    end = np.uint16(0x7C00 if kind == FLOAT16 else 0x7F80) if finite_only else np.uint16(0x8000)
    top = np.uint16(0)
    for i in range(count):
        magnitude = np.uint16(halves[i] & np.uint16(0x7FFF))
        top = max(top, magnitude if magnitude < end else np.uint16(0))
    return int64(_wide16(np.uint32(top)) if kind == FLOAT16 else np.uint32(top) << np.uint32(16))


@kernel
def _add16(x: np.ndarray, total: np.ndarray) -> None:
    for i in range(x.size):
        total[i] += float32_of_bits(_wide16(np.uint32(x[i])))


@kernel
def _add_bf16(x: np.ndarray, total: np.ndarray) -> None:
    for i in range(x.size):
        total[i] += float32_of_bits(np.uint32(np.uint32(x[i]) << np.uint32(16)))


@kernel
def _divide(total: np.ndarray, divisor: Any) -> None:
    for i in range(total.size):
        total[i] = total[i] / divisor


@kernel
def add(
    op: int,
    parts: Address,
    stride: int,
    ranks: int,
    size: int,
    last: int,
    values: Address,
    floats: Address,
    target: Address,
) -> None:
    """Sum `ranks` packets of `size` bytes in float32 in rank order, divide by their number if `op` is a mean, and write
    the rounded result to `target`. The packets are at intervals of `stride` bytes, from `parts` on, except that of rank
    `last`, at `values`. `floats`: buffer of twice the bytes."""
    count = size // 2
    kind = FLOAT16 if op in (OP_SUM_FLOAT16, OP_MEAN_FLOAT16) else BFLOAT16
    total = f32_at(floats, count)
    for rank in range(ranks):
        at = values if rank == last else parts + np.uint64(rank * stride)
        if rank == 0:
            widen(kind, at, floats, count)
        elif kind == FLOAT16:
            _add16(u16_at(at, count), total)
        else:
            _add_bf16(u16_at(at, count), total)
    if op >= OP_MEAN_FLOAT16:
        _divide(total, np.float32(ranks))
    narrow(kind, floats, target, count)
