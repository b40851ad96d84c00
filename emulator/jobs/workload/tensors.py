"""Tensors that implementations allocate, as data: `data/tensors.toml` documents the keys."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from emulator import datafile
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model, Transformer

FILE = Path(__file__).parent / "data" / "tensors.toml"
Read = TypeVar("Read")


@dataclass(frozen=True)
class Tensors:
    """Tensors of an implementation; keys as in the file."""

    source: str
    dropout: bool
    joins_gate: bool
    fuses_rotary: bool
    repeats_keys: bool
    gathers_context: bool
    keeps_gathered: bool
    keeps_quantized: bool
    weighs_outputs: bool
    gathers_copy: bool
    keeps_boundaries: bool
    optimizer: str

    def __post_init__(self) -> None:
        datafile.check_name("optimizer", self.optimizer, ("fused", "single", "foreach"))


@dataclass(frozen=True)
class LossTensors:
    """Tensors of a loss; keys as in the file."""

    source: str
    to_fp32: bool
    keeps_shares: bool
    overwrites: bool


@cache
def _read(section: str, kind: type[Read]) -> dict[str, Read]:
    tables: dict[str, Any] = {}
    for name, table in datafile.load(FILE)[section].items():
        base = table.pop("extends", None)
        tables[name] = datafile.merge(tables[base], table) if base else table
    return {name: datafile.build(kind, table, f"{FILE.name} [{section}.{name}]") for name, table in tables.items()}


def tensors(model: Model, job: Job) -> Tensors:
    """Return the tensors of the implementation that trains `model` in this job."""
    return _read("implementations", Tensors)[job.implemented_by(model)]


def loss_tensors(model: Transformer, job: Job) -> LossTensors:
    """Return the tensors of the job's loss."""
    return _read("losses", LossTensors)[job.loss_kernel(model)]
