"""Cost model of gradient codecs: compression ratio, compute cost and error. The codecs themselves are in
`switchml/codecs`."""

from dataclasses import dataclass
from functools import cache

from emulator import datafile
from emulator.cluster.accelerator import DATA
from emulator.cluster.cluster import Cluster


@dataclass(frozen=True)
class Codec:
    """Parameters of a codec; `data/codecs.toml` gives the meaning of each."""

    title: str
    source: str
    bits: float
    compress_bytes: float
    decompress_bytes: float
    error: float
    gathers: bool

    def compress_s(self, cluster: Cluster, elements: float) -> float:
        """Seconds to compress `elements` gradients on the accelerator."""
        return elements * self.compress_bytes / _memory_bytes_per_s(cluster)

    def decompress_s(self, cluster: Cluster, elements: float) -> float:
        """Seconds to decompress one payload of `elements` gradients."""
        return elements * self.decompress_bytes / _memory_bytes_per_s(cluster)

    def wire_bytes(self, elements: float) -> float:
        """Compressed size of `elements` gradients."""
        return elements * self.bits / 8.0


def _memory_bytes_per_s(cluster: Cluster) -> float:
    return cluster.device.memory_bytes_per_s * cluster.software.memory_efficiency


@cache
def codecs() -> dict[str, Codec]:
    """Return the built-in codecs by name."""
    return datafile.build_all(Codec, DATA / "codecs.toml")


def load(name: str) -> Codec:
    """Return the codec of this name (docs/codecs.md). Raises ConfigError for unknown names."""
    datafile.check_name("codec", name, codecs())
    return codecs()[name]
