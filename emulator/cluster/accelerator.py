"""Accelerators: what one device can do, as its data sheet says. What software makes of it is in `constants.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from emulator import datafile
from switchml.errors import ConfigError

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Accelerator:
    """One device: a GPU, one die of a GPU with two, or a CPU socket."""

    title: str
    source: str
    flops: dict[str, float]
    """Peak FLOP/s by precision (fp32, tf32, fp16, bf16), dense."""
    memory_bytes: float
    memory_bytes_per_s: float
    processors: int
    """Streaming multiprocessors, compute units or cores: a matrix product is dealt to them tile by tile."""
    cache_bytes_per_s: float
    """Last-level cache to all processors together."""
    watts: float
    """Thermal design power."""
    price_per_hour: float = 0.0
    """Dollars; 0: not for rent by itself."""
    price_source: str = ""

    def peak(self, precision: str) -> float:
        """FLOP/s in `precision`; ConfigError where the device has none."""
        if precision not in self.flops:
            raise ConfigError(f"{self.title} has no {precision}; it has {', '.join(self.flops)}")
        return self.flops[precision]


@cache
def accelerators() -> dict[str, Accelerator]:
    """The built-in ones by name."""
    path = DATA / "accelerators.toml"
    return {
        name: datafile.build(Accelerator, table, f"{path.name} [{name}]") for name, table in datafile.load(path).items()
    }
