"""Workloads without times: Chakra execution traces for simulators such as ASTRA-sim, and SimAI's workload text.
`readers.read.read_workload` reads them; `emulator/jobs/imported.py` costs them on a cluster.
"""

from dataclasses import dataclass, field
from pathlib import Path

from emulator.jobs.workload.graph import Graph
from switchml.errors import TraceError


@dataclass(frozen=True)
class Workload:
    """The work of a job."""

    graph: Graph
    """Ops without `seconds` are costed by FLOPs and bytes. Ranks are those of the files, or a single representative."""
    strides: dict[int, int]
    """Group → stride between its members' ranks, for groups not entirely in the graph."""
    world_size: int
    assumptions: list[str] = field(default_factory=list)


def untimed(path: Path) -> TraceError:
    """Return the error for a workload where a trace is expected."""
    return TraceError(
        f"{path} does not say when things happened, only what there is to do: `switchml trace emulate` plays it on a "
        "cluster"
    )
