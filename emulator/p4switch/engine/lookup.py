"""Table entries in the VM's format, updated incrementally as the control plane changes the table: a record for each
entry, each member and each group, and one hash table of the best entry for each mask and key (state.tuple_space)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from emulator.p4switch.engine.layout import limbs
from emulator.p4switch.engine.lower import Lowered
from emulator.p4switch.engine.pipelines import TableCode
from emulator.p4switch.engine.records import M64, KeepAlive, Records, Slots, seed_of, to_limbs
from emulator.p4switch.engine.vm import tables as v
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import RunAction, Target, UseGroup, UseMember
from emulator.p4switch.state.handles import index_of
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import Entry, MatchTable
from emulator.p4switch.state.tuple_space import Key
from emulator.p4switch.values import mask

_OWN_TARGET = 8 * len(v.ENTRY_WORDS)
"""Offset of an entry's own target in its record."""
_TARGET_BYTES = 8 * len(v.TARGET_WORDS)
_NEXT = int(v.ENTRY.next)
_GROUP_WORDS = len(v.GROUP_WORDS)


class _Group:
    """Entries with one mask: number of the mask, their lowest rank, and the mask's limbs."""

    def __init__(self, number: int, first: int, cover: list[int]) -> None:
        self.number, self.first = number, first
        self.cover = np.array(cover or [0], dtype=np.uint64)
        self.mask: int = self.cover.ctypes.data

    @property
    def order(self) -> tuple[int, int]:
        return self.first, self.number


class _Targets:
    """Targets of one table in the VM's format, for packets that hit (`is_hit`) or miss."""

    def __init__(self, program: ir.Program, lowered: Lowered, code: TableCode, is_hit: bool) -> None:
        self.program, self.lowered, self.code, self.is_hit = program, lowered, code, is_hit
        sizes = [sum(limbs(param.width) for param in program.actions[a].params) for a in code.next_of_action]
        self.n_words = len(v.TARGET_WORDS) + max(sizes, default=0)
        has_members = code.table.action_profile is not None
        self.members, self.groups = Records(self.n_words, has_directory=has_members), Records(self.n_words)

    def run(self, run: RunAction, at: int) -> list[int]:
        """Words of a target at address `at` that runs an action."""
        code = self.code
        if code.table.by_hit:
            label = code.hit if self.is_hit else code.miss
        else:
            label = code.next_of_action.get(run.action, code.next_default)
        words = [self.lowered.actions_at[run.action].place, at + _TARGET_BYTES, label.place, 0, 0, 0]
        for param, value in zip(self.program.actions[run.action].params, run.args, strict=True):
            words += to_limbs(value & mask(param.width), limbs(param.width))
        return words + [0] * (self.n_words - len(words))

    def group(self, eligible: array[int]) -> list[int]:
        """Words of a group's target; an empty group ends the pipeline."""
        end = self.code.end.place
        words = [end, 0, end, len(eligible), eligible.buffer_info()[0], self.members.directory.ctypes.data]
        return words + [0] * (self.n_words - len(words))

    def nothing(self) -> list[int]:
        """Words of a miss without a default action."""
        label = self.code.miss if self.code.table.by_hit else self.code.next_default
        return [label.place, 0, label.place] + [0] * (self.n_words - 3)


