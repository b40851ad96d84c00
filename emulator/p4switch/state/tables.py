"""Match-action tables: their entries, default entry, direct counters and meters, time-outs, and the lookup.

Each new entry gets the smallest free index; per-entry numbers are NumPy arrays over the indices. An entry's handle is
its index with a version that grows when the index is reused.

Matching is BMv2's, which compares keys byte by byte: a field that is not a multiple of 8 bits wide is padded on the
left, and a prefix length counts the padding. Among ternary or range entries the lowest priority number wins, and among
equal ones the lowest index. Priorities mean nothing in exact and lpm tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np

from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import (
    ActionOwner,
    ActionProfile,
    RunAction,
    Target,
    UseGroup,
    UseMember,
    table_error,
)  # fmt: skip
from emulator.p4switch.state.arrays import CounterArray, MeterArray
from emulator.p4switch.state.handles import Handled, changing, entry_handle, index_of, locked, version_of
from emulator.p4switch.values import mask, n_bytes


@dataclass
class Entry:
    """One entry. `match` is in the order of the table's key, its values cut to the fields' widths. `priority` is -1 in
    exact and lpm tables."""

    handle: int
    match: tuple[ir.MatchParam, ...]
    priority: int
    target: Target

    @property
    def index(self) -> int:
        return index_of(self.handle)


def prefix_mask(width: int, length: int) -> int:
    """The bits that a prefix covers, of a field that is padded on the left to whole bytes (see above)."""
    covered = max(length - (8 * n_bytes(width) - width), 0)
    return mask(covered) << (width - covered)


def matches(param: ir.MatchParam, width: int, value: int) -> bool:
    """Whether a field's value matches one field of an entry's key."""
    if param.kind == "ternary":
        return value & param.extra == param.value
    if param.kind == "range":
        return param.value <= value <= param.extra
    if param.kind == "lpm":
        covered = prefix_mask(width, param.extra)
        return value & covered == param.value & covered
    return value == param.value


class MatchTable(ActionOwner):
    """`entries`: index → Entry. `version` grows with each change of entries or default.

    Arrays over indices: `counters` (packets, bytes; uint64), `last_hit_us` and `timeout_us` (int64); and those that the
    program has of its `direct` "counter" and "meter", which is also `direct_meter`."""

    def __init__(
        self,
        table: ir.Table,
        program: ir.Program,
        lock: RLock,
        profile: ActionProfile | None = None,
        direct_meter: MeterArray | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(program, table.actions, f"table {table.name}")
        self.table = table
        self.name = table.name
        self.lock = lock
        self.profile = profile
        self.direct_meter = direct_meter
        self.clock = clock
        self.widths = tuple(8 if field.kind == "valid" else field.width for field in table.key)
        self.size = max(table.max_size, 0) if table.key else 0
        self._counter = CounterArray(ir.CounterArray(table.name, table.id, self.size), lock)
        self.counters = self._counter.data
        direct = {"counter": self._counter if table.with_counters else None, "meter": direct_meter}
        self.direct = {sort: cells for sort, cells in direct.items() if cells is not None}
        self.last_hit_us = np.zeros(self.size, dtype=np.int64)
        self.timeout_us = np.zeros(self.size, dtype=np.int64)
        self.version = 0
        self.is_immutable = False
        self._clear_entries()
        self.initial_default = RunAction(table.default.action, table.default.args) if table.default else None
        self.default: Target | None = self.initial_default
        for entry in table.entries or ():
            self.add(entry.match, RunAction(entry.action, entry.args), entry.priority)
        self.is_immutable = table.entries is not None

    def _clear_entries(self) -> None:
        self.entries: Handled[Entry] = Handled()
        self._versions: dict[int, int] = {}
        self._by_key: dict[tuple, Entry] = {}
        self._by_rank: tuple[int, list[Entry]] = (-1, [])  # at a version of the table

    # Lookup

    @property
    def has_priorities(self) -> bool:
        """Whether entries are chosen by priority."""
        return self.table.match_type in ("ternary", "range")

    def lookup(self, values: Sequence[int]) -> Entry | None:
        """The entry that matches the key's values (in the order of the key, static masks applied), or None."""
        if self.table.match_type == "exact":
            return self._by_key.get(tuple(values))
        if self._by_rank[0] != self.version:
            self._by_rank = self.version, sorted(self.entries.values(), key=self._rank)
        for entry in self._by_rank[1]:
            if all(map(matches, entry.match, self.widths, values)):
                return entry
        return None

    def _rank(self, entry: Entry) -> tuple[int, int]:
        """The order in which entries are tried."""
        if self.has_priorities:
            return entry.priority, entry.index
        return -sum(param.extra for param in entry.match if param.kind == "lpm"), entry.index

    def hit(self, entry: Entry, n_bytes_: int) -> None:
        """Count a packet that matched."""
        self._counter.count(entry.index, n_bytes_)
        self.last_hit_us[entry.index] = self.clock()

    # Keys of entries

    def _normal(self, match: Sequence[ir.MatchParam], priority: int) -> tuple[tuple[ir.MatchParam, ...], int, tuple]:
        """The key and priority that an entry stores, and the identity that no two entries may share."""
        key = self.table.key
        if not key:
            raise table_error("NO_TABLE_KEY", f"table {self.name} has no key")
        if len(match) != len(key):
            raise table_error("BAD_MATCH_KEY", f"table {self.name} matches {len(key)} fields, not {len(match)}")
        stored = tuple(
            self._normal_param(param, field, width) for param, field, width in zip(match, key, self.widths, strict=True)
        )
        if self.has_priorities:
            return stored, priority, (priority, *stored)
        if self.table.match_type == "exact":
            return stored, -1, tuple(param.value for param in stored)
        key_parts = tuple(
            (param.value & prefix_mask(width, param.extra), param.extra) if param.kind == "lpm" else param.value
            for param, width in zip(stored, self.widths, strict=True)
        )
        return stored, -1, key_parts

    def _normal_param(self, param: ir.MatchParam, field: ir.KeyField, width: int) -> ir.MatchParam:
        def bad(problem: str) -> Exception:
            return table_error("BAD_MATCH_KEY", f"table {self.name}, field {field.name}: {problem}")

        if param.kind != field.kind:
            raise bad(f"matches by {field.kind}, not {param.kind}")
        limit = mask(8 * n_bytes(width))
        if not 0 <= param.value <= limit:
            raise bad(f"{param.value:#x} does not fit {n_bytes(width)} bytes")
        value, extra = param.value & mask(width), param.extra
        if param.kind == "lpm" and not 0 <= extra <= 8 * n_bytes(width):
            raise bad(f"a prefix of {extra} bits, but the field has {width}")
        if param.kind in ("ternary", "range") and not 0 <= extra <= limit:
            raise bad(f"{extra:#x} does not fit {n_bytes(width)} bytes")
        if param.kind == "range" and value > extra:
            raise bad(f"the range {value:#x} to {extra:#x} is empty")
        if param.kind == "ternary":
            value &= extra
        if param.kind == "lpm" and self.has_priorities:  # stored as a mask, to which the value is cut
            value &= prefix_mask(width, extra)
        if field.mask is not None:
            value &= field.mask
        return ir.MatchParam(param.kind, value, extra)

    # Targets

    def _check_target(self, target: Target) -> None:
        kinds = {ir.SIMPLE: RunAction, ir.INDIRECT: UseMember, ir.INDIRECT_WS: UseMember | UseGroup}
        if not isinstance(target, kinds[self.table.type]):
            raise table_error("WRONG_TABLE_TYPE", f"table {self.name} is {self.table.type}")
        if isinstance(target, RunAction):
            self.check_action(target)
        elif isinstance(target, UseMember):
            self.profile.member(target.member)
        elif not self.profile.group(target.group).members:
            raise table_error("EMPTY_GRP", f"group {target.group} of {self.profile.name} has no members")

    def _use(self, target: Target | None, by: int = 1) -> None:
        if self.profile is not None:
            self.profile.use(target, by)

    # Entries

    def check_mutable(self) -> None:
        """Raises IMMUTABLE_TABLE_ENTRIES for a table of const entries."""
        if self.is_immutable:
            raise table_error("IMMUTABLE_TABLE_ENTRIES", f"the entries of table {self.name} are const")

    def _index(self, handle: int) -> int:
        """The index in a handle. Raises INVALID_HANDLE if there is no such entry; the version is not checked."""
        index = index_of(handle)
        if index not in self.entries:
            raise table_error("INVALID_HANDLE", f"table {self.name} has no entry {handle}")
        return index

    @locked
    def entry(self, handle: int) -> Entry:
        """The entry with a handle. Raises INVALID_HANDLE or EXPIRED_HANDLE."""
        entry = self.entries[self._index(handle)]
        if version_of(handle) != version_of(entry.handle):
            raise table_error("EXPIRED_HANDLE", f"entry {handle} of table {self.name} was deleted")
        return entry

    @changing
    def add(self, match: Sequence[ir.MatchParam], target: Target, priority: int = 0) -> int:
        """A new entry; returns its handle."""
        self.check_mutable()
        self._check_target(target)
        stored, priority, key = self._normal(match, priority)
        if key in self._by_key:
            raise table_error("DUPLICATE_ENTRY", f"table {self.name} already has an entry with this key")
        if len(self.entries) >= self.size:
            raise table_error("TABLE_FULL", f"table {self.name} has no room for more than {self.size} entries")
        entry = Entry(0, stored, priority, target)
        index = self.entries.add(entry)
        entry.handle = entry_handle(self._versions.get(index, 0), index)
        self._start(entry, key)
        return entry.handle

    def _start(self, entry: Entry, key: tuple) -> None:
        """Have a new entry looked up, with counters of its own."""
        self._by_key[key] = entry
        self.counters[entry.index] = 0
        self.timeout_us[entry.index] = 0
        self.last_hit_us[entry.index] = self.clock()
        self._use(entry.target)

    @changing
    def restore(self, entries: Sequence[tuple[int, Sequence[ir.MatchParam], Target, int]]) -> None:
        """Replace all entries by these: (handle, match, target, priority). Raises as `add` does."""
        self.clear()
        for handle, match, target, priority in entries:
            self._check_target(target)
            stored, priority, key = self._normal(match, priority)
            entry = Entry(handle, stored, priority, target)
            if key in self._by_key or entry.index >= self.size:
                raise table_error("ERROR", f"table {self.name} can't have entry {handle}")
            self._versions[entry.index] = version_of(handle)
            self._start(entry, key)
        self.entries.restore({entry.index: entry for entry in self._by_key.values()})

    @changing
    def delete(self, handle: int) -> None:
        self.check_mutable()
        entry = self.entry(handle)
        del self._by_key[self._normal(entry.match, entry.priority)[2]]
        self.entries.release(entry.index)
        self._versions[entry.index] = (version_of(handle) + 1) & 0xFF
        self._use(entry.target, -1)

    @changing
    def modify(self, handle: int, target: Target) -> None:
        self.check_mutable()
        entry = self.entry(handle)
        self._check_target(target)
        self._use(entry.target, -1)
        self._use(target)
        entry.target = target

    @locked
    def all_entries(self) -> list[Entry]:
        """All entries by index."""
        return [self.entries[index] for index in sorted(self.entries)]

    @locked
    def entry_from_key(self, match: Sequence[ir.MatchParam], priority: int = 0) -> Entry:
        """The entry with exactly this key (and priority, where there are priorities). Raises BAD_MATCH_KEY."""
        key = self._normal(match, priority)[2]
        if key not in self._by_key:
            raise table_error("BAD_MATCH_KEY", f"table {self.name} has no entry with this key")
        return self._by_key[key]

    @changing
    def clear(self, reset_default: bool = False) -> None:
        """Remove all entries, const ones too as BMv2 does, and reset the default on request."""
        for entry in self.entries.values():
            self._use(entry.target, -1)
        self._clear_entries()
        if reset_default:
            self.reset_default()

    def __len__(self) -> int:
        return len(self.entries)

    # Default entry

    @changing
    def set_default(self, target: Target) -> None:
        """Change the target of a miss."""
        const = self.table.default
        if const is not None and const.const_entry:
            raise table_error("DEFAULT_ENTRY_IS_CONST", f"the default entry of table {self.name} is const")
        if const is not None and const.const_action and getattr(target, "action", None) != const.action:
            raise table_error("DEFAULT_ACTION_IS_CONST", f"the default action of table {self.name} is const")
        self._check_target(target)
        self._use(self.default, -1)
        self._use(target)
        self.default = target

    @changing
    def reset_default(self) -> None:
        """Reset the default to the program's."""
        self._use(self.default, -1)
        self.default = self.initial_default
        self._use(self.default)

    @locked
    def get_default(self) -> Target:
        """The target of a miss. Raises NO_DEFAULT_ENTRY."""
        if self.default is None:
            raise table_error("NO_DEFAULT_ENTRY", f"table {self.name} has no default entry")
        return self.default

    # Counters, meters, time-outs

    def cells(self, sort: str) -> Any:
        """The cells, by index, of the direct "counter" or "meter". Raises COUNTERS_DISABLED or METERS_DISABLED."""
        if sort not in self.direct:
            raise table_error(f"{sort.upper()}S_DISABLED", f"table {self.name} has no direct {sort}")
        return self.direct[sort]

    @locked
    def read_counter(self, handle: int) -> tuple[int, int]:
        """(packets, bytes) that hit an entry."""
        return self.cells("counter").read(self._index(handle))

    @locked
    def write_counter(self, handle: int, packets: int, n_bytes_: int) -> None:
        self.cells("counter").write(self._index(handle), packets, n_bytes_)

    @locked
    def reset_counters(self) -> None:
        self.cells("counter").reset()

    @locked
    def set_meter_rates(self, handle: int, rates: Sequence[tuple[float, int]]) -> None:
        """Set an entry's direct meter; see MeterArray.set_rates."""
        self.cells("meter").set_rates(self._index(handle), rates)

    @locked
    def get_meter_rates(self, handle: int) -> list[tuple[float, int]]:
        return self.cells("meter").get_rates(self._index(handle))

    @locked
    def set_timeout(self, handle: int, timeout_ms: int) -> None:
        """Set how long an entry may go without a hit before `expired` reports it; 0: for any time."""
        if not self.table.support_timeout:
            raise table_error("AGEING_DISABLED", f"the entries of table {self.name} do not age")
        index = self._index(handle)
        self.timeout_us[index] = 1000 * timeout_ms
        self.last_hit_us[index] = self.clock()

    @locked
    def life_ms(self, handle: int) -> tuple[int, int] | None:
        """(time-out, time since the last hit) of an entry in ms, or None in a table without ageing."""
        if not self.table.support_timeout:
            return None
        index = self._index(handle)
        since = self.clock() - int(self.last_hit_us[index])
        return int(self.timeout_us[index]) // 1000, since // 1000

    @locked
    def expired(self) -> list[int]:
        """Handles of the entries whose time-out is over."""
        now = self.clock()
        return [
            entry.handle
            for entry in self.all_entries()
            if 0 < self.timeout_us[entry.index] <= now - self.last_hit_us[entry.index]
        ]
