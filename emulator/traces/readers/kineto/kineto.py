"""Traces of PyTorch's profiler (Kineto): of CPU runs, CUDA with NCCL, ROCm with RCCL. Host threads, transport threads
and device streams become lanes; launches, forward-backward arrows and CUDA's synchronization become causes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from emulator.traces.communication import count, item_bytes, whole
from emulator.traces.events import Events, LaneKind, RankTrace, What
from emulator.traces.readers.kineto import causes as kineto_causes
from emulator.traces.readers.kineto import communication as kineto_communication
from emulator.traces.readers.kineto.events import Table
from emulator.traces.readers.kineto.execution_trace import writes_before_reads
from emulator.traces.readers.kineto.reading import STEP, Reading
from emulator.traces.readers.sizes import Sizes


def read(
    path: Path,
    *,
    rank: int | None = None,
    salvage: bool = False,
    execution_trace: Path | None = None,
    sizes: Sizes | None = None,
) -> RankTrace:
    """The trace in `path`. `rank`: whose it is, where the file does not say. `salvage`: of a truncated file, what is
    there. `execution_trace`: torch's, of the same run; then what reads a tensor comes after what wrote it
    (`execution_trace.py`). `sizes`: those that the profile does not say."""
    table = Table()
    file = table.fill(path, salvage=salvage)
    reading = Reading(path, table, file, rank, sizes)
    return _trace(reading, writes_before_reads(reading, execution_trace) if execution_trace is not None else [])


def _trace(reading: Reading, more_causes: list[tuple[int, int]]) -> RankTrace:
    """All of it."""
    communication = kineto_communication.find(reading)
    names = list(dict.fromkeys(str(name) for _, name in reading.kinds))
    number = {name: at for at, name in enumerate(names)}
    name = np.array([number[str(name)] for _, name in reading.kinds], np.int32)[reading.kind]
    size, gradient = _sizes(reading)
    size = np.where(communication.collective > 0, communication.bytes, size)
    groups = communication.groups
    world_size = reading.world_size or max((len(group.ranks) for group in groups), default=1)
    base_ns = whole(reading.header.get("baseTimeNanoseconds"))
    causes, inferred = kineto_causes.find(reading, communication, more_causes)
    events = Events(
        name=name,
        what=reading.what,
        lane=reading.lane,
        start_s=reading.start_s,
        duration_s=reading.duration_s,
        parent=reading.parent,
        collective=communication.collective,
        group=communication.group,
        sequence=communication.sequence,
        peer=communication.peer,
        bytes=size,
        gradient=gradient,
    )
    return RankTrace(
        rank=reading.rank,
        world_size=world_size,
        host=str(reading.header.get("host_name") or ""),
        source=reading.path,
        format="kineto",
        epoch_s=base_ns * 1e-9 + reading.first_ts * 1e-6,
        names=names,
        lanes=reading.lanes,
        groups=groups,
        events=events,
        causes=causes,
        steps=_steps(reading),
        backend=str(reading.distributed.get("backend") or communication.backend),
        about=_about(reading, inferred, communication.unnamed),
    )


def _sizes(reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of copies and gradients, and which events are gradients."""
    size = np.zeros(len(reading.kind))
    is_gradient = np.array([name == "torch::autograd::AccumulateGrad" for _, name in reading.kinds])[reading.kind]
    for event, args in reading.details.items():
        if reading.what[event] == What.COPY:
            size[event] = whole(args.bytes)
        elif is_gradient[event] and args.dims and args.types:
            size[event] = (count(args.dims[0]) or 1) * item_bytes(args.types[0])
    return size, is_gradient


def _steps(reading: Reading) -> np.ndarray:
    """The profiler's steps, or one for everything. The last one counts only where something was done in it: the
    profiler's end opens one more."""
    steps = [kind for kind, (_, name) in enumerate(reading.kinds) if STEP.match(str(name))]
    steps.sort(key=lambda kind: int(STEP.match(reading.kinds[kind][1])[1]))
    host = np.array([lane.kind == LaneKind.HOST for lane in reading.lanes])[reading.lane]
    starts = [np.flatnonzero((reading.kind == kind) & host)[:1] for kind in steps]
    starts = [int(at[0]) for at in starts if len(at)]
    if len(starts) > 1 and not np.any((reading.start_s > reading.start_s[starts[-1]]) & (reading.what == What.COMPUTE)):
        del starts[-1]
    if not starts:
        return np.array([[0.0, float((reading.start_s + reading.duration_s).max())]])
    return np.array([[reading.start_s[at], reading.start_s[at] + reading.duration_s[at]] for at in starts])


def _about(reading: Reading, inferred: int, unnamed: int) -> dict[str, str]:
    about = {}
    devices = reading.header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        used = {pid for pid, _, on_device in reading.lane_keys if on_device}
        names = [device.get("name") for device in devices if device.get("id") in used] or [devices[0].get("name")]
        about["device"] = str(names[0])
    for key in ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version"):
        if key in reading.header:
            about[key] = str(reading.header[key])
    if "nccl_version" in reading.distributed:
        about["nccl"] = str(reading.distributed["nccl_version"])
    if reading.table.skipped:
        about["left out"] = ", ".join(f"{many} {category}" for category, many in sorted(reading.table.skipped.items()))
    if inferred:
        about["inferred"] = f"{inferred} waits between streams: the profiler was not set to record CUDA's"
    if unnamed:
        about["groups"] = f"{unnamed} collectives do not say in which group they are: taken as of the widest"
    if reading.file.broken:
        about["broken"] = reading.file.broken
    return about
