"""What there is to do, without times of when it was done: Chakra execution traces for simulators (as ASTRA-sim and its
generators use them) and SimAI's workload text. They become an `emulator.workload` graph, which is priced on a cluster
(`emulator/jobs/imported.py`) and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from emulator.traces.readers import formats
from emulator.traces.readers.read import files
from emulator.workload.graph import Graph
from switchml.errors import TraceError


@dataclass(frozen=True)
class Workload:
    """A job's work."""

    graph: Graph
    """Works with `seconds` last as long; others are priced by FLOPs and bytes. Ranks are those of the files, or one
    that stands for all (weight)."""
    strides: dict[int, int]
    """Group → how far apart its members are, for groups whose members are not all in the graph."""
    world_size: int
    assumptions: list[str] = field(default_factory=list)


def read(path: Path | str) -> Workload:
    """The workload in `path`: a file, or a directory with one a rank. TraceError where there is none."""
    path = Path(path)
    found = files(path)
    simai = [file for file, kind in found if kind == formats.SIMAI]
    chakra = [file for file, kind in found if kind == formats.CHAKRA]
    if simai:
        from emulator.traces.readers.simai import read_simai

        if len(found) > 1:
            raise TraceError(
                f"{path} has {len(found)} traces; SimAI's workload is one file, expected {simai[0].name} alone"
            )
        return read_simai(simai[0])
    if not chakra:
        raise TraceError(f"{path} says what a job did, not what there is to do: `switchml trace replay` plays it again")
    from emulator.traces.readers.chakra.graph import read_chakra

    return read_chakra(chakra)
