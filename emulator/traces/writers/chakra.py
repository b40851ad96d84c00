"""Writes traces as Chakra execution traces, `chakra.RANK.et`, for ASTRA-sim and Chakra's tools. Dependencies alone
reproduce the traced times: a lane becomes a chain (`ctrl_deps`) of slices, with the own time of each nested event; idle
host time becomes a node `gap`; causes are `data_deps`; durations exclude waiting for causes. Attributes `switchml.…`
hold information without an equivalent in Chakra, so that switchml's reader restores the trace.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import NONE, LaneKind, RankTrace, What
from emulator.traces.readers import native
from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chakra import file
from emulator.traces.readers.chakra.file import attribute

MIN_S = 1e-6
"""Shorter remainders have no separate slice: an event's last own microsecond is added to its first slice."""


def write(traces: list[RankTrace], out: Path) -> list[Path]:
    """Write one file for each trace to the directory `out`; return the paths."""
    paths = [out / f"chakra.{trace.rank}.et" for trace in traces]
    for trace, path in zip(traces, paths, strict=True):
        file.write_messages(path, _messages(trace))
    return paths


def groups_node(groups: list[tuple[str, list[int]]], world_size: int) -> Any:
    """Return node 0 with number, name and ranks of the communicators. ASTRA-sim requires numbers as names."""
    listed = [
        {"pg_name": str(number), "pg_desc": name, "ranks": ranks, "group_size": len(ranks), "group_count": len(groups)}
        for number, (name, ranks) in enumerate(groups)
    ]
    node = pb.Node(id=0, name=file.GROUPS, type=pb.METADATA_NODE)
    node.inputs.values = str([json.dumps(listed)])
    node.inputs.shapes, node.inputs.types = "[[]]", "['String']"
    node.attr.append(attribute("world_size", world_size))
    return node


def _messages(trace: RankTrace) -> Iterator[Any]:
    head = native.head(trace) | {"steps": trace.steps.tolist(), "names": []}
    yield pb.GlobalMetadata(version=file.VERSION, attr=[attribute("switchml.trace", json.dumps(head))])
    yield groups_node([(group.name, list(group.ranks)) for group in trace.groups], trace.world_size)
    events = trace.events
    cut = slices(trace)
    # An event's first slice has the event's number, counted from 1; all others are numbered after these.
    is_first = np.zeros(len(cut.event), bool)
    owned = cut.event != NONE
    is_first[np.flatnonzero(owned)[np.unique(cut.event[owned], return_index=True)[1]]] = True
    ids = np.where(is_first, cut.event + 1, len(events) + np.cumsum(~is_first))
    last = np.zeros(len(events), np.int64)
    last[cut.event[owned]] = ids[owned]
    causes: dict[int, list[int]] = {}
    for cause, effect in trace.causes.tolist():
        launched = events.what[cause] == What.LAUNCH
        causes.setdefault(effect, []).append(cause + 1 if launched else int(last[cause]))
    for number, (event, before) in enumerate(zip(cut.event.tolist(), cut.before.tolist(), strict=True)):
        node = pb.Node(
            id=int(ids[number]),
            name=trace.names[events.name[event]] if event != NONE else "gap",
            type=_TYPES.get(What(events.what[event]), pb.COMP_NODE) if is_first[number] else pb.COMP_NODE,
            start_time_micros=round(float(cut.start_s[number]) * 1e6),
            duration_micros=round(float(cut.duration_s[number]) * 1e6),
        )
        # Which of a transport's threads runs a communication is random, and differs between ranks: communication there
        # follows its launch, in the same order on all ranks.
        on_transport = trace.lanes[cut.lane[number]].kind == LaneKind.TRANSPORT
        if before != NONE and not (on_transport and is_first[number] and What(events.what[event]) in _TYPES):
            node.ctrl_deps.append(int(ids[before]))
        if is_first[number]:
            node.data_deps.extend(causes.get(event, []))
            node.attr.extend(_attributes(trace, event))
        else:
            # A slice just before an event that had to wait began when the wait was over.
            node.ctrl_deps.extend(causes.get(int(cut.leads_to[number]), []))
            node.attr.append(attribute("is_cpu_op", True))
            node.attr.append(attribute("tid", int(cut.lane[number])))
            node.attr.append(attribute("switchml.of", event))
        yield node


def _attributes(trace: RankTrace, event: int) -> Iterator[Any]:
    events = trace.events
    what, lane = What(events.what[event]), int(events.lane[event])
    yield attribute("is_cpu_op", trace.lanes[lane].kind == LaneKind.HOST and what not in _TYPES)
    if what in _TYPES:
        yield from _communication(trace, event, what)
    yield attribute("tid" if trace.lanes[lane].kind == LaneKind.HOST else "stream", lane)
    yield attribute("switchml.event", [int(getattr(events, name)[event]) for name in file.INTEGERS])
    yield attribute("switchml.times", [float(getattr(events, name)[event]) for name in file.FLOATS])


