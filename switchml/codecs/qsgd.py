"""QSGD: randomly rounded levels of each bucket's norm."""

from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import GATHER, Bytes, Codec, Floats, StepContext, join, setting, split
from switchml.codecs.quantize import bucket_norms, dithered, level_bytes, pack_levels, undithered, unpack_levels


@dataclass(frozen=True)
class Qsgd(Codec):
    """1. Divide the vector into buckets; take each bucket's norm.
    2. The level of an element is its magnitude / norm * levels, rounded up or down at random so that the mean is
       preserved.
    3. Send the norms (float32) and the signed levels, ceil(log2(2 * levels + 1)) bits each.

    Unbiased. The norms differ between ranks, so the payloads are gathered; `globalqsgd` shares one norm.

    D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017
    (arXiv:1610.02132), section 3.1; its Elias coding is omitted. norm=max: V. Gandikota et al. (arXiv:1911.07971).
    """

    name = "qsgd"
    number = 11
    aggregation = GATHER
    is_unbiased = True

    levels: int = setting(127, "levels on each side of zero", least=1, most=32767)
    bucket: int = setting(128, "elements that share a norm", least=1)
    norm: str = setting("l2", "the norm of a bucket", choices=("l2", "max"))

    def _buckets(self, n: int) -> int:
        return -(-n // self.bucket)

    def body_bytes(self, n: int) -> int:
        return 4 * self._buckets(n) + level_bytes(n, self.levels)

    def encode(self, state: object, x: Floats, context: StepContext) -> Bytes:
        norms = np.empty(self._buckets(x.size), np.float32)
        bucket_norms(x, self.bucket, self.norm == "l2", norms)
        return join(norms, pack_levels(dithered(x, norms, self.levels, context, self.bucket), self.levels))

    def decode(self, body: Bytes, n: int) -> Floats:
        norms, packed = split(body, ("<f4", self._buckets(n)))
        return undithered(unpack_levels(self, packed, self.levels, n), norms, self.levels, self.bucket)
