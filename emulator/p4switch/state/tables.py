"""Match-action tables: their entries, default entry, direct counters and meters, timeouts, and the lookup.

Each new entry gets the smallest free index; per-entry numbers are NumPy arrays over the indices. An entry's handle is
its index with a version that is incremented when the index is reused.

Matching is BMv2's, which compares keys byte by byte: a field whose width is not a multiple of 8 bits is padded on the
left, and a prefix length includes the padding. Among ternary or range entries the lowest priority number wins, and
among equal ones the lowest index. Priorities are ignored in exact and lpm tables. The cost of a change does not depend
on the table's size.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Protocol

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
from emulator.p4switch.state.handles import INDEX_BITS, HandleTable, entry_handle, index_of, locked, version_of
from emulator.p4switch.state.tuple_space import Key, TupleSpace
from emulator.p4switch.values import mask, n_bytes

_TARGETS: dict[str, tuple[type, ...]] = {
    ir.SIMPLE: (RunAction,),
    ir.INDIRECT: (UseMember,),
    ir.INDIRECT_WS: (UseMember, UseGroup),
}
"""Type of a table → allowed targets of its entries."""
MAX_PRIORITY = (1 << 31) - 1
"""Maximum priority, as Thrift's i32."""


@dataclass(slots=True)
class Entry:
    """One entry. `match` is in the order of the table's key, with values truncated to the fields' widths. `priority` is
    -1 in exact and lpm tables. `key`: the unique identity of the entry; `index`, `cover`, `value` and `rank` as in
    TupleSpace."""

    handle: int
    match: tuple[ir.MatchParam, ...]
    priority: int
    target: Target
    key: Hashable
    index: int
    cover: Key
    value: Key
    rank: int


def prefix_mask(width: int, length: int) -> int:
    """The bits covered by a prefix of a field that is padded on the left to whole bytes (see the
    module's docstring)."""
    covered = max(length - (8 * n_bytes(width) - width), 0)
    return mask(covered) << (width - covered)


def _cover(param: ir.MatchParam, width: int) -> int:
    """The bits of a field that an entry compares; none for a range, which is checked when the rest matches."""
    if param.kind == "ternary":
        return param.extra & mask(width)
    if param.kind == "lpm":
        return prefix_mask(width, param.extra)
    return 0 if param.kind == "range" else mask(width)


class TableObserver(Protocol):
    """An engine that stores the table in another format. Called under the table's lock, after a change."""

    def added(self, entry: Entry) -> None: ...

    def removed(self, entry: Entry) -> None: ...

    def target_changed(self, entry: Entry) -> None: ...

    def default_changed(self) -> None: ...

    def cleared(self) -> None:
        """All entries were removed."""