_TYPES = {What.COLLECTIVE: pb.COMM_COLL_NODE, What.SEND: pb.COMM_SEND_NODE, What.RECV: pb.COMM_RECV_NODE}


def _communication(trace: RankTrace, event: int, what: What) -> Iterator[Any]:
    events = trace.events
    collective, group = Collective(events.collective[event]), int(events.group[event])
    # Chakra's size is a rank's input; it differs from `Collective` for an all-gather only.
    parts = max(1, len(trace.groups[group].ranks)) if collective == Collective.ALL_GATHER else 1
    if what == What.COLLECTIVE:
        yield attribute("comm_type", int(file.COLLECTIVE_TYPES[collective]))
    else:
        ends = [trace.rank, int(events.peer[event])]
        source, destination = ends if what == What.SEND else ends[::-1]
        for name, value in (("comm_src", source), ("comm_dst", destination), ("comm_tag", int(events.sequence[event]))):
            yield pb.Attribute(name=name, int32_val=value)
    yield attribute("comm_size", round(float(events.bytes[event]) / parts))
    yield attribute("pg_name", str(group))


@dataclass(frozen=True)
class Slices:
    """Slices of a trace. All arrays (slices,), by lane, then time."""

    event: np.ndarray  # int64: its event, NONE for a gap. Every event has at least one slice
    lane: np.ndarray  # int32
    start_s: np.ndarray  # float64, as traced
    duration_s: np.ndarray  # float64: without the waiting of `leads_to`, or of the event itself
    before: np.ndarray  # int64: the preceding slice on its lane, NONE for the first
    leads_to: np.ndarray
    """int64: for a remainder or gap, the event whose first slice is next; NONE if another remainder is."""


def slices(trace: RankTrace) -> Slices:
    """Divide `trace` into slices."""
    events, ready_s = trace.events, _ready(trace)
    rows: list[tuple[int, int, float, float, int]] = []
    host = [lane.kind == LaneKind.HOST for lane in trace.lanes]
    columns = (events.lane, events.start_s, events.end_s, events.parent)
    lanes, starts, ends, parents = (column.tolist() for column in columns)
    first_s = min(starts, default=0.0)
    open_events: list[int] = []
    now_s, lane = first_s, NONE

    def rest(until_s: float, leads_to: int) -> None:
        """Add time of the innermost open event, or a gap, until `until_s`."""
        nonlocal now_s
        from_s = max(now_s, min(ready_s[leads_to], until_s)) if leads_to != NONE else now_s
        if until_s - from_s > MIN_S:
            owner = open_events[-1] if open_events else NONE
            if open_events and rows[-1][0] == owner and rows[-1][3] == 0.0 and from_s <= rows[-1][2]:
                rows.pop()  # its beginning and its first own time are one slice
                leads_to = NONE
            rows.append((owner, lane, from_s, until_s - from_s, leads_to))
        now_s = max(now_s, until_s)

    def close(parent: int) -> None:
        """End open events, up to `parent`."""
        while open_events and open_events[-1] != parent:
            rest(ends[open_events[-1]], NONE)
            open_events.pop()

    for event in range(len(events)):
        if lanes[event] != lane:
            close(NONE)
            lane, now_s = lanes[event], first_s
        if not host[lane]:
            rows.append((event, lane, starts[event], ends[event] - starts[event], NONE))
            continue
        close(parents[event])
        rest(starts[event], event)
        rows.append((event, lane, starts[event], 0.0, NONE))
        open_events.append(event)
        now_s = max(now_s, starts[event])
    close(NONE)
    names = [("event", np.int64), ("lane", np.int32), ("start_s", float), ("duration_s", float), ("leads_to", np.int64)]
    table = np.array(rows, names)
    waits = np.flatnonzero((table["event"] != NONE) & (events.what[table["event"]] == What.SYNC))
    waited_s = np.maximum(ready_s[table["event"][waits]] - table["start_s"][waits], 0.0)
    table["duration_s"][waits] = np.maximum(table["duration_s"][waits] - waited_s, 0.0)
    before = np.arange(len(rows), dtype=np.int64) - 1
    before[np.diff(table["lane"], prepend=NONE) != 0] = NONE
    return Slices(**{name: table[name] for name, _ in names}, before=before)


def _ready(trace: RankTrace) -> np.ndarray:
    """Return when the last of its causes allowed each event, float64 (events,); -inf without any."""
    events = trace.events
    ready_s = np.full(len(events), -np.inf)
    if len(trace.causes):
        cause, effect = trace.causes.T
        allowed_s = np.where(events.what[cause] == What.LAUNCH, events.start_s[cause], events.end_s[cause])
        np.maximum.at(ready_s, effect, allowed_s)
    return ready_s
