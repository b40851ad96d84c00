"""What there is to do, without times of when it was done: Chakra execution traces for simulators (as ASTRA-sim and its
generators use them) and SimAI's workload text. `readers.read.read_workload` makes one; `emulator/jobs/imported.py` says
what it costs on a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from emulator.jobs.workload.graph import Graph
from switchml.errors import TraceError


@dataclass(frozen=True)
class Workload:
    """A job's work."""

    graph: Graph
    """Ops with `seconds` last as long; the others' costs follow from FLOPs and bytes. Ranks are those of the files, or
    one that stands for all (weight)."""
    strides: dict[int, int]
    """Group → how far apart its members are, for groups whose members are not all in the graph."""
    world_size: int
    assumptions: list[str] = field(default_factory=list)


def untimed(path: Path) -> TraceError:
    """Where a trace is expected."""
    return TraceError(
        f"{path} does not say when things happened, only what there is to do: `switchml trace emulate` plays it on a "
        "cluster"
    )
