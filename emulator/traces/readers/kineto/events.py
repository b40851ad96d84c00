"""Parsed contents of a Kineto trace (https://github.com/pytorch/kineto, libkineto/src/output_json.cpp): the fields of
one event, and the tables that collect a whole file. Nothing is interpreted here.
"""

import re
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from emulator.traces.communication_kernels import family_of
from emulator.traces.readers.chrome import ChromeFile
from emulator.traces.readers.tables import Columns, Numbers
from switchml.errors import TraceError

Value = int | float | str | None

RECORDED = ("cpu_op", "user_annotation", "python_function", "runtime", "kernel", "gpu_memcpy", "gpu_memset")
"""Categories that become events; others are mapped to one of these by `_CATEGORIES` or `_recorded_as`."""

_CATEGORIES = {
    "Runtime": "runtime",
    "mtia_ccp_events": "kernel",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
"""Category names of other versions and accelerators (libkineto/include/ActivityType.h)."""

_NO_WORK = re.compile(r"^Trace$|annotation$|_sync$|_event$|counters?$|_range$|profiler$|^overhead$|correlation$")
"""Categories that repeat or measure other events, although they may name a stream."""

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")

BY_HOST = re.compile(r"^(gloo|mpi|ucc|switchml):(\w+)")
BY_DEVICE = re.compile(r"^(nccl|rccl|xccl|hccl):(\w+)")
C10D = re.compile(r"^c10d::(\w+)")
"""Annotations and operators around communication: of a host backend, of a device, and c10d's calls."""


_ANNOTATION = re.compile(
    rf"ProfilerStep#|enumerate\(DataLoader\)|Optimizer\.\w+#|DistributedDataParallel\.|{BY_HOST.pattern}|{BY_DEVICE.pattern}"
)
"""torch's own annotations. Until version 1.10 they had the category of operators."""

_OPERATORS = re.compile(r"Backward\d*$|^record_param_comms$")
"""Operators without a namespace."""

_NOTHING = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """Arguments of an event; ROCm writes numbers as strings. Lists are decoded on demand, to None if absent."""

    record: Value = msgspec.field(name="Record function id", default=None)
    sequence: Value = msgspec.field(name="Sequence number", default=None)
    forward_thread: Value = msgspec.field(name="Fwd thread id", default=None)
    correlation: Value = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)
    stream: Value = None
    device: Value = None
    bytes: Value = None
    size: Value = None
    kind: Value = None
    collective: Value = msgspec.field(name="Collective name", default=None)
    sent: Value = msgspec.field(name="In msg nelems", default=None)
    received: Value = msgspec.field(name="Out msg nelems", default=None)
    group_size: Value = msgspec.field(name="Group size", default=None)
    dtype: Value = None
    group: Value = msgspec.field(name="Process Group Name", default=None)
    group_start: Value = msgspec.field(name="Global rank start", default=None)
    group_stride: Value = msgspec.field(name="Global rank stride", default=None)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=_NOTHING)
    source: Value = msgspec.field(name="Src Rank", default=None)
    destination: Value = msgspec.field(name="Dst Rank", default=None)
    sync: Value = msgspec.field(name="cuda_sync_kind", default=None)
    waits_on_stream: Value = msgspec.field(name="wait_on_stream", default=None)
    waits_on_record: Value = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)
    name: Any = None
    labels: Any = None


class Event(msgspec.Struct, gc=False):
    """One element of `traceEvents`."""

    ph: str = ""
    cat: str = ""
    name: Any = ""
    pid: Value = None
    tid: Value = None
    ts: Value = None
    dur: Value = 0
    id: Value = None
    args: Args | None = None


