"""Writes the emulated iterations in the format of PyTorch's profiler: Kineto's JSON, for ui.perfetto.dev and other
readers. It contains all dependencies between host and streams, as CUDA's profiler records them (`cuda_sync` events).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emulator.jobs.replay.chrome_json import write_events
from emulator.peers.script.clock import Collective, Span, Wait
from emulator.peers.script.launch import PROFILED
from emulator.peers.script.session import Session

HOST, DEVICE = 1, 0
"""Process ids in the file."""
THREAD = 1
FIRST_STREAM = 7
"""torch's number of its default stream."""
_TICK_S = 1e-8
"""Duration of a runtime call: shorter than any other host activity."""
_KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_RING",
    "all_gather": "ncclDevKernel_AllGather_RING",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_RING",
    "all_to_all": "ncclDevKernel_SendRecv",
    "broadcast": "ncclDevKernel_Broadcast_RING",
    "reduce": "ncclDevKernel_Reduce_Sum_RING",
    "barrier": "ncclDevKernel_AllReduce_Sum_RING",
    "p2p": "ncclDevKernel_SendRecv",
}
_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
}
"""c10d's names, where they differ."""


def write(session: Session, path: Path) -> None:
    """Write the last PROFILED iterations, without the first unless it is the only one, to `path` (.json or
    .json.gz)."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": session.cluster.device.title}],
        "distributedInfo": {"backend": "nccl", "rank": session.ranks.rank, "world_size": session.world},
        "baseTimeNanoseconds": 0,
    }
    write_events(path, head, _Events(session).all())


class _Events:
    def __init__(self, session: Session) -> None:
        self._session = session
        clock, steps = session.clock, [one for one in session.scopes if one[0].startswith("ProfilerStep")]
        first = max(len(steps) - PROFILED, min(1, len(steps) - 1))
        self._from_s = steps[first][1]
        self._spans = [one for one in clock.spans if one.called_s >= self._from_s]
        ends = {one.start_s + one.duration_s: place for place, one in enumerate(self._spans)}
        self._waits = [(one, ends.get(one.until_s)) for one in clock.waits if one.at_s >= self._from_s]
        self._records: dict[int, int] = {}
        """Span → correlation id of the cudaEventRecord after it, for spans that are waited for."""
        self._next = 2 * len(self._spans) + 1
        for wait, place in self._waits:
            if wait.stream >= 0 and place is not None and place not in self._records:
                self._records[place] = self._correlation()

    def _correlation(self) -> int:
        self._next += 1
        return self._next

    def all(self) -> Iterator[dict[str, Any]]:
        yield {"ph": "M", "name": "process_name", "pid": HOST, "tid": 0, "args": {"name": "python"}}
        yield {"ph": "M", "name": "thread_name", "pid": HOST, "tid": THREAD, "args": {"name": "thread 1 (python)"}}
        for name, begun_s, ended_s in self._session.scopes:
            if begun_s >= self._from_s:
                yield _host("user_annotation", name, begun_s, ended_s)
        yield from self._memory()
        for place, span in enumerate(self._spans):
            yield from self._span(place, span)
        for wait, awaited in self._waits:
            awaited_span = None if awaited is None else self._spans[awaited]
            yield from self._wait(wait, awaited_span, None if awaited is None else self._records.get(awaited))

    def _memory(self) -> Iterator[dict[str, Any]]:
        """Counter tracks: MiB allocated, by use, and reserved. As with PyTorch's, times are the host's."""
        for at_s, used, reserved in self._session.ledger.timeline(self._from_s):
            counts = {use: size / 2**20 for use, size in used.items()}
            for name, args in (("memory (MiB)", counts), ("memory reserved (MiB)", {"reserved": reserved / 2**20})):
                yield {"ph": "C", "name": name, "pid": DEVICE, "ts": at_s * 1e6, "args": args}

    def _span(self, place: int, span: Span) -> Iterator[dict[str, Any]]:
        """Yield the events of an operator or collective: the host's call, the launch within it, the kernel on the
        device."""
        correlation = place + 1
        where = {"correlation": correlation, "device": 0, "stream": FIRST_STREAM + span.stream}
        if isinstance(span, Collective):
            name, args = "record_param_comms", _described(span, self._session.ranks.rank)
            kernel = _KERNELS[span.operation]
        else:
            operator = self._session.device.operators[span.operator]
            namespace, base = operator.name.split(".")[:2]
            name = kernel = f"{namespace}::{base}"
            args = {"Input Dims": [list(one.size) for one in operator.inputs]}
        yield _host("cpu_op", name, span.called_s, span.launched_s, args)
        record = self._records.get(place)
        launched_s = span.launched_s - (2 * _TICK_S if record else 0.0)
        call = {"correlation": correlation}
        yield _host("cuda_runtime", "cudaLaunchKernel", launched_s - _TICK_S, launched_s, call)
        if record:
            recorded_s = span.launched_s
            yield _host("cuda_runtime", "cudaEventRecord", recorded_s - _TICK_S, recorded_s, {"correlation": record})
        described = args if isinstance(span, Collective) else {}
        yield _event("kernel", kernel, DEVICE, where["stream"], span.start_s, span.duration_s, where | described)

    def _wait(self, wait: Wait, awaited: Span | None, record: int | None) -> Iterator[dict[str, Any]]:
        correlation = self._correlation()
        call = {"correlation": correlation}
        if wait.stream < 0:
            stream = FIRST_STREAM + (0 if awaited is None else awaited.stream)
            yield _host("cuda_runtime", "cudaStreamSynchronize", wait.at_s, wait.until_s, call)
            args = call | {"cuda_sync_kind": "Stream Sync", "stream": stream, "device": 0}
            yield _event("cuda_sync", "Stream Sync", DEVICE, stream, wait.at_s, wait.until_s - wait.at_s, args)
        elif awaited is not None and record is not None and awaited.stream != wait.stream:
            stream = FIRST_STREAM + wait.stream
            yield _host("cuda_runtime", "cudaStreamWaitEvent", wait.at_s, wait.at_s + _TICK_S, call)
            args = call | {
                "cuda_sync_kind": "Stream Wait Event",
                "stream": stream,
                "device": 0,
                "wait_on_stream": FIRST_STREAM + awaited.stream,
                "wait_on_cuda_event_record_corr_id": record,
            }
            yield _event("cuda_sync", "Stream Wait Event", DEVICE, stream, wait.at_s, 0.0, args)


def _described(span: Collective, rank: int) -> dict[str, Any]:
    """Return the description of a collective as in c10d (torch/csrc/distributed/c10d/ParamCommsUtils.hpp), in bytes."""
    name, ranks = span.group
    whole, share = int(span.size_bytes), int(span.size_bytes / len(ranks))
    ends: dict[str, Any] = {}
    sent = share if span.operation == "all_gather" else whole
    received = share if span.operation == "reduce_scatter" else whole
    if span.ends is not None:
        way = "send" if span.ends[0] == rank else "recv"
        sent, received = (whole, 0) if way == "send" else (0, whole)
        ends = {"Src Rank": span.ends[0], "Dst Rank": span.ends[1]}
    return {
        "Collective name": way if span.ends is not None else _NAMES.get(span.operation, span.operation),
        "In msg nelems": sent,
        "Out msg nelems": received,
        "dtype": "Byte",
        "Group size": len(ranks),
        "Process Group Name": name,
        "Process Group Ranks": json.dumps(list(ranks)),
        **ends,
    }


def _host(
    category: str, name: str, begun_s: float, ended_s: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    return _event(category, name, HOST, THREAD, begun_s, ended_s - begun_s, args or {})


def _event(
    category: str, name: str, process: int, thread: int, start_s: float, duration_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start_s * 1e6,
        "dur": duration_s * 1e6,
        "args": args,
    }
