"""Assigns the events of one file to ranks: of merged profiles, and of one process whose accelerators each communicate
as a rank (DataParallel). Each rank becomes a part: its threads' events and its device's streams. A process that only
computes on several accelerators is one rank.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.traces.communication_kernels import family_of
from emulator.traces.events import NONE
from emulator.traces.readers.kineto.events import Table, Value
from emulator.traces.readers.tables import Columns
from switchml.errors import TraceError

OPERATORS = ("cpu_op", "user_annotation", "python_function")
_RANK = re.compile(r"rank\W{0,2}(\d+)", re.IGNORECASE)


@dataclass
class Part:
    """One rank's share of a table."""

    columns: dict[str, np.ndarray]
    """The table's columns, restricted to this rank's rows."""
    rows: np.ndarray
    """int64 (events,): each event's row in the table."""
    rank: int | None = None
    """None: the only part; the rank is determined from the file."""
    count: int = 1
    """Number of parts of the file."""
    note: str = ""
    """How its rank was determined."""


def launches(correlation: np.ndarray, is_call: np.ndarray, is_work: np.ndarray) -> np.ndarray:
    """Return for device events, `is_work`, the runtime call with the same correlation id, int64 (events,); else
    NONE."""
    launch = np.full(len(correlation), NONE, np.int64)
    calls, works = (np.flatnonzero((correlation >= 0) & chosen) for chosen in (is_call, is_work))
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    if len(calls):
        place = np.minimum(np.searchsorted(correlation[calls], correlation[works]), len(calls) - 1)
        same = correlation[calls][place] == correlation[works]
        launch[works[same]] = calls[place[same]]
    return launch


def parts(path: Path, table: Table) -> list[Part]:
    """Return the ranks in a table, which is empty thereafter. Raises TraceError if events can't be assigned."""
    columns = table.columns.arrays()
    table.rows, table.columns = len(columns["kind"]), Columns()
    owners = _Owners(path, table, columns)
    processes = owners.processes()
    shares: list[tuple[np.ndarray, Value, Value]] = []
    for number, pid in enumerate(processes or [None]):
        mine = owners.owner == number if len(processes) > 1 else np.ones(len(owners.owner), bool)
        devices = owners.communicating(mine)
        if len(devices) < 2:
            shares.append((mine, pid, devices[0] if devices else owners.device(mine)))
            continue
        for place, device in enumerate(devices):
            # Streams without communication belong to the first device.
            others = owners.on_device & np.isin(owners.pid, [owners.number[one] for one in devices if one != device])
            elsewhere = owners.on_device & (owners.pid != owners.number[device]) if place else others
            shares.append((mine & ~elsewhere, None, device))
    if len(shares) == 1:
        return [Part(columns, np.arange(len(owners.owner)))]
    ranks, note = _ranks(table, shares)
    return [
        Part({name: column[mine] for name, column in columns.items()}, np.flatnonzero(mine), rank, len(shares), note)
        for (mine, _, _), rank in zip(shares, ranks, strict=True)
    ]


