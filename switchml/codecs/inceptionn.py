"""INCEPTIONN's floating-point compression: 0, 8, 16 or 32 bits per element, depending on the error bound."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs import bitpack
from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext, join, setting
from switchml.errors import PayloadError
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class Inceptionn(Codec):
    """1. An element within `bound` of 0 takes no bits.
    2. One below 1 is written as sign and fixed-point fraction: with 7 bits of fraction if that is within the bound,
       otherwise with 15 if that is.
    3. All others, infinities and NaN among them, are written unchanged, 32 bits.
    4. Send 2-bit tags for these cases, then the bytes, the 16-bit and the 32-bit words.

    No element changes by more than the bound. (The paper chooses 8 or 16 bits by the exponent alone, which its hardware
    does in one cycle, and lets the error exceed the bound.)

    Y. Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural
    Networks", MICRO 2018, section 4.
    """

    name = "inceptionn"
    number = 18
    aggregation = GATHER

    bound: float = setting(2.0**-10, "largest error of an element", above=0)

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        tags = np.empty(x.size, np.uint8)
        _classify(x, np.float32(self.bound), tags)
        counts = np.bincount(tags, minlength=4)
        bytes_, halves = np.empty(counts[1], np.int8), np.empty(counts[2], np.int16)
        _write(x, tags, bytes_, halves)
        return join(bitpack.pack(tags, 2), bytes_, halves, x[tags == 3])

    def decode(self, body: Bytes, n: int) -> Floats:
        split = bitpack.packed_bytes(n, 2)
        if body.size < split:
            raise PayloadError(f"inceptionn: a payload body of {body.size} bytes: expected at least {split}")
        tags = bitpack.unpack(body[:split], 2, np.empty(n, np.uint8))
        sizes = np.bincount(tags, minlength=4)[1:] * [1, 2, 4]
        if body.size != split + sizes.sum():
            raise PayloadError(
                f"inceptionn: a payload body of {body.size} bytes: expected {split + sizes.sum()} by its tags"
            )
        first, second, third = (part.tobytes() for part in np.split(body[split:], np.cumsum(sizes)[:-1]))
        x = np.zeros(n, np.float32)
        x[tags == 1] = np.frombuffer(first, np.int8) * np.float32(2.0**-7)
        x[tags == 2] = np.frombuffer(second, "<i2") * np.float32(2.0**-15)
        x[tags == 3] = np.frombuffer(third, "<f4")
        return x


@kernel
def _classify(x: np.ndarray, bound: np.float32, tags: np.ndarray) -> None:
    for i in range(x.size):
        magnitude = abs(x[i])
        coarse, fine = magnitude * np.float32(128), magnitude * np.float32(32768)
        in_bytes = abs(np.rint(coarse) - coarse) <= bound * np.float32(128) and np.rint(coarse) <= 127
        in_halves = abs(np.rint(fine) - fine) <= bound * np.float32(32768) and np.rint(fine) <= 32767
        tags[i] = 0 if magnitude <= bound else 1 if in_bytes else 2 if in_halves else 3


@kernel
def _write(x: np.ndarray, tags: np.ndarray, bytes_: np.ndarray, halves: np.ndarray) -> None:
    b, h = 0, 0
    for i in range(x.size):
        if tags[i] == 1:
            bytes_[b] = np.int8(np.rint(x[i] * np.float32(128)))
            b += 1
        elif tags[i] == 2:
            halves[h] = np.int16(np.rint(x[i] * np.float32(32768)))
            h += 1
