"""Reads torch's execution trace (ExecutionTraceObserver, schemas 1.0.2 to 1.1.1-chakra.0.0.4) that accompanies a Kineto
trace of the run. It has no times, but lists the tensors that each operator reads and writes; `rf_id`, the profiler's
record number, joins the two. It shows that a host thread's access to a storage after Gloo's collective had to wait for
it. A transport may record its end some 100 µs after it woke its waiters: the collective's end is corrected to when they
resumed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from emulator.traces.events import LaneKind
from emulator.traces.readers.chrome import ChromeFile
from emulator.traces.readers.kineto.reading import Reading

_SLACK_S = 2e-6
_LATE_S = 2e-3
"""Maximum delay of a transport's recorded end."""


class Attribute(msgspec.Struct):
    name: str = ""
    value: Any = None


class Node(msgspec.Struct):
    """An operator. Schema 1.0.2 has no objects for inputs and outputs, and has `rf_id` as a direct field."""

    name: str = ""
    inputs: Any = None
    outputs: Any = None
    attrs: list[Attribute] = []
    rf_id: int | None = None

    def record(self) -> int:
        """Return the profiler's record number, -1 without one."""
        if self.rf_id is not None:
            return self.rf_id
        return next((int(one.value) for one in self.attrs if one.name == "rf_id"), -1)


def writes_before_reads(reading: Reading, path: Path) -> list[tuple[int, int]]:
    """Return (event, event on another lane that wrote a storage that it reads), once per writer and lane; also correct
    late ends of transport events in `reading`. Raises TraceError if `path` is no execution trace."""
    events = reading.events
    event_of = {record: event for event, record in enumerate(reading.record.tolist()) if record >= 0}
    nodes = ((node.record(), node) for batch in ChromeFile(path, Node, array="nodes").batches() for node in batch)
    linked = sorted((record, node.name, *_storages(node)) for record, node in nodes if record in event_of)
    transport = np.array([lane.kind == LaneKind.TRANSPORT for lane in reading.lanes])
    writer: dict[int, int] = {}
    known: set[tuple[int, int]] = set()
    pairs = []
    for record, name, read, written in linked:
        event = event_of[record]
        lane = int(events.lane[event])
        for storage in read:
            cause = writer.get(storage)
            if cause is None or events.lane[cause] == lane or (cause, lane) in known:
                continue
            late_s = float(events.start_s[cause] + events.duration_s[cause] - events.start_s[event])
            if late_s <= (_LATE_S if transport[events.lane[cause]] else _SLACK_S):
                known.add((cause, lane))
                pairs.append((event, cause))
                if late_s > _SLACK_S and events.duration_s[cause] > late_s:
                    events.duration_s[cause] -= late_s
        for storage in (*written, *(read if _writes_inputs(name) else ())):
            writer[storage] = event
    return pairs


def _writes_inputs(name: str) -> bool:
    """Return whether an operator modifies its inputs: by torch's naming (`add_`, `mul_out`), and collectives."""
    plain = name.split("(")[0]
    return plain.endswith(("_", "_out", "copy_bucket_to_grad")) or ":" in plain and "::" not in plain


def _storages(node: Node) -> tuple[list[int], list[int]]:
    """Return the numbers of the storages that a node reads and writes."""
    read, written = (list(dict.fromkeys(_tensors(side))) for side in (node.inputs, node.outputs))
    return read, written


def _tensors(values: Any) -> Iterator[int]:
    if isinstance(values, dict):
        values = values.get("values") or []
    if not isinstance(values, list):
        return
    if len(values) == 6 and isinstance(values[5], str) and all(isinstance(number, int) for number in values[:5]):
        yield values[1]
        return
    for value in values:
        if isinstance(value, list):
            yield from _tensors(value)
