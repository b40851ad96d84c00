"""QSGD: dithered levels of each bucket's norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from switchml.codecs import bitpack
from switchml.codecs.base import GATHER, HEADER_BYTES, Codec, expect_size, setting
from switchml.codecs.noise import halves
from switchml.codecs.quantize import bucket_norms, dither, undither
from switchml.errors import PayloadError


@dataclass(frozen=True)
class Qsgd(Codec):
    """1. Cut the vector into buckets; take each bucket's norm.
    2. The level of an element is its magnitude / norm * levels, rounded up or down at random so that the mean is right.
    3. Send the norms (float32) and the signed levels, ceil(log2(2 * levels + 1)) bits each.

    Unbiased. The norms differ from rank to rank, so the payloads are gathered; `globalqsgd` shares one norm.

    D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017
    (arXiv:1610.02132), section 3.1; its Elias coding is left out. norm=max: V. Gandikota et al. (arXiv:1911.07971).
    """

    name = "qsgd"
    number = 11
    aggregation = GATHER
    is_unbiased = True

    levels: int = setting(127, "levels on each side of zero", least=1, most=32767)
    bucket: int = setting(128, "elements that share a norm", least=1)
    norm: str = setting("l2", "the norm of a bucket", choices=("l2", "max"))

    def _bits(self) -> int:
        return bitpack.width(2 * self.levels + 1)

    def _buckets(self, n: int) -> int:
        return -(-n // self.bucket)

    def payload_bytes(self, n: int) -> int:
        return HEADER_BYTES + 4 * self._buckets(n) + bitpack.packed_bytes(n, self._bits())

    def encode(self, state, x, turn):
        norms, levels = np.empty(self._buckets(x.size), np.float32), np.empty(x.size, np.int16)
        bucket_norms(x, self.bucket, self.norm == "l2", norms)
        dither(x, norms, self.bucket, self.levels, *halves(turn.private_key()), levels)
        codes = (levels + np.int16(self.levels)).view(np.uint16)
        return np.concatenate([norms.view(np.uint8), bitpack.pack(codes, self._bits())])

    def decode(self, body, n):
        expect_size(self, body, self.payload_bytes(n) - HEADER_BYTES)
        split = 4 * self._buckets(n)
        norms = np.frombuffer(body[:split].tobytes(), np.float32)
        levels = unpack_levels(self, body[split:], self.levels, n)
        x = np.empty(n, np.float32)
        undither(levels, norms, self.bucket, self.levels, x)
        return x


def unpack_levels(codec: Codec, packed: np.ndarray, most: int, n: int) -> np.ndarray:
    """int16[n], signed levels of magnitudes up to `most`. Raises PayloadError if one is above."""
    codes = bitpack.unpack(packed, bitpack.width(2 * most + 1), np.empty(n, np.uint16))
    if n and codes.max() > 2 * most:
        raise PayloadError(f"{codec.name}: a level of {int(codes.max()) - most}: expected at most {most}")
    return codes.view(np.int16) - np.int16(most)
