"""Table entries (section 9.1) with their direct counters and meters (9.4, 9.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from emulator.bmv2 import ir
from emulator.bmv2.action_profiles import RunAction, Target, UseGroup, UseMember
from emulator.bmv2.p4runtime.actions import run_action, tell_action
from emulator.bmv2.p4runtime.arrays import config_of, counter_data, rates_of, set_data
from emulator.bmv2.p4runtime.p4info import EXACT, LPM, OPTIONAL, RANGE, TERNARY, Info
from emulator.bmv2.p4runtime.profiles import Profiles
from emulator.bmv2.p4runtime.protos import messages
from emulator.bmv2.p4runtime.values import decode, encode, invalid, not_found
from emulator.bmv2.tables import Entry, MatchTable
from emulator.bmv2.values import mask
from switchml.errors import ControlError

INSERT, MODIFY, DELETE = 1, 2, 3
"""Values of Update.Type."""
TOP_PRIORITY = (1 << 31) - 1
"""P4Runtime's highest priority; in BMv2 the lowest number wins, so it becomes 0."""


class Tables:
    """The tables of a program. `profiles` knows members, groups and action sets; what only P4Runtime has of an entry is
    kept here: its metadata and its action set."""

    def __init__(self, info: Info, profiles: Profiles) -> None:
        self.info = info
        self.profiles = profiles
        self._extra: dict[tuple[str, int], Any] = {}

    # Keys

    def _match(self, table: Any, ours: MatchTable, entry: Any) -> tuple[list[ir.MatchParam], int]:
        """(key, BMv2's priority). Fields that are left out match anything (9.1.1)."""
        given = {field.field_id: field for field in entry.match}
        known = {field.id for field in table.match_fields}
        if unknown := given.keys() - known:
            raise invalid(f"table {ours.name} has no match field with id {min(unknown)}")
        if len(given) < len(entry.match):
            raise invalid(f"table {ours.name}: a match field is given twice")
        params = [
            _param(field, key, given.get(field.id)) for field, key in zip(table.match_fields, ours.table.key, strict=True)
        ]
        needs = any(field.match_type in (TERNARY, RANGE, OPTIONAL) for field in table.match_fields)
        if needs != bool(entry.priority):
            raise invalid(f"table {ours.name}: the priority must {'be positive' if needs else 'be 0'}")
        if entry.priority < 0:
            raise invalid(f"table {ours.name}: priority {entry.priority} is negative")
        return params, TOP_PRIORITY - entry.priority if needs else 0

    def _find(self, table: Any, ours: MatchTable, entry: Any) -> Entry:
        try:
            return ours.entry_from_key(*self._match(table, ours, entry))
        except ControlError as error:
            raise not_found(f"table {ours.name} has no such entry") from error

    # Actions

    def _run(self, table: Any, ours: MatchTable, action: Any) -> RunAction:
        return run_action(self.info, table, ours, action)

    def _target(self, table: Any, ours: MatchTable, action: Any) -> Target:
        kind = action.WhichOneof("type")
        if kind == "action":
            return self._run(table, ours, action.action)
        profile = table.implementation_id
        if kind == "action_profile_member_id":
            return UseMember(self.profiles.member(profile, action.action_profile_member_id))
        if kind == "action_profile_group_id":
            return UseGroup(self.profiles.group(profile, action.action_profile_group_id))
        if kind == "action_profile_action_set":
            runs = [(self._run(table, ours, item.action), item.weight) for item in _set_of(action)]
            return self.profiles.one_shot(ours, runs)
        raise invalid(f"table {ours.name}: the entry has no action")

    # Writing

    def write(self, kind: int, entry: Any) -> None:
        """INSERT, MODIFY or DELETE an entry, or MODIFY the default entry."""
        table, ours = self.info.table(entry.table_id)
        if entry.is_default_action:
            self._write_default(kind, table, ours, entry)
        elif kind == INSERT:
            match, priority = self._match(table, ours, entry)
            target = self._target(table, ours, entry.action)
            try:
                handle = ours.add(match, target, priority)
            except ControlError:
                self.profiles.drop(ours, target)
                raise
            self._set_rest(table, ours, handle, entry)
        elif kind == MODIFY:
            found = self._find(table, ours, entry)
            before = found.target
            if entry.HasField("action"):
                target = self._target(table, ours, entry.action)
                ours.modify(found.handle, target)
                self.profiles.drop(ours, before)
            self._set_rest(table, ours, found.handle, entry)
        else:
            found = self._find(table, ours, entry)
            ours.delete(found.handle)
            self.profiles.drop(ours, found.target)
            self._extra.pop((ours.name, found.handle), None)

    def _write_default(self, kind: int, table: Any, ours: MatchTable, entry: Any) -> None:
        if kind != MODIFY:
            raise invalid(f"table {ours.name}: the default entry can only be modified")
        if entry.match or entry.priority:
            raise invalid(f"table {ours.name}: the default entry has no key")
        if entry.HasField("action"):
            ours.set_default(self._target(table, ours, entry.action))
        else:
            ours.reset_default()

    def _set_rest(self, table: Any, ours: MatchTable, handle: int, entry: Any) -> None:
        """What an entry has besides key and action."""
        self._extra[ours.name, handle] = entry
        if table.idle_timeout_behavior:
            ours.set_timeout(handle, entry.idle_timeout_ns // 1_000_000)
        if entry.HasField("counter_data"):
            ours.write_counter(handle, entry.counter_data.packet_count, entry.counter_data.byte_count)
        if self.info.direct("direct_meters", table) is not None:
            if entry.HasField("meter_config"):
                ours.set_meter_rates(handle, rates_of(entry.meter_config))
            elif ours.direct_meter is not None:
                ours.direct_meter.reset_rates(handle & 0xFFFFFF)

    # Reading

    def read(self, wanted: Any) -> Iterator[Any]:
        """The entries that match `wanted`: those of one table (0: of all), with its key, or all if it has none (9.1.4)."""
        for table in self.info.all("tables", wanted.table_id):
            ours = self.info.table(table.preamble.id)[1]
            if wanted.is_default_action:
                if (default := self._default(table, ours)) is not None:
                    yield default
                continue
            found = [self._find(table, ours, wanted)] if wanted.match else ours.all_entries()
            for entry in found:
                told = self._entry(table, ours, entry, wanted)
                if not wanted.priority or told.priority == wanted.priority:
                    yield told

    def _default(self, table: Any, ours: MatchTable) -> Any | None:
        if ours.default is None:
            return None
        told = messages().TableEntry(table_id=table.preamble.id, is_default_action=True)
        self._tell_target(told, table, ours, ours.default)
        return told

    def key_of(self, table: Any, ours: MatchTable, entry: Entry) -> Any:
        """A TableEntry with the key of one of ours."""
        told = messages().TableEntry(table_id=table.preamble.id)
        for field, param in zip(table.match_fields, entry.match, strict=True):
            _tell_param(told.match, field, param)
        if any(field.match_type in (TERNARY, RANGE, OPTIONAL) for field in table.match_fields):
            told.priority = max(TOP_PRIORITY - entry.priority, 1)
        return told

    def _entry(self, table: Any, ours: MatchTable, entry: Entry, wanted: Any) -> Any:
        told = self.key_of(table, ours, entry)
        extra = self._extra.get((ours.name, entry.handle))
        if extra is not None:
            told.metadata, told.controller_metadata = extra.metadata, extra.controller_metadata
            told.idle_timeout_ns = extra.idle_timeout_ns
        if extra is not None and extra.action.WhichOneof("type") == "action_profile_action_set":
            told.action.CopyFrom(extra.action)
        else:
            self._tell_target(told, table, ours, entry.target)
        if wanted.HasField("counter_data") and self.info.direct("direct_counters", table) is not None:
            set_data(told.counter_data, ours.read_counter(entry.handle))
        if wanted.HasField("meter_config") and self.info.direct("direct_meters", table) is not None:
            rates = ours.get_meter_rates(entry.handle)
            if rates:
                told.meter_config.CopyFrom(config_of(rates))
        return told

    def _tell_target(self, told: Any, table: Any, ours: MatchTable, target: Target) -> None:
        if isinstance(target, RunAction):
            tell_action(self.info, told.action.action, target)
        elif isinstance(target, UseMember):
            told.action.action_profile_member_id = self.profiles.member_id(ours, target.member)
        else:
            told.action.action_profile_group_id = self.profiles.group_id(ours, target.group)

    # Direct resources by themselves

    def write_direct(self, kind: int, sort: str, entity: Any) -> None:
        """MODIFY a DirectCounterEntry or DirectMeterEntry."""
        if kind != MODIFY:
            raise invalid("a direct counter or meter can only be modified")
        table, ours = self.info.table(entity.table_entry.table_id)
        handle = self._find(table, ours, entity.table_entry).handle
        if sort == "direct_counter_entry":
            ours.write_counter(handle, entity.data.packet_count, entity.data.byte_count)
        elif entity.HasField("config"):
            ours.set_meter_rates(handle, rates_of(entity.config))
        elif ours.direct_meter is not None:
            ours.direct_meter.reset_rates(handle & 0xFFFFFF)

    def read_direct(self, sort: str, wanted: Any) -> Iterator[Any]:
        """DirectCounterEntries or DirectMeterEntries of the entries that match."""
        lists = {"direct_counter_entry": "direct_counters", "direct_meter_entry": "direct_meters"}
        for table in self.info.all("tables", wanted.table_entry.table_id):
            ours = self.info.table(table.preamble.id)[1]
            if self.info.direct(lists[sort], table) is None:
                if wanted.table_entry.table_id:
                    raise invalid(f"table {ours.name} has none")
                continue
            found = [self._find(table, ours, wanted.table_entry)] if wanted.table_entry.match else ours.all_entries()
            for entry in found:
                key = self.key_of(table, ours, entry)
                if sort == "direct_counter_entry":
                    data = counter_data(ours.read_counter(entry.handle))
                    yield messages().DirectCounterEntry(table_entry=key, data=data)
                else:
                    rates = ours.get_meter_rates(entry.handle)
                    config = config_of(rates) if rates else None
                    yield messages().DirectMeterEntry(table_entry=key, config=config)


def _set_of(action: Any) -> list[Any]:
    return list(action.action_profile_action_set.action_profile_actions)


def _param(field: Any, key: ir.KeyField, given: Any | None) -> ir.MatchParam:
    """One field of a key."""
    width = field.bitwidth or key.width
    what = f"match field {field.name}"
    kind = given.WhichOneof("field_match_type") if given is not None else None
    expected = {EXACT: "exact", LPM: "lpm", TERNARY: "ternary", RANGE: "range", OPTIONAL: "optional"}
    if kind is not None and kind != expected.get(field.match_type):
        raise invalid(f"{what}: {kind} given, but it matches by {expected.get(field.match_type)}")
    if field.match_type == EXACT:
        if given is None:
            raise invalid(f"{what} must be given")
        return ir.MatchParam(key.kind, decode(given.exact.value, width, what))
    if field.match_type == LPM:
        length = given.lpm.prefix_len if given is not None else 0
        value = decode(given.lpm.value, width, what) if given is not None else 0
        if not 0 <= length <= width or (given is not None and length == 0) or value & mask(width - length):
            raise invalid(f"{what}: {value:#x}/{length} is not a prefix (0 is left out, and so are bits behind it)")
        return ir.MatchParam("lpm", value, length)
    if field.match_type == RANGE:
        if given is None:
            return ir.MatchParam("range", 0, mask(width))
        low, high = decode(given.range.low, width, what), decode(given.range.high, width, what)
        if low > high:
            raise invalid(f"{what}: the range {low:#x} to {high:#x} is empty")
        return ir.MatchParam("range", low, high)
    if given is None:
        return ir.MatchParam("ternary", 0, 0)
    if field.match_type == OPTIONAL:
        return ir.MatchParam("ternary", decode(given.optional.value, width, what), mask(width))
    value, cover = decode(given.ternary.value, width, what), decode(given.ternary.mask, width, what)
    if cover == 0 or value & ~cover:
        raise invalid(f"{what}: {value:#x} &&& {cover:#x} is not canonical (section 9.1.1)")
    return ir.MatchParam("ternary", value, cover)


def _tell_param(told: Any, field: Any, param: ir.MatchParam) -> None:
    """The same, written into a list of FieldMatch; nothing for what matches anything."""
    width = field.bitwidth
    if field.match_type == EXACT:
        told.add(field_id=field.id).exact.value = encode(param.value)
    elif field.match_type == LPM:
        if param.extra:
            match = told.add(field_id=field.id).lpm
            match.value, match.prefix_len = encode(param.value), param.extra
    elif field.match_type == RANGE:
        if (param.value, param.extra) != (0, mask(width)):
            match = told.add(field_id=field.id).range
            match.low, match.high = encode(param.value), encode(param.extra)
    elif param.extra:
        if field.match_type == OPTIONAL:
            told.add(field_id=field.id).optional.value = encode(param.value)
        else:
            match = told.add(field_id=field.id).ternary
            match.value, match.mask = encode(param.value), encode(param.extra)

