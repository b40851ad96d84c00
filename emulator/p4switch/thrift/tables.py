"""The calls of service `standard` on tables and action profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import ActionProfile, RunAction, Target, UseGroup, UseMember, table_error
from emulator.p4switch.state.tables import Entry, MatchTable
from emulator.p4switch.values import n_bytes
from switchml.control.thrift.protocol import Record
from switchml.errors import ControlError

if TYPE_CHECKING:
    from emulator.p4switch.device import Device

EXACT, LPM, TERNARY, VALID, RANGE = range(5)
"""Values of MatchKind."""
NO_ENTRY, ACTION_DATA, MEMBER, GROUP = range(4)
"""Values of ActionKind."""

PROFILED = ir.INDIRECT, ir.INDIRECT_WS
"""Types of tables whose entries refer to an action profile."""

_VALUES_OF_KIND = {
    EXACT: ("exact", "exact", ("key",)),
    LPM: ("lpm", "lpm", ("key", "prefix_length")),
    TERNARY: ("ternary", "ternary", ("key", "mask")),
    VALID: ("valid", "valid", ("key",)),
    RANGE: ("range", "range", ("start", "end")),
}
"""MatchKind → kind in the IR, the field of MatchParam that holds it, and its fields."""
_NUMBER_OF_KIND = {kind: number for number, (kind, _, _) in _VALUES_OF_KIND.items()}


def match_from_wire(table: ir.Table, params: Sequence[Record] | None) -> list[ir.MatchParam]:
    """The key of an entry. Raises BAD_MATCH_KEY if a value has the wrong number of bytes."""
    params = params or []
    if table.key and len(params) != len(table.key):
        raise table_error("BAD_MATCH_KEY", f"table {table.name} matches {len(table.key)} fields, not {len(params)}")
    return [_param_from_wire(table, field, param) for field, param in zip(table.key, params, strict=False)]


def _param_from_wire(table: ir.Table, field: ir.KeyField, param: Record) -> ir.MatchParam:
    kind, holder, names = _VALUES_OF_KIND.get(param.type, (None, None, ()))
    value = getattr(param, holder, None) if holder else None
    if value is None or None in (parts := [getattr(value, name) for name in names]):
        raise table_error("BAD_MATCH_KEY", f"table {table.name}, field {field.name}: a part of the value is missing")
    for number, part in enumerate(parts):
        if isinstance(part, bytes):
            if len(part) != n_bytes(field.width):
                raise table_error(
                    "BAD_MATCH_KEY",
                    f"table {table.name}, field {field.name}: {len(part)} bytes, but it has {n_bytes(field.width)}",
                )
            parts[number] = int.from_bytes(part, "big")
    if kind == "lpm" and parts[1] > field.width:  # though a prefix counts the padding: BMv2 refuses it
        raise table_error(
            "BAD_MATCH_KEY",
            f"table {table.name}, field {field.name}: a prefix of {parts[1]} bits, but it has {field.width}",
        )
    return ir.MatchParam(kind, *map(int, parts))


def match_to_wire(table: ir.Table, match: Sequence[ir.MatchParam]) -> list[Record]:
    """The key of an entry as MatchParams."""
    records = []
    for field, param in zip(table.key, match, strict=True):
        number = _NUMBER_OF_KIND[param.kind]
        _, holder, names = _VALUES_OF_KIND[number]
        size = n_bytes(field.width)
        values = [param.value.to_bytes(size, "big"), param.extra]
        if param.kind == "valid":
            values[0] = bool(param.value)
        elif param.kind in ("ternary", "range"):
            values[1] = param.extra.to_bytes(size, "big")
        records.append(Record(type=number, **{holder: Record(**dict(zip(names, values, strict=False)))}))
    return records


def rates_from_wire(rates: Sequence[Record] | None) -> list[tuple[float, int]]:
    """(units/µs, burst in units) of each rate of a meter."""
    return [(rate.units_per_micros or 0.0, rate.burst_size or 0) for rate in rates or []]


def rates_to_wire(rates: Sequence[tuple[float, int]]) -> list[Record]:
    """The reverse of `rates_from_wire`."""
    return [Record(units_per_micros=rate, burst_size=burst) for rate, burst in rates]


def counter_to_wire(packets: int, n_bytes_: int) -> Record:
    """A CounterValue."""
    return Record(packets=packets, bytes=n_bytes_)


def _data_to_wire(run: RunAction) -> list[bytes]:
    """Arguments as BMv2 gives them: without leading zero bytes."""
    return [value.to_bytes(max(n_bytes(value.bit_length()), 1), "big") for value in run.args]


def _run(owner: MatchTable | ActionProfile, action: str, data: Sequence[bytes] | None) -> RunAction:
    return RunAction(owner.action(action), tuple(int.from_bytes(item, "big") for item in data or []))


def _priority(options: Record | None) -> int:
    return options.priority or 0 if options is not None else 0


class TableCalls:
    """Answers calls about the tables of `device`'s program."""

    device: Device

    def _table(self, name: str) -> MatchTable:
        return self.device.state.table(name)

    def _profile(self, name: str) -> ActionProfile:
        return self.device.state.action_profile(name)

    # All tables

    def bm_mt_get_num_entries(self, cxt, table):
        return len(self._table(table))

    def bm_mt_clear_entries(self, cxt, table, reset_default):
        self._table(table).clear(bool(reset_default))

    def bm_mt_set_entry_ttl(self, cxt, table, entry, timeout_ms):
        self._table(table).set_timeout(entry, timeout_ms)

    bm_mt_indirect_set_entry_ttl = bm_mt_set_entry_ttl

    def _of_type(self, name: str, *types: str) -> MatchTable:
        """A table that has one of these types, which BMv2 looks at before anything else of a call."""
        found = self._table(name)
        if found.table.type not in types:
            raise table_error("WRONG_TABLE_TYPE", f"table {name} is {found.table.type}, not {' or '.join(types)}")
        return found

    @staticmethod
    def _add(table: MatchTable, match: list[Record] | None, target: Target, options: Record | None) -> int:
        return table.add(match_from_wire(table.table, match), target, _priority(options))

    # Entries that hold an action

    def bm_mt_add_entry(self, cxt, table, match, action, data, options):
        found = self._of_type(table, ir.SIMPLE)
        return self._add(found, match, _run(found, action, data), options)

    def bm_mt_modify_entry(self, cxt, table, entry, action, data):
        found = self._of_type(table, ir.SIMPLE)
        found.modify(entry, _run(found, action, data))

    def bm_mt_delete_entry(self, cxt, table, entry):
        self._of_type(table, ir.SIMPLE).delete(entry)

    def bm_mt_set_default_action(self, cxt, table, action, data):
        found = self._of_type(table, ir.SIMPLE)
        found.set_default(_run(found, action, data))

    def bm_mt_reset_default_entry(self, cxt, table):
        self._of_type(table, ir.SIMPLE).reset_default()

    # Entries that refer to an action profile

    def bm_mt_indirect_add_entry(self, cxt, table, match, member, options):
        return self._add(self._of_type(table, *PROFILED), match, UseMember(member), options)

    def bm_mt_indirect_modify_entry(self, cxt, table, entry, member):
        self._of_type(table, *PROFILED).modify(entry, UseMember(member))

    def bm_mt_indirect_delete_entry(self, cxt, table, entry):
        self._of_type(table, *PROFILED).delete(entry)

    def bm_mt_indirect_set_default_member(self, cxt, table, member):
        self._of_type(table, *PROFILED).set_default(UseMember(member))

    def bm_mt_indirect_reset_default_entry(self, cxt, table):
        self._of_type(table, *PROFILED).reset_default()

    def bm_mt_indirect_ws_add_entry(self, cxt, table, match, group, options):
        return self._add(self._of_type(table, ir.INDIRECT_WS), match, UseGroup(group), options)

    def bm_mt_indirect_ws_modify_entry(self, cxt, table, entry, group):
        self._of_type(table, ir.INDIRECT_WS).modify(entry, UseGroup(group))

    def bm_mt_indirect_ws_set_default_group(self, cxt, table, group):
        self._of_type(table, ir.INDIRECT_WS).set_default(UseGroup(group))

    # Reading entries

    def _target_to_wire(self, target: Target) -> Record:
        if isinstance(target, UseMember):
            return Record(action_type=MEMBER, mbr_handle=target.member)
        if isinstance(target, UseGroup):
            return Record(action_type=GROUP, grp_handle=target.group)
        program = self.device.state.program
        name = program.actions[target.action].name
        return Record(action_type=ACTION_DATA, action_name=name, action_data=_data_to_wire(target))

    def _entry_to_wire(self, table: MatchTable, entry: Entry) -> Record:
        life = table.life_ms(entry.handle)
        return Record(
            match_key=match_to_wire(table.table, entry.match),
            options=Record(priority=entry.priority),
            entry_handle=entry.handle,
            action_entry=self._target_to_wire(entry.target),
            life=Record(timeout_ms=life[0], time_since_hit_ms=life[1]) if life and life[0] else None,
        )

    def bm_mt_get_entries(self, cxt, table):
        found = self._table(table)
        return [self._entry_to_wire(found, entry) for entry in found.all_entries()]

    def bm_mt_get_entry(self, cxt, table, entry):
        found = self._table(table)
        return self._entry_to_wire(found, found.entry(entry))

    def bm_mt_get_default_entry(self, cxt, table):
        try:
            return self._target_to_wire(self._table(table).get_default())
        except ControlError as error:
            if error.code != "NO_DEFAULT_ENTRY":
                raise
            return Record(action_type=NO_ENTRY)

    def bm_mt_get_entry_from_key(self, cxt, table, match, options):
        if not match:
            default = self.bm_mt_get_default_entry(cxt, table)
            return Record(match_key=[], options=Record(), entry_handle=0, action_entry=default)
        found = self._table(table)
        return self._entry_to_wire(found, found.entry_from_key(match_from_wire(found.table, match), _priority(options)))

    # Direct counters and meters

    def bm_mt_read_counter(self, cxt, table, entry):
        return counter_to_wire(*self._table(table).read_counter(entry))

    def bm_mt_reset_counters(self, cxt, table):
        self._table(table).reset_counters()

    def bm_mt_write_counter(self, cxt, table, entry, value):
        self._table(table).write_counter(entry, value.packets or 0, value.bytes or 0)

    def bm_mt_set_meter_rates(self, cxt, table, entry, rates):
        self._table(table).set_meter_rates(entry, rates_from_wire(rates))

    def bm_mt_get_meter_rates(self, cxt, table, entry):
        return rates_to_wire(self._table(table).get_meter_rates(entry))

    # Action profiles

    def bm_mt_act_prof_add_member(self, cxt, profile, action, data):
        found = self._profile(profile)
        return found.add_member(_run(found, action, data))

    def bm_mt_act_prof_delete_member(self, cxt, profile, member):
        self._profile(profile).delete_member(member)

    def bm_mt_act_prof_modify_member(self, cxt, profile, member, action, data):
        found = self._profile(profile)
        found.modify_member(member, _run(found, action, data))

    def bm_mt_act_prof_create_group(self, cxt, profile):
        return self._profile(profile).create_group()

    def bm_mt_act_prof_delete_group(self, cxt, profile, group):
        self._profile(profile).delete_group(group)

    def bm_mt_act_prof_add_member_to_group(self, cxt, profile, member, group):
        self._profile(profile).add_to_group(member, group)

    def bm_mt_act_prof_remove_member_from_group(self, cxt, profile, member, group):
        self._profile(profile).remove_from_group(member, group)

    def _member_to_wire(self, profile: ActionProfile, handle: int) -> Record:
        run = profile.member(handle).run
        program = self.device.state.program
        name = program.actions[run.action].name
        return Record(mbr_handle=handle, action_name=name, action_data=_data_to_wire(run))

    def bm_mt_act_prof_get_members(self, cxt, profile):
        found = self._profile(profile)
        with found.lock:
            return [self._member_to_wire(found, handle) for handle in sorted(found.members)]

    def bm_mt_act_prof_get_member(self, cxt, profile, member):
        return self._member_to_wire(self._profile(profile), member)

    def bm_mt_act_prof_get_groups(self, cxt, profile):
        found = self._profile(profile)
        with found.lock:
            return [
                Record(grp_handle=handle, mbr_handles=sorted(group.members))
                for handle, group in sorted(found.groups.items())
            ]

    def bm_mt_act_prof_get_group(self, cxt, profile, group):
        return Record(grp_handle=group, mbr_handles=sorted(self._profile(profile).group(group).members))