class Table:
    """A file's events, unsorted, as columns; sparse fields are in dictionaries by row."""

    def __init__(self) -> None:
        self.columns = Columns(kind="i", lane="i", ts="d", dur="d", correlation="q", record="q")
        self.rows = 0  # number of rows after the columns were taken
        self.kinds = Numbers()  # (category, name) → number
        self.lanes = Numbers()  # (pid, tid, on a device?) → number
        self.lane_names: dict[tuple[Value, Value], str] = {}
        self.details: dict[int, Args] = {}  # row → arguments of communication, copies, gradients
        self.syncs: dict[int, Args] = {}  # correlation id → arguments of CUDA's own record of a wait
        self.arrows = Columns(id="q", is_head="b", lane="i", ts="d")
        """Ends of forward-backward arrows, at the start of an operator."""
        self.arrow_names = Numbers()
        self.autograd = Columns(row="i", sequence="q", is_backward="b")  # operators with an autograd sequence number
        self.process_names: dict[Value, list[str]] = {}  # pid → its names in the file
        self.skipped: dict[str, int] = {}  # category → number of omitted events
        self.unpaired: list[str] = []  # names of begin events without an end, or end events without a begin
        self._halves: list[Event] = []  # begin and end events
        self._communicates = _Communicates()
        self._current = Event()

    def fill(self, path: Path, *, salvage: bool = False) -> ChromeFile:
        """Read the whole of `path`; return the file with its other fields."""
        file = ChromeFile(path, Event, salvage=salvage)
        for batch in file.batches():
            self._add_all(batch, f"{path}, events {file.events - len(batch) + 1} to {file.events}")
        self._add_all(self._whole(), f"{path}, begin and end events")
        return file

    def _add_all(self, batch: list[Event], where: str) -> None:
        try:
            self._add(batch)
        except (TypeError, ValueError, OverflowError) as error:
            event = self._current
            times = f"ts {str(event.ts)[:40]!r}, dur {str(event.dur)[:40]!r}"
            raise TraceError(f"{where}: {str(event.name)[:80]!r} ({times}) is not as expected: {error}") from None

    def _whole(self) -> list[Event]:
        """Combine begin and end events (`ph` B and E), nested by thread: an end closes the last begin of its name, if
        any."""
        whole, open_events = [], defaultdict[tuple[Value, Value], list[Event]](list)
        for half in sorted(self._halves, key=lambda half: _number(half.ts)):
            begun = open_events[half.pid, half.tid]
            if half.ph == "B":
                begun.append(half)
                continue
            places = [place for place, one in enumerate(begun) if half.name in ("", one.name)]
            if not places:
                self.unpaired.append(str(half.name))
                continue
            event = begun.pop(places[-1])
            event.ph, event.dur, event.args = "X", _number(half.ts) - _number(event.ts), event.args or half.args
            whole.append(event)
        self.unpaired += [str(one.name) for begun in open_events.values() for one in begun]
        self._halves = []
        return whole

    def _add(self, batch: list[Event]) -> None:
        columns, kinds, lanes = self.columns, self.kinds, self.lanes
        add_kind, add_lane = columns.kind.append, columns.lane.append
        add_ts, add_dur = columns.ts.append, columns.dur.append
        add_correlation, add_record = columns.correlation.append, columns.record.append
        communicates = self._communicates
        for event in batch:
            self._current = event
            if event.ph != "X":
                self._add_other(event)
                continue
            category = event.cat
            name = event.name if type(event.name) is str else str(event.name)
            if category in ("cpu_op", "Operator"):
                category = _host_category(category, name)
            elif category not in RECORDED:
                category = _recorded_as(category, event.args)
                if not category:
                    self._skip(event)
                    continue
            args = event.args or _NO_ARGS
            on_device = category in DEVICE_CATEGORIES
            row = len(columns.kind)
            add_kind(kinds[category, name])
            add_lane(lanes[event.pid, event.tid, on_device])
            ts, dur = event.ts, event.dur or 0
            add_ts(float(ts) if type(ts) is str else ts)
            add_dur(float(dur) if type(dur) is str else dur)
            correlation, record = args.correlation, args.record
            add_correlation(-1 if correlation is None else int(correlation))
            add_record(-1 if record is None else int(record))
            if on_device:
                if category != "kernel" or communicates[name]:
                    self._keep(row, args)
                continue
            if args.sequence is not None and args.forward_thread is not None:
                self.autograd.row.append(row)
                self.autograd.sequence.append(int(args.sequence))
                self.autograd.is_backward.append(int(args.forward_thread) != 0)
            if _is_detailed(category, name, args):
                self._keep(row, args)

    def _keep(self, row: int, args: Args) -> None:
        for name in ("dims", "types", "concrete", "group_ranks"):
            raw = getattr(args, name)
            # A Raw would keep its whole block of the file alive.
            value = msgspec.json.decode(raw) if raw is not _NOTHING else None
            setattr(args, name, value if isinstance(value, list) or name == "group_ranks" else None)
        self.details[row] = args

    def _add_other(self, event: Event) -> None:
        if event.ph in "sf" and event.cat == "fwdbwd":
            self.arrows.id.append(self.arrow_names[event.id])
            self.arrows.is_head.append(event.ph == "f")
            self.arrows.lane.append(self.lanes[event.pid, event.tid, False])
            self.arrows.ts.append(_number(event.ts))
        elif event.ph in ("B", "E"):
            _number(event.ts)
            self._halves.append(event)
        elif event.ph == "M" and event.args:
            if event.name == "thread_name":
                self.lane_names[event.pid, event.tid] = str(event.args.name)
            elif event.name in ("process_name", "process_labels"):
                self.process_names.setdefault(event.pid, []).append(str(event.args.name or event.args.labels))

    def _skip(self, event: Event) -> None:
        if event.cat == "cuda_sync" and (args := event.args) and args.correlation is not None:
            args.dims = args.types = args.concrete = args.group_ranks = _NOTHING
            self.syncs[int(args.correlation)] = args
        elif event.cat != "Trace":
            self.skipped[event.cat] = self.skipped.get(event.cat, 0) + 1


_NO_ARGS = Args()


def _number(time: Value) -> float:
    """Convert a time; raises TypeError or ValueError if it is none, so that the file is refused."""
    if time is None:
        raise TypeError("must be real number, not NoneType")
    return float(time)


def _recorded_as(category: str, args: Args | None) -> str:
    """Return the category in RECORDED; "" for none. Host calls are recognized by name; work on a device's stream counts
    as a kernel."""
    if (known := _CATEGORIES.get(category)) is not None:
        return known
    if category.endswith(("_runtime", "_driver")):
        return "runtime"
    on_stream = args is not None and args.stream is not None and args.device is not None
    return "kernel" if on_stream and not _NO_WORK.search(category) else ""


class _Communicates(dict[str, bool]):
    """Name of a kernel → whether it is a communication kernel."""

    def __missing__(self, name: str) -> bool:
        self[name] = known = family_of(name) is not None
        return known


@lru_cache(maxsize=1 << 16)
def _host_category(category: str, name: str) -> str:
    """Return an operator's category, or "user_annotation" for an annotation of torch or, in the category of torch 1.8
    and 1.9, where all are operators, a name that is neither in a namespace nor autograd's."""
    is_old = category == "Operator" and "::" not in name and not _OPERATORS.search(name)
    return "user_annotation" if is_old or _ANNOTATION.match(name) else "cpu_op"


def _is_detailed(category: str, name: str, args: Args) -> bool:
    if category == "runtime":
        return False
    if category == "user_annotation":
        return ":" in name
    return args.collective is not None or name.startswith("c10d::") or name == "torch::autograd::AccumulateGrad"
