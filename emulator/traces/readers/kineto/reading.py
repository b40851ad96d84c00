"""Events of a Kineto file as sorted arrays, on lanes, with their launches."""

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from emulator.traces.communication import whole
from emulator.traces.events import NONE, Lane, LaneKind, What
from emulator.traces.limits import check_ranks
from emulator.traces.readers.chrome import ChromeFile
from emulator.traces.readers.kineto.events import BY_DEVICE, BY_HOST, C10D, Args, Table
from emulator.traces.readers.kineto.processes import Part, launches
from emulator.traces.readers.kineto.times import check_times
from emulator.traces.readers.sizes import Sizes
from emulator.traces.readers.tables import Numbers
from emulator.traces.readers.tables import table as to_events
from switchml.errors import TraceError

STEP = re.compile(r"ProfilerStep#(\d+)")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")
_LAUNCHES = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_COMMUNICATOR = re.compile(r"^(gloo|nccl|rccl|mpi|ucc|xccl|hccl|switchml):")
_LANE_ORDER = (LaneKind.HOST, LaneKind.TRANSPORT, LaneKind.DEVICE)
_DEPTH = {"user_annotation": 0, "python_function": 1, "cpu_op": 2, "runtime": 3}
_DEPTH |= {"kernel": 4, "gpu_memcpy": 4, "gpu_memset": 4}


