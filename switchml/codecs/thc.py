"""THC: table entries that can be added without decoding."""

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from switchml.codecs import bitpack
from switchml.codecs.base import Array, Bytes, Floats, StepContext, join, setting, split
from switchml.codecs.hadamard import rotate, rotate_back
from switchml.codecs.noise import halves, uniform
from switchml.codecs.quantize import SharedScale, bucket_norms
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class Thc(SharedScale):
    """1. Rotate the vector: random signs, then a Hadamard transform, both the same on all ranks. Its elements are then
       approximately normally distributed.
    2. The ranks take the maximum of their norms / sqrt(n); times the normal quantile at 1 - clip / 2 it is the range.
    3. Clamp to the range; round each element at random to one of the 2^bits entries of a table of whole numbers from 0
       to `steps`, so that the mean is preserved. The table has the least error for a normal distribution.
    4. The aggregator adds the entries (minus steps / 2), in int8 lanes as long as ranks * steps / 2 <= 127.
    5. Take the mean of the sums, scale it back, and rotate it back.

    Residual error feedback keeps the clamped part. A payload packs the table's indices, `bits` each. If the aggregator
    has no lookup table (switchml's adds lanes), the entries are sent: 8 bits each.

    M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024
    (arXiv:2302.08545), algorithms 2 and 3; bits 4, steps 30, clip 1/32 are its defaults.
    """

    name = "thc"
    number = 14
    error_feedback = "residual"

    bits: int = setting(4, "bits of a table index", least=1, most=8)
    steps: int = setting(30, "the table's largest entry, even", least=2, most=510)
    clip: float = setting(1 / 32, "share of the elements that is expected to be clamped", above=0, most=0.5)
    block: int = setting(
        1024, "elements that are rotated together, a power of two", choices=(64, 256, 1024, 4096, 16384)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("steps", self.steps, "a table of 2^bits different entries", least=2**self.bits - 1)
        self._check("steps", self.steps % 2, "an even number", most=0)

    def _padded(self, n: int) -> int:
        return -(-n // self.block) * self.block

    @property
    def most(self) -> int:
        return self.steps // 2

    def body_bytes(self, n: int) -> int:
        return 4 + 8 + bitpack.packed_bytes(self._padded(n), self.bits)

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        rotated, reach = self.prepare(x, context)
        key = np.array([context.shared_key()], "<u8")
        return join(reach, key, bitpack.pack(self._codes(rotated, reach, context), self.bits))

    def decode(self, body: Bytes, n: int) -> Floats:
        reach, key, packed = split(body, ("<f4", 1), ("<u8", 1))
        codes = bitpack.unpack(packed, self.bits, np.empty(self._padded(n), np.uint8))
        return self.dequantize(self._entries(codes), reach, 1, int(key[0]), n)

    def prepare(self, x: Floats, context: StepContext) -> tuple[Floats, Floats]:
        """Return the rotated vector, and its range as float32[1]; NaN or infinite if x has such elements."""
        norm = np.empty(1, np.float32)
        bucket_norms(x, max(x.size, 1), True, norm)
        with np.errstate(invalid="ignore"):
            reach = norm * np.float32(NormalDist().inv_cdf(1 - self.clip / 2) / math.sqrt(max(x.size, 1)))
        return rotate(x, self.block, context.shared_key()), reach

    def quantize(self, prepared: Floats, scale: Floats, context: StepContext) -> Array:
        return self._entries(self._codes(prepared, scale, context))

    def dequantize(self, integers: Array, scale: Floats, world: int, key: int, n: int) -> Floats:
        with np.errstate(invalid="ignore"):
            scaled = integers.astype(np.float32) * (scale * np.float32(2 / (self.steps * world)))
        return rotate_back(scaled, self.block, key, n)

    def _codes(self, rotated: Floats, reach: Floats, context: StepContext) -> Bytes:
        codes = np.empty(rotated.size, np.uint8)
        entries = table(self.bits, self.steps, self.clip)
        below = (np.searchsorted(entries, np.arange(self.steps + 1), side="right") - 1).astype(np.uint8)
        _quantize(rotated, reach[0], entries, below, *halves(context.private_key()), codes)
        return codes

    def _entries(self, codes: Bytes) -> Array:
        """Return the table's entries for these codes, minus half of the largest entry, int32[n]."""
        return table(self.bits, self.steps, self.clip)[codes] - self.steps // 2


@functools.cache
def table(bits: int, steps: int, clip: float) -> np.ndarray:
    """Return the table, int32[2^bits], ascending from 0 to `steps`: the entries with the least expected squared error
    when normally distributed numbers, clamped at the quantiles clip / 2 and 1 - clip / 2, are rounded at random to the
    two adjacent entries.

    Exact, by dynamic programming over the last entry and the number of entries.
    """
    limit = NormalDist().inv_cdf(1 - clip / 2)
    places = np.linspace(0, steps, 64 * steps + 1)
    density = np.exp(-(((places / steps * 2 - 1) * limit) ** 2) / 2)
    # The error of rounding y to a or b at random is (y - a)(b - y): cost[a, b] is its integral over [a, b].
    moments = [np.concatenate([[0.0], np.cumsum(density * places**power)]) for power in range(3)]
    a, b = np.arange(steps + 1)[:, None], np.arange(steps + 1)[None, :]
    zeroth, first, second = (m[64 * b + 1] - m[64 * a] for m in moments)
    cost = np.where(a < b, (a + b) * first - a * b * zeroth - second, np.inf)
    best, chosen = cost[0], []
    for _ in range(2**bits - 2):
        through = best[:, None] + cost
        chosen.append(through.argmin(axis=0))
        best = through.min(axis=0)
    entries = [steps]
    for previous in reversed(chosen):
        entries.append(int(previous[entries[-1]]))
    return np.array([0, *entries[::-1]] if bits > 0 else entries, np.int32)


@kernel
def _quantize(
    y: np.ndarray,
    reach: np.float32,
    table: np.ndarray,
    below: np.ndarray,
    low: np.uint32,
    high: np.uint32,
    codes: np.ndarray,
) -> None:
    """Compute the table index that each y is rounded to, at random between the two adjacent entries."""
    if not (reach > 0 and reach <= np.float32(3.4028235e38)):
        codes[:] = 0
        return
    steps = np.int32(below.size - 1)
    for i in range(y.size):
        place = (y[i] / reach + np.float32(1)) * np.float32(0.5 * steps)
        place = place if place > 0 else np.float32(0)  # also NaN, if the rotation exceeded float32's range
        place = min(place, np.float32(steps))
        index = below[min(np.int32(place), steps - np.int32(1))]
        start, end = np.float32(table[index]), np.float32(table[index + 1])
        codes[i] = index + (uniform(i, low, high) * (end - start) < place - start)
