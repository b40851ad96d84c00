"""Compressors as the emulator sees them: ratio, cost and error. The compressors themselves are in
`switchml/codecs`."""

from dataclasses import dataclass
from functools import cache

from emulator import datafile
from emulator.cluster.accelerator import DATA
from emulator.cluster.cluster import Cluster


@dataclass(frozen=True)
class Codec:
    """Meanings: `data/codecs.toml`."""

    title: str
    source: str
    bits: float
    compress_bytes: float
    decompress_bytes: float
    error: float
    gathers: bool

    def compress_s(self, cluster: Cluster, elements: float) -> float:
        """Of so many gradients, on the accelerator."""
        return elements * self.compress_bytes / _memory_bytes_per_s(cluster)

    def decompress_s(self, cluster: Cluster, elements: float) -> float:
        """Of one payload of so many gradients."""
        return elements * self.decompress_bytes / _memory_bytes_per_s(cluster)

    def wire_bytes(self, elements: float) -> float:
        """Of so many gradients."""
        return elements * self.bits / 8.0


def _memory_bytes_per_s(cluster: Cluster) -> float:
    return cluster.device.memory_bytes_per_s * cluster.software.memory_efficiency


@cache
def codecs() -> dict[str, Codec]:
    """The built-in ones by name."""
    return datafile.build_all(Codec, DATA / "codecs.toml")


def load(name: str) -> Codec:
    """By name, as in docs/codecs.md; ConfigError for others."""
    datafile.check_name("codec", name, codecs())
    return codecs()[name]
