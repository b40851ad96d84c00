"""Deep Gradient Compression: top-k by a threshold estimated from a sample."""

import math
from dataclasses import dataclass

import numpy as np

from switchml.codecs.base import Floats, Indices, StepContext, setting
from switchml.codecs.noise import words
from switchml.codecs.select import MAGNITUDE, above, count_reaching
from switchml.codecs.sparse import Sparsifier


@dataclass(frozen=True)
class Dgc(Sparsifier):
    """1. Sample 1 % of the elements at random; the threshold is the magnitude that `ratio` of them exceed.
    2. Count the elements above it. While there are more than 1.3 times (fewer than 0.7 times) the number given by
       `ratio`, multiply the threshold by 1.3 (by 0.7), up to 10 times.
    3. Send the indices and values of the elements above; the error feedback `dgc` corrects the momentum of the others.

    Y. Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training", ICLR 2018
    (arXiv:1712.01887), sections 3.1 to 3.3; the corrections as in GRACE (ICDCS 2021).
    """

    name = "dgc"
    number = 7
    error_feedback = "dgc"

    ratio: float = setting(0.01, "share of the elements that is sent, about", above=0, most=1)

    def select(self, state: object, x: Floats, context: StepContext) -> Indices:
        n = x.size
        if n == 0:
            return np.empty(0, np.int64)
        bits, target = x.view(np.uint32), self.ratio * n
        places = words(max(1, n // 100), context.private_key()).astype(np.int64) * n >> 32
        sample = bits[places] & MAGNITUDE
        place = sample.size - max(1, math.ceil(self.ratio * sample.size))
        threshold = np.partition(sample, place)[place : place + 1].view(np.float32)[0]
        for _ in range(10):
            count = count_reaching(bits, threshold.view(np.uint32))
            if 0.7 * target <= count <= 1.3 * target:
                break
            with np.errstate(over="ignore"):
                threshold *= np.float32(1.3 if count > target else 0.7)
        return above(x, np.nextafter(threshold, np.float32(-np.inf)))
