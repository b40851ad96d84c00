"""switchml's own file format: a RankTrace as .npz, with JSON for fields that are no arrays; some twenty times faster to
load than others."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from emulator.traces.events import Events, Group, Lane, LaneKind, Pings, RankTrace, Wire
from switchml.errors import TraceError
from switchml.files import array_names, read_arrays
from switchml.output_files import whole_file

VERSION = 1
SUFFIX = ".trace.npz"
_PLAIN = ("rank", "world_size", "host", "format", "epoch_s", "names", "backend", "about")
"""Fields of RankTrace that are stored as JSON unchanged."""
_TABLES = {"event": Events, "wire": Wire, "pings": Pings}
"""Name prefixes of arrays, and the tables whose columns they are."""


def write(trace: RankTrace, path: Path) -> None:
    """Write `trace` to `path`."""
    arrays = {
        f"{prefix}.{field.name}": getattr(table, field.name)
        for prefix, table in zip(_TABLES, (trace.events, trace.wire, trace.pings), strict=True)
        if table is not None
        for field in dataclasses.fields(table)
    }
    text = np.frombuffer(json.dumps(head(trace)).encode(), np.uint8)
    with whole_file(path) as part:
        np.savez_compressed(part, head=text, causes=trace.causes, steps=trace.steps, **arrays)


def head(trace: RankTrace) -> dict[str, Any]:
    """Return all non-array fields of `trace`, ready for JSON."""
    return {name: getattr(trace, name) for name in _PLAIN} | {
        "switchml_trace": VERSION,
        "source": str(trace.source),
        "lanes": [[lane.name, int(lane.kind)] for lane in trace.lanes],
        "groups": [[group.name, list(group.ranks)] for group in trace.groups],
        "gradient_names": {str(event): name for event, name in trace.gradient_names.items()},
    }


class Head(msgspec.Struct):
    """The parsed result of `head`."""

    switchml_trace: int
    rank: int
    world_size: int
    host: str
    format: str
    epoch_s: float
    names: list[str]
    backend: str
    about: dict[str, str]
    lanes: list[tuple[str, LaneKind]]
    groups: list[tuple[str, tuple[int, ...]]]
    gradient_names: dict[int, str]
    steps: list[tuple[float, float]] = []
    """Iterations, if not stored as an array."""


def read_head(text: bytes | str, path: Path) -> Head:
    """Parse a head. Raises TraceError if `text`, from the file `path`, is no head of this version."""
    try:
        # msgspec's own JSON rejects unpaired surrogates, which may occur in names.
        head = msgspec.convert(json.loads(text), Head, str_keys=True)
    except ValueError as error:
        raise TraceError(f"{path} is not a trace of ours, or a broken one: {error}") from None
    except RecursionError:
        raise TraceError(f"{path} is nested too deeply") from None
    if head.switchml_trace != VERSION:
        raise TraceError(f"{path} has version {head.switchml_trace}; this switchml reads version {VERSION}")
    return head


def whole(head: Head, path: Path, **arrays: Any) -> RankTrace:
    """Return a RankTrace from a head, and the fields that are arrays or tables."""
    return RankTrace(
        **{name: getattr(head, name) for name in _PLAIN},
        source=path,
        lanes=[Lane(name, kind) for name, kind in head.lanes],
        groups=[Group(name, ranks) for name, ranks in head.groups],
        gradient_names=head.gradient_names,
        **arrays,
    )


def is_native(path: Path) -> bool:
    """Return whether `path` is in this format."""
    return "head" in array_names(path)


def read(path: Path, *, rank: int | None = None, salvage: bool = False) -> RankTrace:
    """Read a file written by `write`. `rank` must be the trace's own, if given; damaged files can't be salvaged."""
    arrays = read_arrays(path, TraceError)
    if missing := {"head", "causes", "steps"} - set(arrays):
        raise TraceError(f"{path} is not a trace of ours, or a broken one: it lacks {', '.join(sorted(missing))}")
    head = read_head(arrays["head"].tobytes(), path)
    if rank is not None and rank != head.rank:
        raise TraceError(f"{path} is of rank {head.rank}, not {rank}")
    events, wire, pings = (_table(kind, prefix, arrays) for prefix, kind in _TABLES.items())
    return whole(
        head, Path(path), events=events, causes=arrays["causes"], steps=arrays["steps"], wire=wire, pings=pings
    )


def _table(kind: type, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return a table; None if the file does not have it and it is optional."""
    if kind is not Events and not any(name.startswith(f"{prefix}.") for name in arrays):
        return None
    return kind(**{field.name: arrays[f"{prefix}.{field.name}"] for field in dataclasses.fields(kind)})
