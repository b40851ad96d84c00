"""Traces from files, whichever program wrote them. The format is recognized by the content (`formats.py`), not the
name."""

from __future__ import annotations

import re
from pathlib import Path

from emulator.traces.events import RankTrace
from emulator.traces.readers import captured, dpro, formats, native, simai
from emulator.traces.readers.chakra import chakra, graph
from emulator.traces.readers.kineto import kineto
from emulator.traces.workload import Workload
from switchml.errors import TraceError


def read(path: Path | str, *, rank: int | None = None, salvage: bool = False) -> list[RankTrace]:
    """The traces in `path`, a file or a directory of files, in the order of ranks. In a directory, torch's execution
    traces are joined to the profiler's of the same rank, and what is no trace is passed over.

    rank: whose the trace is, for a single file that does not say.
    salvage: of files that break off, take what is there; `about["broken"]` then says so.
    Raises TraceError where nothing is found, a file can't be read, or two are of one rank.
    """
    path = Path(path)
    present = files(path)
    if rank is not None and path.is_dir():
        raise TraceError(f"--rank names the rank of one file, but {path} is a directory")
    untimed = [file for file, kind in present if kind == formats.SIMAI]
    if untimed:
        raise TraceError(
            f"{untimed[0]} does not say when things happened, only what there is to do: "
            "`switchml trace emulate` plays it on a cluster"
        )
    beside = {_named_rank(file): file for file, kind in present if kind == formats.EXECUTION_TRACE}
    traces = [
        trace
        for file, kind in present
        if kind != formats.EXECUTION_TRACE
        for trace in _read_one(file, kind, rank, salvage, beside)
    ]
    if not traces:
        raise TraceError(
            f"{path} has torch's execution traces only, which have no times: put the profiler's beside them"
        )
    traces.sort(key=lambda trace: trace.rank)
    for one, other in zip(traces, traces[1:], strict=False):
        if one.rank == other.rank:
            raise TraceError(
                f"{one.source} and {other.source} are both of rank {one.rank}; one trace a rank is expected"
            )
    return traces


def read_workload(path: Path | str) -> Workload:
    """The workload in `path`: a file, or a directory with one a rank. TraceError where there is none."""
    path = Path(path)
    present = files(path)
    texts = [file for file, kind in present if kind == formats.SIMAI]
    execution_traces = [file for file, kind in present if kind == formats.CHAKRA]
    if texts and len(present) > 1:
        raise TraceError(
            f"{path} has {len(present)} traces; SimAI's workload is one file, expected {texts[0].name} alone"
        )
    if texts:
        return simai.read_simai(texts[0])
    if not execution_traces:
        raise TraceError(f"{path} says what a job did, not what there is to do: `switchml trace replay` replays it")
    return graph.read_chakra(execution_traces)


def files(path: Path) -> list[tuple[Path, str]]:
    """The traces at `path`, each with its format; TraceError where there is none."""
    if not path.exists():
        raise TraceError(f"no trace at {path}: no such file or directory")
    inside = [path]
    if path.is_dir():  # hidden files are those that a rank was killed over
        inside = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if path.is_dir() and not any(formats.detect(file) for file in inside):
        inside = sorted(file for file in path.rglob("*") if file.is_file())  # a directory for each rank
    inside = list(dict.fromkeys(captured.about_of(file) or file for file in inside))  # one for each rank's capture
    present = [(file, kind) for file in inside if (kind := formats.detect(file))]
    if not present:
        expected = ", ".join(formats.DESCRIPTIONS[:-1]) + f" or {formats.DESCRIPTIONS[-1]}"
        what = f"no trace in {path}" if path.is_dir() else f"{path} is no trace that is known here"
        raise TraceError(f"{what}: expected {expected}")
    return present


def _read_one(path: Path, kind: str, rank: int | None, salvage: bool, beside: dict[int, Path]) -> list[RankTrace]:
    if kind == formats.DPRO:
        return dpro.read(path, salvage=salvage)
    if kind == formats.KINETO:
        execution_trace = beside.get(_named_rank(path))
        return [kineto.read(path, rank=rank, salvage=salvage, execution_trace=execution_trace)]
    reader = {formats.CAPTURE: captured.read, formats.CHAKRA: chakra.read, formats.OURS: native.read}[kind]
    return [reader(path, rank=rank, salvage=salvage)]


def _named_rank(path: Path) -> int:
    """The rank that a file's name has in it, or -1."""
    named = re.search(r"rank[-_]?(\d+)", path.name)
    return int(named[1]) if named else -1
