"""Reads traces of PyTorch's profiler (Kineto): of CPU runs, CUDA with NCCL, ROCm with RCCL. Host threads, transport
threads and device streams become lanes; launches, forward-backward arrows and CUDA's synchronization become causes.
"""

from pathlib import Path

import numpy as np

from emulator.traces.communication import count, item_bytes, whole
from emulator.traces.events import LaneKind, RankTrace, What
from emulator.traces.readers.kineto.causes import find_causes
from emulator.traces.readers.kineto.communication import find_communication
from emulator.traces.readers.kineto.events import Table
from emulator.traces.readers.kineto.execution_trace import writes_before_reads
from emulator.traces.readers.kineto.processes import parts
from emulator.traces.readers.kineto.reading import STEP, Reading
from emulator.traces.readers.kineto.staging import without_copies
from emulator.traces.readers.sizes import Sizes
from switchml.errors import TraceError


def read(
    path: Path,
    *,
    rank: int | None = None,
    salvage: bool = False,
    execution_trace: Path | None = None,
    sizes: Sizes | None = None,
) -> list[RankTrace]:
    """Read the traces in `path`, one for each rank in it (`processes.py`). `rank`: if the file does not contain it.
    `salvage`: of a damaged file, read the part before the fault. `execution_trace`: torch's, of the same run
    (`execution_trace.py`). `sizes`: sizes missing in the profile."""
    table = Table()
    file = table.fill(path, salvage=salvage)
    ranks = parts(path, table)
    if execution_trace is not None and len(ranks) > 1:
        raise TraceError(
            f"{execution_trace} is of a single rank, but {path} has {len(ranks)}: expected a file for each"
        )
    return [_read_part(Reading(path, table, file, part, rank, sizes), execution_trace) for part in ranks]


def _read_part(reading: Reading, execution_trace: Path | None) -> RankTrace:
    more_causes = writes_before_reads(reading, execution_trace) if execution_trace is not None else []
    communication = find_communication(reading)
    causes, inferred = find_causes(reading, communication.launch, more_causes)
    _set_sizes(reading)
    trace = RankTrace(
        rank=reading.rank,
        world_size=reading.world_size or max((len(group.ranks) for group in communication.groups), default=1),
        host=str(reading.header.get("host_name") or ""),
        source=reading.path,
        format="kineto",
        epoch_s=whole(reading.header.get("baseTimeNanoseconds")) * 1e-9 + reading.first_ts * 1e-6,
        names=list(reading.names),
        lanes=reading.lanes,
        groups=communication.groups,
        events=reading.events,
        causes=causes,
        steps=_steps(reading),
        backend=str(reading.distributed.get("backend") or communication.backend),
        about=_about(reading, inferred, communication.unnamed),
    )
    return without_copies(trace)


def _set_sizes(reading: Reading) -> None:
    """Set the bytes of copies and gradients."""
    events = reading.events
    for event, args in reading.details.items():
        if events.what[event] == What.COPY:
            events.bytes[event] = whole(args.bytes)
        elif events.gradient[event] and args.dims and args.types:
            events.bytes[event] = (count(args.dims[0]) or 1) * item_bytes(str(args.types[0]))


def _steps(reading: Reading) -> np.ndarray:
    """Return the profiler's steps, or a single one for everything. A last one without work is the profiler's end and is
    omitted."""
    events = reading.events
    host = np.array([lane.kind == LaneKind.HOST for lane in reading.lanes])[events.lane]
    first: dict[int, int] = {}
    for event in reading.where(lambda _, name: STEP.match(name)).tolist():
        if host[event] and (step := STEP.match(reading.name(event))):
            first.setdefault(int(step[1]), event)
    starts = [first[number] for number in sorted(first)]
    if len(starts) > 1 and not np.any((events.start_s > events.start_s[starts[-1]]) & (events.what == What.COMPUTE)):
        del starts[-1]
    if not starts:
        return np.array([[0.0, float(events.end_s.max())]])
    return np.stack([events.start_s[starts], events.end_s[starts]], axis=1)


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
    about |= reading.notes
    if unpaired := reading.table.unpaired:
        what = ", ".join(list(dict.fromkeys(unpaired))[:3])
        about["unpaired"] = f"{len(unpaired)} begins or ends of events without the other: left out ({what})"
    if (part := reading.part).count > 1:
        about["ranks"] = f"the file has {part.count}, told apart {part.note}"
    if reading.file.broken:
        about["broken"] = reading.file.broken
    return about