class _Owners:
    """Process of each row of a table. Arrays (rows,)."""

    def __init__(self, path: Path, table: Table, columns: dict[str, np.ndarray]) -> None:
        self._path, self._columns = path, columns
        keys = list(table.lanes)
        self.number: dict[Any, int] = {}
        """pid → number."""
        of_lane = np.array([self.number.setdefault(pid, len(self.number)) for pid, _, _ in keys], np.int64)
        lane, kind = columns["lane"], columns["kind"]
        self._pids = list(self.number)
        self.pid = of_lane[lane] if len(keys) else np.empty(0, np.int64)
        self.on_device = np.array([key[2] for key in keys], bool)[lane] if len(keys) else np.empty(0, bool)
        kinds = list(table.kinds)
        self._is_operator = np.array([category in OPERATORS for category, _ in kinds], bool)[kind]
        self._is_call = np.array([category == "runtime" for category, _ in kinds], bool)[kind]
        self._communicates = np.array(
            [category == "kernel" and family_of(name) is not None for category, name in kinds], bool
        )[kind]
        self.owner = np.zeros(len(lane), np.int64)

    def processes(self) -> list[Value]:
        """Return the pids of the processes, in file order; fill in `owner` if there are several."""
        for is_host in (self._is_operator, self._is_call):
            numbers, first = np.unique(self.pid[is_host], return_index=True)
            if len(numbers):
                break
        if len(numbers) < 2:
            return [self._pids[number] for number in numbers]
        numbers = numbers[np.argsort(first)]
        of_pid = np.full(len(self._pids), NONE)
        of_pid[numbers] = np.arange(len(numbers))
        host = ~self.on_device
        if (strangers := np.flatnonzero(host & (of_pid[self.pid] == NONE))).size:
            pid = self._pids[int(self.pid[strangers[0]])]
            raise self._mixed(numbers, f"process {pid!r} has launches, but no operators")
        self.owner = np.where(host, of_pid[self.pid], NONE)
        self._claim(numbers)
        return [self._pids[number] for number in numbers]

    def _claim(self, numbers: np.ndarray) -> None:
        """Assign device events to the process that launched them. Where several number their launches equally, to the
        adjacent process in the file, if processes are in sequence."""
        columns, host = self._columns, np.flatnonzero(~self.on_device)
        open_rows = np.flatnonzero(self.on_device)
        callers = [
            launches(columns["correlation"], self._is_call & (self.owner == number), self.on_device)[open_rows]
            for number in range(len(numbers))
        ]
        launched_by = np.stack(callers) != NONE
        one_by_one = np.count_nonzero(np.diff(self.owner[host])) == len(numbers) - 1
        known = launched_by.sum(axis=0) == 1
        self.owner[open_rows[known]] = np.argmax(launched_by, axis=0)[known]
        if one_by_one:
            before = np.maximum(np.searchsorted(host, open_rows[~known]) - 1, 0)
            self.owner[open_rows[~known]] = self.owner[host[before]]
            return
        for device in np.unique(self.pid[open_rows[~known]]).tolist():
            mine = open_rows[(self.pid[open_rows] == device) & known]
            owners = np.unique(self.owner[mine])
            if len(owners) != 1:
                what = "they share" if len(owners) else "nothing tells who launched what on"
                raise self._mixed(numbers, f"{what} device {self._pids[device]!r}")
            self.owner[open_rows[~known & (self.pid[open_rows] == device)]] = owners[0]

    def communicating(self, mine: np.ndarray) -> list[Value]:
        """Return the devices on which a process communicates."""
        return self._sorted(self._communicates & mine & self.on_device)

    def device(self, mine: np.ndarray) -> Value:
        """Return the first device of a process."""
        return next(iter(self._sorted(mine & self.on_device)), None)

    def _sorted(self, chosen: np.ndarray) -> list[Value]:
        pids = [self._pids[number] for number in np.unique(self.pid[chosen]).tolist()]
        return sorted(pids, key=lambda pid: (not isinstance(pid, int), pid if isinstance(pid, int) else 0, str(pid)))

    def _mixed(self, numbers: np.ndarray, why: str) -> TraceError:
        names = ", ".join(repr(self._pids[number]) for number in numbers[:4].tolist())
        return TraceError(
            f"{self._path} has events of {len(numbers)} processes ({names}), and {why}: expected a file for each rank"
        )


def _ranks(table: Table, shares: list[tuple[np.ndarray, Value, Value]]) -> tuple[list[int], str]:
    """Return the rank of each part by the process's name in the file, else by its device, else by its position; and
    which of these was used."""
    named = [_RANK.search(" ".join([str(pid), *table.process_names.get(pid, [])])) for _, pid, _ in shares]
    if len({int(each[1]) for each in named if each}) == len(shares):
        return [int(each[1]) for each in named if each], "by the names of its processes"
    devices = [device for _, _, device in shares if isinstance(device, int)]
    if len(set(devices)) == len(shares):
        return [sorted(devices).index(device) for device in devices], "in the order of its devices"
    return list(range(len(shares))), "in the order of the file"