class MatchTable(ActionOwner):
    """A match-action table. `entries`: index → Entry; `space`: their lookup structure; `observers` are called after
    each change of entries or default.

    Arrays over indices: `counters` (packets, bytes; uint64), `last_hit_us` and `timeout_us` (int64); and, if the
    program has them, `direct_counter` and `direct_meter`."""

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
        self.direct_counter = self._counter if table.with_counters else None
        self.last_hit_us = np.zeros(self.size, dtype=np.int64)
        self.timeout_us = np.zeros(self.size, dtype=np.int64)
        self.observers: list[TableObserver] = []
        self._has_ranges = any(field.kind == "range" for field in table.key)
        self.is_immutable = False
        self._clear_entries()
        self.initial_default = RunAction(table.default.action, table.default.args) if table.default else None
        self.default: Target | None = self.initial_default
        for entry in table.entries or ():
            self.add(entry.match, RunAction(entry.action, entry.args), entry.priority)
        self.is_immutable = table.entries is not None

    def _clear_entries(self) -> None:
        self.entries: HandleTable[Entry] = HandleTable()
        self._versions: dict[int, int] = {}
        self._by_key: dict[Hashable, Entry] = {}
        self.space = TupleSpace()

    # Lookup

    @property
    def has_priorities(self) -> bool:
        """Whether entries are selected by priority."""
        return self.table.match_type in ("ternary", "range")

    def lookup(self, values: Sequence[int]) -> Entry | None:
        """The entry that matches the key's values (in the order of the key, static masks applied), or None."""
        fits = partial(self._in_ranges, values) if self._has_ranges else None
        index = self.space.find(values, fits)
        return None if index is None else self.entries[index]

    def _in_ranges(self, values: Sequence[int], index: int) -> bool:
        params = zip(self.entries[index].match, values, strict=True)
        return all(param.value <= value <= param.extra for param, value in params if param.kind == "range")

    def hit(self, entry: Entry, n_bytes_: int) -> None:
        """Count a matching packet."""
        self._counter.count(entry.index, n_bytes_)
        self.last_hit_us[entry.index] = self.clock()

    # Keys of entries

    def _entry(self, handle: int, match: Sequence[ir.MatchParam], priority: int, target: Target) -> Entry:
        """Create an entry in its stored format. Raises NO_TABLE_KEY, BAD_MATCH_KEY, or ERROR for an
        invalid priority."""
        fields = self.table.key
        if not fields:
            raise table_error("NO_TABLE_KEY", f"table {self.name} has no key")
        if len(match) != len(fields):
            raise table_error("BAD_MATCH_KEY", f"table {self.name} matches {len(fields)} fields, not {len(match)}")
        stored = tuple(map(self._stored, match, fields, self.widths))
        covers = list(map(_cover, stored, self.widths))
        cover, value = tuple(covers), tuple([param.value & cover for param, cover in zip(stored, covers, strict=True)])
        key: Hashable
        if self.has_priorities:
            if not -MAX_PRIORITY - 1 <= priority <= MAX_PRIORITY:
                raise table_error("ERROR", f"table {self.name}: priority {priority} does not fit 32 bits")
            level, key = priority, (priority, *stored)
        elif self.table.match_type == "exact":
            priority, level, key = -1, 0, value
        else:  # the longest prefix wins
            lengths = [param.extra for param in stored if param.kind == "lpm"]
            priority, level, key = -1, -sum(lengths), (value, *lengths)
        index = index_of(handle)
        return Entry(handle, stored, priority, target, key, index, cover, value, level << INDEX_BITS | index)

    def _stored(self, param: ir.MatchParam, field: ir.KeyField, width: int) -> ir.MatchParam:
        """A field of a key in its stored format."""

        def bad(problem: str) -> Exception:
            return table_error("BAD_MATCH_KEY", f"table {self.name}, field {field.name}: {problem}")

        kind, value, extra, bits = param.kind, param.value, param.extra, 8 * n_bytes(width)
        if kind != field.kind:
            raise bad(f"matches by {field.kind}, not {kind}")
        if not 0 <= value <= mask(bits):
            raise bad(f"{value:#x} does not fit {n_bytes(width)} bytes")
        value &= mask(width)
        if kind == "lpm" and not 0 <= extra <= bits:
            raise bad(f"a prefix of {extra} bits, but the field has {width}")
        if kind in ("ternary", "range") and not 0 <= extra <= mask(bits):
            raise bad(f"{extra:#x} does not fit {n_bytes(width)} bytes")
        if kind == "range" and value > extra:
            raise bad(f"the range {value:#x} to {extra:#x} is empty")
        if kind == "ternary":
            value &= extra
        if kind == "lpm" and self.has_priorities:  # stored as a mask, which is applied to the value
            value &= prefix_mask(width, extra)
        if field.mask is not None:
            value &= field.mask
        return param if value == param.value else ir.MatchParam(kind, value, extra)

    # Targets

    def _check_target(self, target: Target) -> None:
        if not isinstance(target, _TARGETS[self.table.type]):
            raise table_error("WRONG_TABLE_TYPE", f"table {self.name} is {self.table.type}")
        if isinstance(target, RunAction):
            self.check_action(target)
            return
        assert self.profile is not None  # guaranteed for every indirect table
        if isinstance(target, UseMember):
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

    @locked
    def add(self, match: Sequence[ir.MatchParam], target: Target, priority: int = 0) -> int:
        """Add an entry; returns its handle."""
        self.check_mutable()
        self._check_target(target)
        index = self.entries.next_handle
        entry = self._entry(entry_handle(self._versions.get(index, 0), index), match, priority, target)
        if entry.key in self._by_key:
            raise table_error("DUPLICATE_ENTRY", f"table {self.name} already has an entry with this key")
        if len(self.entries) >= self.size:
            raise table_error("TABLE_FULL", f"table {self.name} is full: it has {self.size} entries")
        self.entries.add(entry)
        self._start(entry)
        self._announce(entry)
        return entry.handle

    def _start(self, entry: Entry) -> None:
        """Register a new entry and reset its counters."""
        self._by_key[entry.key] = entry
        self.counters[entry.index] = 0
        self.timeout_us[entry.index] = 0
        self.last_hit_us[entry.index] = self.clock()
        self._use(entry.target)

    def _announce(self, entry: Entry) -> None:
        """Add a new entry to the lookup and notify observers."""
        self.space.add(entry.cover, entry.value, entry.rank)
        for observer in self.observers:
            observer.added(entry)

    @locked
    def restore(self, entries: Sequence[tuple[int, Sequence[ir.MatchParam], Target, int]]) -> None:
        """Replace all entries by these: (handle, match, target, priority). Raises as `add` does."""
        self.clear()
        for handle, match, target, priority in entries:
            self._check_target(target)
            entry = self._entry(handle, match, priority, target)
            if entry.key in self._by_key or entry.index >= self.size:
                raise table_error("ERROR", f"table {self.name} can't have entry {handle}")
            self._versions[entry.index] = version_of(handle)
            self._start(entry)
        self.entries.restore({entry.index: entry for entry in self._by_key.values()})
        for entry in self.entries.values():
            self._announce(entry)

    @locked
    def delete(self, handle: int) -> None:
        self.check_mutable()
        entry = self.entry(handle)
        del self._by_key[entry.key]
        self.entries.release(entry.index)
        self._versions[entry.index] = (version_of(handle) + 1) & 0xFF
        self._use(entry.target, -1)
        self.timeout_us[entry.index] = 0
        self.space.remove(entry.cover, entry.value, entry.rank)
        for observer in self.observers:
            observer.removed(entry)

    @locked
    def modify(self, handle: int, target: Target) -> None:
        self.check_mutable()
        entry = self.entry(handle)
        self._check_target(target)
        self._use(entry.target, -1)
        self._use(target)
        entry.target = target
        for observer in self.observers:
            observer.target_changed(entry)

    @locked
    def all_entries(self) -> list[Entry]:
        """All entries, ordered by index."""
        return [self.entries[index] for index in sorted(self.entries)]

    @locked
    def entries_of_match(self, match: Sequence[ir.MatchParam], priority: int | None = None) -> list[Entry]:
        """The entries with the same match, of one priority or of any, ordered by index. Raises BAD_MATCH_KEY."""
        sought = self._entry(0, match, priority or 0, RunAction(0))
        bucket = self.space.bucket(sought.cover, sought.value)
        if priority is not None and self.has_priorities:
            first = bisect_left(bucket, sought.rank)
            bucket = bucket[first : bisect_left(bucket, sought.rank + (1 << INDEX_BITS))]
        found = [self.entries[index] for index in sorted(map(index_of, bucket))]
        ranges = [param for param in sought.match if param.kind == "range"]
        return [entry for entry in found if [param for param in entry.match if param.kind == "range"] == ranges]

    @locked
    def entry_from_key(self, match: Sequence[ir.MatchParam], priority: int = 0) -> Entry:
        """The entry with exactly this key (and priority, in tables with priorities). Raises BAD_MATCH_KEY."""
        key = self._entry(0, match, priority, RunAction(0)).key
        if key not in self._by_key:
            raise table_error("BAD_MATCH_KEY", f"table {self.name} has no entry with this key")
        return self._by_key[key]

    @locked
    def clear(self, reset_default: bool = False) -> None:
        """Remove all entries, including const ones as in BMv2, and optionally reset the default."""
        for entry in self.entries.values():
            self._use(entry.target, -1)
        self.timeout_us[: self.entries.end] = 0
        self._clear_entries()
        for observer in self.observers:
            observer.cleared()
        if reset_default:
            self.reset_default()

    def __len__(self) -> int:
        return len(self.entries)

    # Default entry

    @locked
    def set_default(self, target: Target) -> None:
        """Set the target of a miss."""
        const = self.table.default
        if const is not None and const.const_entry:
            raise table_error("DEFAULT_ENTRY_IS_CONST", f"the default entry of table {self.name} is const")
        if const is not None and const.const_action and getattr(target, "action", None) != const.action:
            raise table_error("DEFAULT_ACTION_IS_CONST", f"the default action of table {self.name} is const")
        self._check_target(target)
        self._change_default(target)

    @locked
    def reset_default(self) -> None:
        """Reset the default to the program's."""
        self._change_default(self.initial_default)

    def _change_default(self, target: Target | None) -> None:
        self._use(self.default, -1)
        self._use(target)
        self.default = target
        for observer in self.observers:
            observer.default_changed()

    @locked
    def get_default(self) -> Target:
        """The target of a miss. Raises NO_DEFAULT_ENTRY."""
        if self.default is None:
            raise table_error("NO_DEFAULT_ENTRY", f"table {self.name} has no default entry")
        return self.default

    # Counters, meters, timeouts

    def _counters(self) -> CounterArray:
        if self.direct_counter is None:
            raise table_error("COUNTERS_DISABLED", f"table {self.name} has no direct counter")
        return self.direct_counter

    def _meters(self) -> MeterArray:
        if self.direct_meter is None:
            raise table_error("METERS_DISABLED", f"table {self.name} has no direct meter")
        return self.direct_meter

    @locked
    def read_counter(self, handle: int) -> tuple[int, int]:
        """(packets, bytes) of an entry's hits. Raises COUNTERS_DISABLED."""
        return self._counters().read(self._index(handle))

    @locked
    def write_counter(self, handle: int, packets: int, n_bytes_: int) -> None:
        self._counters().write(self._index(handle), packets, n_bytes_)

    @locked
    def reset_counters(self) -> None:
        self._counters().reset()

    @locked
    def set_meter_rates(self, handle: int, rates: Sequence[tuple[float, int]]) -> None:
        """Set an entry's direct meter; see MeterArray.set_rates. Raises METERS_DISABLED."""
        self._meters().set_rates(self._index(handle), rates)

    @locked
    def get_meter_rates(self, handle: int) -> list[tuple[float, int]]:
        return self._meters().get_rates(self._index(handle))

    @locked
    def set_timeout(self, handle: int, timeout_ms: int) -> None:
        """Set the time without a hit after which `expired` reports an entry; 0: never."""
        if not self.table.support_timeout:
            raise table_error("AGEING_DISABLED", f"the entries of table {self.name} do not age")
        index = self._index(handle)
        self.timeout_us[index] = 1000 * timeout_ms
        self.last_hit_us[index] = self.clock()

    @locked
    def life_ms(self, handle: int) -> tuple[int, int] | None:
        """(timeout, time since the last hit) of an entry in ms, or None in a table without ageing."""
        if not self.table.support_timeout:
            return None
        index = self._index(handle)
        since = self.clock() - int(self.last_hit_us[index])
        return int(self.timeout_us[index]) // 1000, since // 1000

    @locked
    def expired(self) -> dict[int, int]:
        """Handle → time in µs on the clock at which its timeout last expired, for the entries that were not hit within
        it."""
        end = self.entries.end
        timeout, last_hit = self.timeout_us[:end], self.last_hit_us[:end]
        since = self.clock() - last_hit
        over = np.flatnonzero((timeout > 0) & (since >= timeout))
        ran_out = last_hit[over] + since[over] // timeout[over] * timeout[over]
        return {self.entries[index].handle: at for index, at in zip(over.tolist(), ran_out.tolist(), strict=True)}
