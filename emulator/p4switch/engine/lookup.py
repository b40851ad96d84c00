"""Table entries in the VM's form: records, and hash tables, one for each mask that occurs among the entries.

Exact entries have one mask, prefixes one for each length, ternary entries one for each mask in use (tuple space search,
Srinivasan et al. 1999). The hash tables are tried in the order of the best entry that each has, until none can have a
better one. Entries with ranges are rows that are tried one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.p4switch.engine.layout import limbs
from emulator.p4switch.engine.layout import record as record_of
from emulator.p4switch.engine.lower import Lowered
from emulator.p4switch.engine.pipelines import TableCode
from emulator.p4switch.engine.vm import tables as v
from emulator.p4switch.state.action_profiles import ActionProfile, RunAction, Target, UseGroup, UseMember
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import Entry, MatchTable, prefix_mask
from emulator.p4switch.values import mask

_M64 = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15


def to_limbs(value: int, n: int) -> list[int]:
    """The low n limbs."""
    return [value >> 64 * i & _M64 for i in range(n)]


def hash_limbs(key: list[int]) -> int:
    """vm.tables.hash_limbs of a key that is masked already."""
    mixed = 0
    for limb in key:
        mixed = (mixed ^ limb) * _MIX & _M64
        mixed ^= mixed >> 29
    return mixed & 0x7FFFFFFFFFFFFFFF


class Kept:
    """Keeps arrays that the VM reads alive."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def __call__(self, values: np.ndarray | Sequence[Any], dtype: type | None = None) -> int:
        """The address of an array, or of the values as one of 64-bit words; there is always something to read."""
        self._arrays.append(np.asarray(values if len(values) else [0], dtype))
        return self._arrays[-1].ctypes.data


class TableImage:
    """The entries of one table. `row` is its part of the directory; `refresh` rewrites it when the table has
    changed."""

    def __init__(self, state: State, lowered: Lowered, code: TableCode, row: np.ndarray) -> None:
        self.state = state
        self.program = state.program
        self.lowered = lowered
        self.code = code
        self.row = row
        self.table: MatchTable = state.tables[code.table.index]
        self.versions: tuple[int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Update the image after changes by the control plane."""
        profile = self.table.profile
        versions = self.table.version, 0 if profile is None else profile.version
        if versions == self.versions:
            return
        self.versions = versions
        self._keep = Kept()
        entries = self.table.all_entries()
        if self.code.table.match_type != "exact":
            entries.sort(key=self.table._rank)
        records = [self._record(entry.target, entry) for entry in entries]
        default = self._record(self.table.default, None)
        self.row[...] = 0
        self.row["default"] = default
        if any(part.kind == "range" for part in self.code.table.key):
            self._rows(entries, records)
        else:
            self._hash_tables(entries, records)

    @property
    def _profile(self) -> ActionProfile:
        """Its action profile, which there is if an entry names a member or a group."""
        assert self.table.profile is not None
        return self.table.profile

    # Records

    def _record(self, target: Target | None, entry: Entry | None) -> int:
        """The address of a new record."""
        record = record_of(v.RECORD_WORDS)
        code = self.code
        if target is None:
            label = code.miss if code.table.by_hit else code.next_default
            record["action"] = record["next"] = label.place
        elif isinstance(target, UseGroup):
            members = [
                self._record(self._profile.members[member].run, entry)
                for member in self._profile.groups[target.group].choices()
            ]
            record["action"] = record["next"] = code.end.place
            record["n_choices"] = len(members)
            record["choices"] = self._keep(members, np.uint64)
        else:
            run = self._profile.members[target.member].run if isinstance(target, UseMember) else target
            self._run(record, run, entry is not None)
        if entry is not None:
            record["counter"] = self.table.counters.ctypes.data + 16 * entry.index
            record["last_hit"] = self.table.last_hit_us.ctypes.data + 8 * entry.index
            record["index"] = entry.index
        return self._keep(record)

    def _run(self, record: np.ndarray, run: RunAction, is_hit: bool) -> None:
        code = self.code
        record["action"] = self.lowered.actions_at[run.action].place
        args: list[int] = []
        for param, value in zip(self.program.actions[run.action].params, run.args, strict=True):
            args += to_limbs(value & mask(param.width), limbs(param.width))
        record["args"] = self._keep(args, np.uint64)
        if code.table.by_hit:
            label = code.hit if is_hit else code.miss
        else:
            label = code.next_of_action.get(run.action, code.next_default)
        record["next"] = label.place

    # Keys

    def _match(self, entry: Entry) -> list[tuple[bool, int, list[int], list[int]]]:
        """Of each field of an entry: whether it is a range, limbs, value, and mask or upper end."""
        fields = []
        for param, width, n in zip(entry.match, self.table.widths, self.code.key_limbs, strict=True):
            if param.kind == "range":
                fields.append((True, n, to_limbs(param.value, n), to_limbs(param.extra, n)))
                continue
            covered = mask(64 * n)
            if param.kind == "ternary":
                covered = param.extra
            elif param.kind == "lpm":
                covered = prefix_mask(width, param.extra)
            fields.append((False, n, to_limbs(param.value & covered, n), to_limbs(covered, n)))
        return fields

    def _hash_tables(self, entries: list[Entry], records: list[int]) -> None:
        groups: dict[tuple[int, ...], dict[tuple[int, ...], tuple[int, int]]] = {}
        for rank, (entry, record) in enumerate(zip(entries, records, strict=True)):
            parts = self._match(entry)
            value = tuple(limb for part in parts for limb in part[2])
            cover = tuple(limb for part in parts for limb in part[3])
            groups.setdefault(cover, {}).setdefault(value, (rank, record))
        words: list[int] = []
        for cover, entries_of_mask in groups.items():  # in the order of their best entries
            size = 8
            while size < 2 * len(entries_of_mask):
                size *= 2
            slots = self._slots(entries_of_mask, size, len(cover))
            first = next(iter(entries_of_mask.values()))[0]
            words += [self._keep(list(cover), np.uint64), self._keep(slots), size - 1, first]
        self.row["groups"] = self._keep(words, np.uint64)
        self.row["n_groups"] = len(groups)

    @staticmethod
    def _slots(entries: dict[tuple[int, ...], tuple[int, int]], size: int, n: int) -> np.ndarray:
        slots = np.zeros((size, 2 + n), dtype=np.uint64)
        used = bytearray(size)
        for value, (rank, record) in entries.items():
            at = hash_limbs(list(value)) & (size - 1)
            while used[at]:
                at = (at + 1) & (size - 1)
            used[at] = 1
            slots[at] = np.array((rank + 1, record, *value), dtype=np.uint64)
        return slots

    def _rows(self, entries: list[Entry], records: list[int]) -> None:
        words: list[int] = []
        for entry, record in zip(entries, records, strict=True):
            row = [0, record, len(entry.match)]
            for is_range, n, value, extra in self._match(entry):
                row += [int(is_range), n, *value, *extra]
            row[0] = 8 * len(row)
            words += row
        self.row["rows"] = self._keep(words, np.uint64)
        self.row["n_rows"] = len(entries)
