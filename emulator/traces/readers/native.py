"""Our own files: a RankTrace as one .npz, arrays as they are and the rest as JSON. Loads some twenty times faster than
what a profiler wrote.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from emulator.traces.events import Events, Group, Lane, LaneKind, Pings, RankTrace, Wire
from switchml.errors import TraceError

VERSION = 1
SUFFIX = ".trace.npz"


def write(trace: RankTrace, path: Path) -> None:
    """Write `trace` to `path`."""
    arrays = {f"event.{name}": array for name, array in _fields(trace.events).items()}
    if trace.wire is not None:
        arrays |= {f"wire.{name}": array for name, array in _fields(trace.wire).items()}
    if trace.pings is not None:
        arrays |= {f"pings.{name}": array for name, array in _fields(trace.pings).items()}
    text = np.frombuffer(json.dumps(head(trace)).encode(), np.uint8)
    np.savez_compressed(path, head=text, causes=trace.causes, steps=trace.steps, **arrays)


def head(trace: RankTrace) -> dict[str, Any]:
    """All of `trace` that is no array, ready for JSON."""
    return {
        "switchml_trace": VERSION,
        "rank": trace.rank,
        "world_size": trace.world_size,
        "host": trace.host,
        "source": str(trace.source),
        "format": trace.format,
        "epoch_s": trace.epoch_s,
        "names": trace.names,
        "lanes": [[lane.name, int(lane.kind)] for lane in trace.lanes],
        "groups": [[group.name, list(group.ranks)] for group in trace.groups],
        "backend": trace.backend,
        "gradient_names": {str(event): name for event, name in trace.gradient_names.items()},
        "about": trace.about,
    }


def is_native(path: Path) -> bool:
    """Whether `path` is a file of ours."""
    try:
        with zipfile.ZipFile(path) as file:
            return "head.npy" in file.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def read(path: Path, *, rank: int | None = None, salvage: bool = False) -> RankTrace:
    """What `write` wrote. `rank` must be the trace's own, if given; there is nothing to salvage of a broken one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head: dict[str, Any] = json.loads(arrays["head"].tobytes())
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, EOFError) as error:
        raise TraceError(f"{path} is no trace of ours, or a broken one: {error}") from None
    if head.get("switchml_trace") != VERSION:
        raise TraceError(f"{path} has version {head.get('switchml_trace')}; this switchml reads version {VERSION}")
    if rank is not None and rank != head["rank"]:
        raise TraceError(f"{path} is of rank {head['rank']}, not {rank}")
    has_wire = any(name.startswith("wire.") for name in arrays)
    has_pings = any(name.startswith("pings.") for name in arrays)
    trace = whole(
        head,
        Path(path),
        Events(**_columns(Events, "event", arrays)),
        arrays["causes"],
        arrays["steps"],
        Wire(**_columns(Wire, "wire", arrays)) if has_wire else None,
    )
    return dataclasses.replace(trace, pings=Pings(**_columns(Pings, "pings", arrays)) if has_pings else None)


def whole(
    head: dict[str, Any], path: Path, events: Events, causes: np.ndarray, steps: np.ndarray, wire: Wire | None = None
) -> RankTrace:
    """A RankTrace of what `head` returned and the arrays."""
    return RankTrace(
        rank=head["rank"],
        world_size=head["world_size"],
        host=head["host"],
        source=path,
        format=head["format"],
        epoch_s=head["epoch_s"],
        names=head["names"],
        lanes=[Lane(name, LaneKind(kind)) for name, kind in head["lanes"]],
        groups=[Group(name, tuple(ranks)) for name, ranks in head["groups"]],
        events=events,
        causes=causes,
        steps=steps,
        backend=head["backend"],
        wire=wire,
        gradient_names={int(event): name for event, name in head["gradient_names"].items()},
        about=head["about"],
    )


def _fields(table: Events | Wire | Pings) -> dict[str, np.ndarray]:
    return {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}


def _columns(kind: type, prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {field.name: arrays[f"{prefix}.{field.name}"] for field in dataclasses.fields(kind)}
