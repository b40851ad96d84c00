"""Compressed all-reduces of buckets that go through different codecs."""

from collections.abc import Sequence

import numpy as np

from host_agent.compression.compressed import Compressor, Reducer
from switchml.errors import ConfigError


class BucketCompressor:
    """One compressor for each codec. `specs`: the codecs of the buckets in order, as texts; buckets beyond them go
    through the last one. `memory`: their error feedback, None for what each codec's paper trains with.

    Raises ConfigError for texts that name nothing and for codecs that go by matrices, which take no bucket."""

    by_matrix = False

    def __init__(self, reducer: Reducer, specs: Sequence[str], memory: str | None = None):
        self._specs = specs
        self._compressors = {spec: Compressor(reducer, spec, memory) for spec in dict.fromkeys(specs)}
        if matrices := [spec for spec, one in self._compressors.items() if one.by_matrix]:
            raise ConfigError(f"codec {', '.join(matrices)}: matrix codecs can't be mixed with others")

    @property
    def lr(self) -> float:
        """The step's learning rate, for error feedback that asks for it; the caller's to set where it changes."""
        return self._compressors[self._specs[0]].lr

    @lr.setter
    def lr(self, value: float) -> None:
        for compressor in self._compressors.values():
            compressor.lr = value

    def allreduce(self, name: str, x: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """As `Compressor.allreduce`; `codec_hook` names tensors `bucket I.J`."""
        bucket = int(name.removeprefix("bucket ").partition(".")[0])
        return self._compressors[self._specs[min(bucket, len(self._specs) - 1)]].allreduce(name, x, shape)
