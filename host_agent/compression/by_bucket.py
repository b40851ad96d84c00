"""Compressed all-reduces of buckets with different codecs."""

from collections.abc import Sequence

import numpy as np

from host_agent.compression.compressed import Compressor, Reducer
from switchml.codecs.exchange import StepGuard
from switchml.errors import ConfigError


class BucketCompressor:
    """One compressor per codec. `specs`: codec texts of the buckets in order; further buckets use the last one.
    `memory`: their error feedback, or None for the one that each codec's paper trains with.

    Raises ConfigError for unknown codecs or settings, and for matrix codecs, which do not accept buckets."""

    by_matrix = False

    def __init__(self, reducer: Reducer, specs: Sequence[str], memory: str | None = None):
        self._specs = specs
        self._compressors = {spec: Compressor(reducer, spec, memory) for spec in dict.fromkeys(specs)}
        if matrices := [spec for spec, one in self._compressors.items() if one.by_matrix]:
            raise ConfigError(f"codec {', '.join(matrices)}: matrix codecs can't be mixed with others")

    @property
    def lr(self) -> float:
        """Learning rate of the step, for error feedback that depends on it; set by the caller when it changes."""
        return self._compressors[self._specs[0]].lr

    @lr.setter
    def lr(self, value: float) -> None:
        for compressor in self._compressors.values():
            compressor.lr = value

    @property
    def guards(self) -> list[StepGuard] | None:
        """As of `RankCompressor`: of all codecs together."""
        return self._compressors[self._specs[0]].guards

    @guards.setter
    def guards(self, value: list[StepGuard] | None) -> None:
        for compressor in self._compressors.values():
            compressor.guards = value

    def allreduce(self, name: str, x: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """As `Compressor.allreduce`; `codec_hook` names tensors `bucket I.J`."""
        bucket = int(name.removeprefix("bucket ").partition(".")[0])
        return self._compressors[self._specs[min(bucket, len(self._specs) - 1)]].allreduce(name, x, shape)
