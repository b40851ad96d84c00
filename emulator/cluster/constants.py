"""What software makes of the hardware: the emulator's few physical constants, with meaning and source in
`data/constants.toml`. They are the same for all accelerators and jobs; a cluster file may set its own under
`[constants]`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache

from emulator import datafile
from emulator.cluster.accelerator import DATA


@dataclass(frozen=True)
class Constants:
    """Meanings and sources: `data/constants.toml`."""

    gemm_efficiency: float
    tile_fill_steps: float
    cache_efficiency: float
    memory_efficiency: float
    attention_traffic: float
    loss_bytes_per_logit: float
    kernel_s: float
    launch_forward_s: float
    launch_backward_s: float
    launch_collective_s: float
    overlap_exponent: float
    pipeline_hand_over_s: float
    iteration_s: float
    interference_inside: float
    interference_between: float


@dataclass(frozen=True)
class Note:
    """One constant as its file describes it."""

    value: float
    unit: str
    meaning: str
    source: str


@cache
def notes() -> dict[str, Note]:
    """Every constant with its unit, meaning and source."""
    path = DATA / "constants.toml"
    read = {name: datafile.build(Note, table, f"{path.name} [{name}]") for name, table in datafile.load(path).items()}
    names = {field.name for field in dataclasses.fields(Constants)}
    assert read.keys() == names, read.keys() ^ names
    return read


@cache
def constants() -> Constants:
    """The built-in values."""
    return Constants(**{name: note.value for name, note in notes().items()})
