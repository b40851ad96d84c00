"""Tensors with blocks of zeros for `switchml bench`: non-zero blocks of each rank, and the density of their union."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.networks.netsim.blocks import OVERLAPS, owned
from host_agent.density import Choice
from switchml.errors import ConfigError
from switchml.protocol.sparse import Sparse

MODES = ("on", "auto")


@dataclass(frozen=True)
class Sparsity:
    """Sparsity of the tensors. `density`: share of non-zero blocks per rank; `block`: elements per block; `mode`: the
    agent's sparse mode, on or auto. Raises ConfigError for invalid values.
    """

    density: float
    block: int = 256
    overlap: str = "random"
    mode: str = "on"

    def __post_init__(self) -> None:
        if not 0 <= self.density <= 1:
            raise ConfigError(f"density {self.density}: expected 0 to 1")
        if self.overlap not in OVERLAPS or self.mode not in MODES:
            raise ConfigError(f"overlap {self.overlap}, mode {self.mode}: expected one of {OVERLAPS} and of {MODES}")
        Sparse(self.block)

    def as_json(self) -> dict[str, Any]:
        """Fields in JSON reports."""
        return {"density": self.density, "block": self.block, "overlap": self.overlap, "sparse": self.mode}

    @property
    def choice(self) -> Choice:
        """The agent's sparsity option."""
        return Choice(self.mode, Sparse(self.block))

    def owned(self, workers: int, elements: int) -> np.ndarray:
        """bool[workers, blocks]: non-zero blocks of each rank in a tensor of `elements` elements."""
        return owned(self.density, self.overlap, workers, -(-elements // self.block))

    def union_density(self, workers: int, elements: int, first: int | None = None) -> float:
        """Share of blocks that are non-zero on at least one rank, in a tensor or in its `first` elements."""
        blocks = None if first is None else -(-first // self.block)
        return float(self.owned(workers, elements)[:, :blocks].any(0).mean())

    def elements_of(self, row: np.ndarray, elements: int) -> np.ndarray:
        """bool[elements]: a rank's row of `owned`, expanded to elements."""
        return np.repeat(row, self.block)[:elements]
