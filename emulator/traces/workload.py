"""Work without times: Chakra execution traces for simulators such as ASTRA-sim, and SimAI's workload text.
`readers.read.read_workload` reads it; `emulator/jobs/imported.py` costs it on a cluster.
"""

from dataclasses import dataclass, field
from pathlib import Path

from emulator.jobs.workload.graph import Graph
from switchml.errors import TraceError


@dataclass(frozen=True)
class Workload:
    """A job's work."""

    graph: Graph
    """Ops without `seconds` are costed by FLOPs and bytes. Ranks are those of the files, or one that stands for all."""
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