class Reading:
    """A filled table being converted to a `RankTrace`. Arrays (events,) are sorted like `events`."""

    def __init__(
        self, path: Path, table: Table, file: ChromeFile, part: Part, rank: int | None, sizes: Sizes | None = None
    ) -> None:
        """`part` is empty thereafter."""
        self.path, self.table, self.file, self.header, self.sizes = path, table, file, file.header, sizes
        self.part = part
        distributed = self.header.get("distributedInfo") or {}
        self.distributed: dict[str, Any] = distributed if isinstance(distributed, dict) else {}
        self.kinds: list[tuple[str, str]] = list(table.kinds)
        columns, rows, part.columns = part.columns, part.rows, {}
        category = np.array([_DEPTH[category] for category, _ in self.kinds], np.int8)[columns["kind"]]
        calls, works = category == _DEPTH["runtime"], category == _DEPTH["kernel"]
        possible, self.notes = check_times(columns, [name for _, name in self.kinds], calls, works)
        """Notes on times, by their key in `RankTrace.about`."""
        if not possible.all():
            columns = {name: column[possible] for name, column in columns.items()}
            rows = rows[possible]
        if not len(columns["kind"]):
            raise TraceError(f"{path}: {self._nothing()}")
        self.names = Numbers()
        self.first_ts = float(columns["ts"].min())
        self.lane_of_table = self._lanes(columns)  # int32: table lane → index in `lanes`

        lane = self.lane_of_table[columns["lane"]]
        # Rounded to whole microseconds, an operator and its callees may begin and end together.
        depth = np.array([_DEPTH[category] for category, _ in self.kinds], np.int8)
        order = np.lexsort((columns["record"], depth[columns["kind"]], -columns["dur"], columns["ts"], lane))
        self.kind, self.record, self.correlation = (columns[name][order] for name in ("kind", "record", "correlation"))
        self.depth = depth[self.kind]
        of_kind: dict[str, np.ndarray] = {
            "name": np.array([self.names[name] for _, name in self.kinds], np.int32),
            "what": np.array([_what(category, name) for category, name in self.kinds], np.int8),
            "gradient": np.array([name == "torch::autograd::AccumulateGrad" for _, name in self.kinds]),
        }
        self.events = to_events(
            **{name: values[self.kind] for name, values in of_kind.items()},
            lane=lane[order],
            start_s=(columns["ts"][order] - self.first_ts) * 1e-6,
            duration_s=columns["dur"][order] * 1e-6,
        )
        self.row_to_event = np.full(table.rows, NONE, np.int64)
        """int64 (rows of the table,): event of each row, NONE for rows that are no event of this rank."""
        self.row_to_event[rows[order]] = np.arange(len(order))
        del columns  # only the sorted copies are needed from here on
        calls = self.launch_of[self.launch_of != NONE]
        self.events.what[calls[self.events.what[calls] == What.COMPUTE]] = What.LAUNCH  # whatever its name
        events = ((int(self.row_to_event[row]), args) for row, args in table.details.items())
        self.details: dict[int, Args] = {event: args for event, args in events if event != NONE}
        self.syncs = table.syncs if part.count == 1 else {}
        """CUDA's own records of waits; not used with several ranks in one file, as their numbers may collide."""
        self.rank, self.world_size = self._whose(rank)

    def _nothing(self) -> str:
        """Return why there are no events."""
        if "dropped" in self.notes:
            return f"no event has a time that can be: {self.notes['dropped']}"
        if self.file.broken:
            return f"there is no whole event in it; {self.file.broken}"
        if others := ", ".join(sorted(category or "none" for category in self.table.skipped)):
            return f"it is no trace of PyTorch's profiler: its events' categories are {others}"
        if unpaired := self.table.unpaired:
            return f"{len(unpaired)} begins and ends of events are in it, but none of them fit each other"
        return "it has no events: was the profiler's schedule ever active?"

    def _lanes(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Build `lanes`: hosts, the one with profiler steps first, transports, devices; return the index of each table
        lane."""
        names = self.table.lane_names
        keys = list(self.table.lanes)
        others = self._compute_spans(columns, len(keys))
        steps = np.array([bool(STEP.match(name)) for _, name in self.kinds])
        stepped = np.bincount(columns["lane"], steps[columns["kind"]], len(keys))
        used = np.unique(columns["lane"])
        keys, others, stepped = [keys[number] for number in used.tolist()], others[used], stepped[used]
        lanes = []
        for number, (pid, tid, on_device) in enumerate(keys):
            name = names.get((pid, tid), "")
            if on_device:
                lanes.append(Lane(f"device {pid} stream {tid}", LaneKind.DEVICE))
            elif not others[number]:
                lanes.append(Lane(f"transport {tid}", LaneKind.TRANSPORT))
            else:
                lanes.append(Lane((name or f"thread {tid}").strip(), LaneKind.HOST))
        order = np.lexsort((-stepped, np.array([_LANE_ORDER.index(lane.kind) for lane in lanes])))
        self.lanes, self.lane_keys = [lanes[number] for number in order], [keys[number] for number in order]
        place = np.full(len(self.table.lanes), NONE, np.int32)
        place[used[order]] = np.arange(len(order))
        return place

    def _compute_spans(self, columns: dict[str, np.ndarray], lanes: int) -> np.ndarray:
        """Return the number of spans on each table lane that are not communication annotations, int64 (lanes of the
        table,), excluding those within one, and runtime calls that a backend's thread makes before and after."""
        communicators = np.array([bool(_COMMUNICATOR.match(name)) for _, name in self.kinds])[columns["kind"]]
        calls = np.array([category == "runtime" for category, _ in self.kinds])[columns["kind"]]
        counts = ~communicators
        for lane in np.unique(columns["lane"][communicators]).tolist():
            mine = columns["lane"] == lane
            works = np.flatnonzero(mine & communicators)
            works = works[np.argsort(columns["ts"][works], kind="stable")]
            before = np.searchsorted(columns["ts"][works], columns["ts"], side="right") - 1
            until = np.maximum.accumulate((columns["ts"] + columns["dur"])[works])[before]
            counts &= ~mine | ~(calls | ((before >= 0) & (columns["ts"] < until)))
        return np.bincount(columns["lane"], counts, lanes)

    def _whose(self, rank: int | None) -> tuple[int, int]:
        """Return rank and world size, from the caller, the file, or its name."""
        if self.part.rank is not None:
            if rank is not None:
                raise TraceError(f"{self.path} has {self.part.count} ranks; --rank is for a file of one")
            most = max(whole(self.distributed.get("world_size")), self.part.count, self.part.rank + 1)
            return self.part.rank, check_ranks(self.path, most)
        recorded = self.distributed.get("rank")
        world = self.distributed.get("world_size")
        named = re.search(r"rank[-_]?(\d+)", self.path.name)
        if rank is not None and recorded is not None and rank != recorded:
            raise TraceError(f"{self.path} is of rank {recorded} according to its metadata, not of rank {rank}")
        if rank is None:
            rank = recorded if recorded is not None else int(named[1]) if named else None
        if rank is None:
            if any(pattern.match(name) for _, name in self.kinds for pattern in (BY_HOST, BY_DEVICE, C10D)):
                raise TraceError(
                    f"{self.path} does not say which rank it is (no distributedInfo.rank); "
                    "name it rank-N.json, or give --rank N"
                )
            rank = 0
        return whole(rank), check_ranks(self.path, whole(world))

    def unix_ns(self, at_s: float) -> float:
        """Return the Unix time of a time in the trace."""
        return whole(self.header.get("baseTimeNanoseconds")) + self.first_ts * 1e3 + at_s * 1e9

    @cached_property
    def launch_of(self) -> np.ndarray:
        """int64 (events,): for a device event, the runtime call on the host that launched it; else NONE."""
        return launches(self.correlation, self.depth == _DEPTH["runtime"], self.depth == _DEPTH["kernel"])

    def name(self, event: int) -> str:
        """Return the name of an event."""
        return self.kinds[self.kind[event]][1]

    def where(self, is_meant: Callable[[str, str], Any]) -> np.ndarray:
        """Return the events whose category and name satisfy `is_meant`, int64."""
        kinds = [number for number, kind in enumerate(self.kinds) if is_meant(*kind)]
        return np.flatnonzero(np.isin(self.kind, kinds))


def _what(category: str, name: str) -> int:
    """Classify an event by category and name; communication is determined later."""
    if category == "gpu_memcpy":
        return What.COMPUTE if "DtoD" in name else What.COPY
    if category in ("kernel", "gpu_memset"):
        return What.COMPUTE
    if category == "runtime":
        if "Synchronize" in name:
            return What.SYNC
        return What.LAUNCH if _LAUNCHES.search(name) else What.COMPUTE
    if category == "python_function":
        return What.SCOPE
    if category == "user_annotation":
        return What.LOAD if "DataLoader" in name and "__next__" in name else What.SCOPE
    if name == "record_param_comms" or name.startswith("c10d::") or _BACKWARD.search(name):
        return What.SCOPE
    return What.COMPUTE
