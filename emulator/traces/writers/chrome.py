"""Traces for ui.perfetto.dev and chrome://tracing: all ranks in one file of Chrome's JSON format, a process for each
rank, a thread for each lane, arrows from causes to effects between lanes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.replay.chrome_json import write_events
from emulator.jobs.workload.graph import Collective
from emulator.traces.events import RankTrace, What


def write(traces: list[RankTrace], path: Path) -> None:
    """Write `path`, compressed where it ends in .gz. Clocks are not aligned."""
    epochs = np.array([trace.epoch_s for trace in traces])
    shift_s = epochs - epochs.min()
    pairs = zip(traces, shift_s.tolist(), strict=True)
    events = (event for trace, from_s in pairs for event in _of_rank(trace, from_s))
    write_events(path, {"displayTimeUnit": "ms"}, events)


def _of_rank(trace: RankTrace, from_s: float) -> Iterator[dict[str, Any]]:
    pid = trace.rank
    title = f"rank {trace.rank}" + (f" on {trace.host}" if trace.host else "")
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for tid, lane in enumerate(trace.lanes):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": lane.name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
    events = trace.events
    start_us, end_us = (np.round((from_s + at) * 1e6, 3) for at in (events.start_s, events.end_s))
    lanes = events.lane.tolist()
    for event in range(len(events)):
        args: dict[str, Any] = {}
        if events.collective[event]:
            group = trace.groups[events.group[event]]
            args = {
                "collective": Collective(events.collective[event]).name.lower(),
                "bytes": float(events.bytes[event]),
                "group": group.name,
                "ranks": len(group.ranks),
                "sequence": int(events.sequence[event]),
            }
        elif events.bytes[event]:
            args = {"bytes": float(events.bytes[event])}
        yield {
            "ph": "X",
            "cat": What(events.what[event]).name.lower(),
            "name": trace.names[events.name[event]],
            "pid": pid,
            "tid": lanes[event],
            "ts": float(start_us[event]),
            "dur": round(float(end_us[event] - start_us[event]), 3),
            **({"args": args} if args else {}),
        }
    for number, (cause, effect) in enumerate(trace.causes.tolist()):
        if lanes[cause] != lanes[effect]:
            arrow = {"cat": "cause", "name": "cause", "id": f"{pid}.{number}", "pid": pid}
            yield {"ph": "s", **arrow, "tid": lanes[cause], "ts": float(start_us[cause])}
            yield {"ph": "f", "bp": "e", **arrow, "tid": lanes[effect], "ts": float(start_us[effect])}
