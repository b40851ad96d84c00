"""Timelines in the Trace Event Format (Chrome's JSON), for ui.perfetto.dev and chrome://tracing: a process for each
rank, a thread for each stream, a slice for each op, arrows from sends to receives; and the critical path.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from emulator.jobs.replay.chrome_json import write_events
from emulator.jobs.replay.critical import CriticalPath
from emulator.jobs.replay.engine import Replayed
from emulator.jobs.workload.graph import NO_MICRO_BATCH, NO_TRANSFER, Collective, Graph, Kind
from switchml.errors import ConfigError

MAX_OPS = 500_000
"""Largest timeline if no ranks are specified: some 100 MB, about the viewers' limit."""


def write_timeline(
    played: Replayed,
    path: str | Path,
    ranks: Iterable[int] | None = None,
    *,
    critical: CriticalPath | None = None,
    source: str = "switchml emulate",
) -> dict[str, Any]:
    """Write `path`, compressed where it ends in .gz. `ranks`: ranks to show; default: all if they have at most MAX_OPS
    ops, else one of each stage. `critical`: drawn as a separate track, with arrows from op to op. Returns the file's
    `otherData`, which records the ranks shown and their total."""
    graph = played.graph
    shown = shown_ranks(graph, ranks)
    about = {
        "source": source,
        "makespan_s": played.makespan_s,
        "ranks_shown": shown.tolist(),
        "ranks": len(graph.ranks),
    }
    path = Path(path)
    write_events(path, {"displayTimeUnit": "ms", "otherData": about}, _events(played, shown, critical))
    return about


def shown_ranks(graph: Graph, ranks: Iterable[int] | None = None, most_ops: int = MAX_OPS) -> np.ndarray:
    """Return the ranks to show, int32: `ranks` if given; all if they have at most `most_ops` ops; else the first of
    each stage of each job."""
    if ranks is not None:
        chosen = np.unique(np.fromiter(ranks, np.int64))
        if len(chosen) == 0 or chosen[0] < 0 or chosen[-1] >= len(graph.ranks):
            raise ConfigError(f"a timeline of ranks {chosen.tolist()}; the job has ranks 0 to {len(graph.ranks) - 1}")
        return chosen
    if len(graph.ops) <= most_ops:
        return np.arange(len(graph.ranks))
    _, first = np.unique(np.stack([graph.ranks.job, graph.ranks.stage]), axis=1, return_index=True)
    return np.sort(first)


def _events(played: Replayed, ranks: np.ndarray, critical: CriticalPath | None) -> Iterator[dict[str, Any]]:
    graph = played.graph
    is_shown = np.zeros(len(graph.ranks), bool)
    is_shown[ranks] = True
    for rank in ranks.tolist():
        stage, job = int(graph.ranks.stage[rank]), graph.job_names[graph.ranks.job[rank]]
        name = f"{job} rank {graph.ranks.device[rank]}" + (f", stage {stage}" if graph.stages() > 1 else "")
        if graph.ranks.weight[rank] > 1:
            name += f" (and {graph.ranks.weight[rank] - 1:.0f} like it)"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for stream in np.flatnonzero(is_shown[graph.streams.rank]).tolist():
        place = {"pid": int(graph.streams.rank[stream]), "tid": stream}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": graph.streams.name[stream]}}
    for op in np.flatnonzero(is_shown[graph.op_rank()]).tolist():
        yield from _of_op(played, op)
    if critical is not None:
        yield from _of_path(played, critical, is_shown)


def _of_path(played: Replayed, path: CriticalPath, is_shown: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield a process with the critical path as its single thread, and an arrow from each op on it to the next."""
    graph = played.graph
    pid, tid = len(graph.ranks), len(graph.streams)
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "critical path"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": -1}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": "critical path"}}
    before: dict[str, Any] | None = None
    rank = graph.op_rank()
    number = 0
    for op, from_s, until_s in zip(path.op.tolist(), path.from_s * 1e6, path.until_s * 1e6, strict=True):
        if until_s <= from_s:
            continue
        op_type, stream = graph.ops.op_type[op], int(graph.ops.stream[op])
        args = {"op": op, "rank": int(graph.ranks.device[rank[op]]), "stream": graph.streams.name[stream]}
        cat = Kind(graph.op_types.kind[op_type]).name.lower()
        slice_ = {"ph": "X", "name": graph.op_types.name[op_type], "cat": cat, "ts": from_s, "dur": until_s - from_s}
        yield {**slice_, "pid": pid, "tid": tid, "args": args}
        if not is_shown[rank[op]]:
            before = None
            continue
        place = {"pid": int(rank[op]), "tid": stream}
        arrow = {"name": "critical path", "cat": "critical", "id": len(graph.transfers) + number}
        if before is not None:
            yield {"ph": "s", **arrow, **before}
            yield {"ph": "f", "bp": "e", **arrow, **place, "ts": from_s + 0.001 * (until_s - from_s)}
            number += 1
        before = {**place, "ts": from_s + 0.999 * (until_s - from_s)}  # just before its end


def _of_op(played: Replayed, op: int) -> Iterator[dict[str, Any]]:
    """Yield an op's slice, preceded by its wait, and its end of an arrow. Times in microseconds."""
    graph = played.graph
    stream, op_type, transfer = int(graph.ops.stream[op]), int(graph.ops.op_type[op]), int(graph.ops.transfer[op])
    kind = Kind(graph.op_types.kind[op_type])
    place = {"pid": int(graph.streams.rank[stream]), "tid": stream}
    start_us, end_us = played.start_s[op] * 1e6, played.end_s[op] * 1e6
    args: dict[str, Any] = {"op": op}
    if graph.ops.micro_batch[op] != NO_MICRO_BATCH:
        args["micro_batch"] = int(graph.ops.micro_batch[op])
    if transfer != NO_TRANSFER:
        about = int(graph.transfers.op_type[transfer])
        group = graph.groups.name[graph.transfers.group[transfer]]
        args |= {"bytes": float(graph.op_types.bytes[about]), "group": group}
        began_us = max(start_us, played.transfer_start_s[transfer] * 1e6)
        if began_us > start_us:
            wait = {"ph": "X", "name": "waiting for peers", "cat": "wait", "ts": start_us, "dur": began_us - start_us}
            yield {**wait, **place, "args": {"for": graph.op_types.name[op_type]}}
        start_us = began_us
        if graph.op_types.collective[about] == Collective.P2P:
            end = {"ph": "s"} if kind == Kind.SEND else {"ph": "f", "bp": "e"}
            yield {**end, "name": "p2p", "cat": "p2p", "id": transfer, "ts": start_us, **place}
    name = graph.op_types.name[op_type]
    slice_ = {"ph": "X", "name": name, "cat": kind.name.lower(), "ts": start_us, "dur": end_us - start_us}
    yield {**slice_, **place, "args": args}