class TableImage:
    """The entries of one table. `row` is the table's row in the directory."""

    def __init__(self, state: State, lowered: Lowered, code: TableCode, row: np.ndarray) -> None:
        self.code = code
        self.table: MatchTable = state.tables[code.table.index]
        self.row = row
        self._counters, self._last_hits = self.table.counters.ctypes.data, self.table.last_hit_us.ctypes.data
        self._keep = KeepAlive()
        self._hits, self._misses = (_Targets(state.program, lowered, code, is_hit) for is_hit in (True, False))
        self._default = Records(self._hits.n_words)
        self._lay_out()
        self._follow_profile()
        self.default_changed()
        for entry in self.table.entries.values():
            self._write(entry)
        for entry in self.table.entries.values():
            self._link(entry)
        self.table.observers.append(self)

    def _lay_out(self) -> None:
        """Compute the layout of an entry's record: the words of ENTRY, its own target, its masked key, and the bounds
        of its ranges."""
        key_at = _OWN_TARGET + 8 * self._hits.n_words
        n_limbs, ranges, at = sum(self.code.key_limbs), [], 0
        for field, n in zip(self.code.table.key, self.code.key_limbs, strict=True):
            if field.kind == "range":
                ranges += [at, n]
            at += 8 * n
        self._key_at, bounds_at = key_at, key_at + 8 * n_limbs
        self._entries = Records(bounds_at // 8 + 2 * sum(ranges[1::2]))
        self._slots = Slots(self.row, n_limbs, key_at, self.table.size)
        self._has_ranges = bool(ranges)
        self._set("ranges", self._keep(ranges, np.int64))
        self._set("n_ranges", len(ranges) // 2)
        self._set("bounds_at", bounds_at)
        self._forget_groups()

    def _set(self, word: str, value: int) -> None:
        self.row[v.TABLE_WORDS.index(word)] = value

    # Targets

    def _follow_profile(self) -> None:
        profile = self.table.profile
        if profile is not None:
            for handle in profile.members:
                self.member_changed(handle)
            for handle in profile.groups:
                self.group_changed(handle)
            profile.observers.append(self)

    def member_changed(self, handle: int) -> None:
        assert self.table.profile is not None
        run = self.table.profile.members[handle].run
        for targets in (self._hits, self._misses):
            targets.members.write(handle, targets.run(run, targets.members.address(handle)))

    def group_changed(self, handle: int) -> None:
        assert self.table.profile is not None
        eligible = self.table.profile.groups[handle].eligible
        for targets in (self._hits, self._misses):
            targets.groups.write(handle, targets.group(eligible))

    def default_changed(self) -> None:
        own = self._default.address(0)
        address, words = self._target(self._misses, self.table.default, own)
        self._default.write(0, words)
        self._set("default", address)

    @staticmethod
    def _target(targets: _Targets, target: Target | None, own: int) -> tuple[int, list[int]]:
        """Address of a target, and the words of an own target at address `own`; members and groups are stored
        elsewhere."""
        if isinstance(target, RunAction):
            return own, targets.run(target, own)
        if isinstance(target, UseMember):
            return targets.members.address(target.member), targets.nothing()
        if isinstance(target, UseGroup):
            return targets.groups.address(target.group), targets.nothing()
        return own, targets.nothing()

    # Entries

    def _write(self, entry: Entry) -> None:
        """Write an entry's record, except the link to the next entry of its key."""
        index = entry.index
        target, words = self._target(self._hits, entry.target, self._entries.address(index) + _OWN_TARGET)
        counter, last_hit = self._counters + 16 * index, self._last_hits + 8 * index
        head = [target, 0, entry.rank & M64, counter, last_hit, index]
        self._entries.write(index, [*head, *words, *self._limbs(entry.value), *self._bounds(entry)])

    def _limbs(self, values: Iterable[int]) -> list[int]:
        """The limbs of a key or mask."""
        return [limb for value, n in zip(values, self.code.key_limbs, strict=True) for limb in to_limbs(value, n)]

    def _bounds(self, entry: Entry) -> list[int]:
        bounds: list[int] = []
        if not self._has_ranges:
            return bounds
        for param, n in zip(entry.match, self.code.key_limbs, strict=True):
            if param.kind == "range":
                bounds += to_limbs(param.value, n) + to_limbs(param.extra, n)
        return bounds

    def _link(self, entry: Entry) -> None:
        """Insert an entry into the lookup: after its predecessor in its bucket, or in the hash table."""
        bucket = self.table.space.bucket(entry.cover, entry.value)
        at = bisect_left(bucket, entry.rank)
        if at + 1 < len(bucket):
            self._entries.write_some(entry.index, _NEXT, self._address(bucket, at + 1))
        self._lead(bucket, at, entry, self._entries.address(entry.index))

    def _address(self, bucket: Sequence[int], at: int) -> int:
        """Address of the entry at a position of a bucket; 0 beyond the last."""
        return self._entries.address(index_of(bucket[at])) if at < len(bucket) else 0

    def _lead(self, bucket: Sequence[int], at: int, entry: Entry, to: int) -> None:
        """Set the link to an entry, at a position of its bucket, to an address."""
        if at:
            self._entries.write_some(index_of(bucket[at - 1]), _NEXT, to)
        else:
            group = self._group(entry.cover)
            self._slots.link(self._entries.address(entry.index) + self._key_at, group.mask, group.number, to)
        self._order(entry.cover)

    def added(self, entry: Entry) -> None:
        self._write(entry)
        self._link(entry)

    def removed(self, entry: Entry) -> None:
        bucket = self.table.space.bucket(entry.cover, entry.value)
        at = bisect_left(bucket, entry.rank)
        self._lead(bucket, at, entry, self._address(bucket, at))

    def target_changed(self, entry: Entry) -> None:
        own = self._entries.address(entry.index) + _OWN_TARGET
        target, words = self._target(self._hits, entry.target, own)
        self._entries.write_some(entry.index, int(v.ENTRY.target), target)
        self._entries.write_some(entry.index, _OWN_TARGET, *words)

    def cleared(self) -> None:
        self._slots.clear()
        self._forget_groups()

    # Groups

    def _forget_groups(self) -> None:
        self._groups: dict[Key, _Group] = {}
        self._orders: list[tuple[int, int]] = []
        self._group_words = array("q")
        self._show_groups()

    def _show_groups(self) -> None:
        self._set("groups", self._group_words.buffer_info()[0])
        self._set("n_groups", len(self._orders))

    def _group(self, cover: Key) -> _Group:
        if cover not in self._groups:
            group = self.table.space.group(cover)
            assert group is not None
            self._groups[cover] = _Group(group.number, group.first, self._limbs(cover))
            self._insert(self._groups[cover])
        return self._groups[cover]

    def _order(self, cover: Key) -> None:
        """Update the group order after a change of a group's lowest rank, or its removal."""
        known, group = self._groups[cover], self.table.space.group(cover)
        if group is not None and group.first == known.first:
            return
        at = bisect_left(self._orders, known.order)
        del self._orders[at], self._group_words[_GROUP_WORDS * at : _GROUP_WORDS * (at + 1)]
        if group is None:
            del self._groups[cover]
            self._show_groups()
        else:
            known.first = group.first
            self._insert(known)

    def _insert(self, group: _Group) -> None:
        at = bisect_left(self._orders, group.order)
        self._orders.insert(at, group.order)
        words = array("q", [group.mask, seed_of(group.number), group.first])
        self._group_words[_GROUP_WORDS * at : _GROUP_WORDS * at] = words
        self._show_groups()
