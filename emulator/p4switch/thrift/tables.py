"""The calls of service `standard` on tables and action profiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from emulator.p4switch.device import Device
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import ActionProfile, RunAction, Target, UseGroup, UseMember, table_error
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import Entry, MatchTable
from emulator.p4switch.thrift.handlers import passed_to
from emulator.p4switch.values import n_bytes
from switchml.errors import ControlError

EXACT, LPM, TERNARY, VALID, RANGE = range(5)
"""Values of MatchKind."""
NO_ENTRY, ACTION_DATA, MEMBER, GROUP = range(4)
"""Values of ActionKind."""

_VALUES_OF_KIND = {
    EXACT: ("exact", "exact", ("key",)),
    LPM: ("lpm", "lpm", ("key", "prefix_length")),
    TERNARY: ("ternary", "ternary", ("key", "mask")),
    VALID: ("valid", "valid", ("key",)),
    RANGE: ("range", "range", ("start", "end_")),
}
"""MatchKind → kind in the IR, the field of MatchParam that holds it, and its fields."""
_NUMBER_OF_KIND = {kind: number for number, (kind, _, _) in _VALUES_OF_KIND.items()}


def match_from_wire(table: ir.Table, params: Sequence[SimpleNamespace]) -> list[ir.MatchParam]:
    """The key of an entry. Raises BAD_MATCH_KEY if a value has the wrong number of bytes."""
    if table.key and len(params) != len(table.key):
        raise table_error("BAD_MATCH_KEY", f"table {table.name} matches {len(table.key)} fields, not {len(params)}")
    return [_param_from_wire(table, field, param) for field, param in zip(table.key, params, strict=False)]


def _param_from_wire(table: ir.Table, field: ir.KeyField, param: SimpleNamespace) -> ir.MatchParam:
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


def match_to_wire(table: ir.Table, match: Sequence[ir.MatchParam]) -> list[SimpleNamespace]:
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
        records.append(
            SimpleNamespace(type=number, **{holder: SimpleNamespace(**dict(zip(names, values, strict=False)))})
        )
    return records


def rates_from_wire(rates: Sequence[SimpleNamespace]) -> list[tuple[float, int]]:
    """(units/µs, burst in units) of each rate of a meter."""
    return [(rate.units_per_micros or 0.0, rate.burst_size or 0) for rate in rates]


def rates_to_wire(rates: Sequence[tuple[float, int]]) -> list[SimpleNamespace]:
    """The reverse of `rates_from_wire`."""
    return [SimpleNamespace(units_per_micros=rate, burst_size=burst) for rate, burst in rates]


def counter_to_wire(packets: int, n_bytes_: int) -> SimpleNamespace:
    """A CounterValue."""
    return SimpleNamespace(packets=packets, bytes=n_bytes_)


def _data_to_wire(run: RunAction) -> list[bytes]:
    """Arguments in BMv2's form: without leading zero bytes."""
    return [value.to_bytes(max(n_bytes(value.bit_length()), 1), "big") for value in run.args]


def _run(owner: MatchTable | ActionProfile, action: str, data: Sequence[bytes]) -> RunAction:
    return RunAction(owner.action(action), tuple(int.from_bytes(item, "big") for item in data))


def _of_type(*types: str) -> Callable[[State, str], MatchTable]:
    """Looks up a table that has one of these types, which BMv2 checks before anything else of a call."""

    def find(state: State, name: str) -> MatchTable:
        table = state.table(name)
        if table.table.type not in types:
            raise table_error("WRONG_TABLE_TYPE", f"table {name} is {table.table.type}, not {' or '.join(types)}")
        return table

    return find


_simple, _profiled, _selecting = _of_type(ir.SIMPLE), _of_type(ir.INDIRECT, ir.INDIRECT_WS), _of_type(ir.INDIRECT_WS)


def _add(table: MatchTable, match: Sequence[SimpleNamespace], target: Target, options: SimpleNamespace) -> int:
    return table.add(match_from_wire(table.table, match), target, options.priority or 0)


class TableCalls:
    """Answers calls about the tables of `device`'s program."""

    device: Device

    # All tables

    bm_mt_get_num_entries = passed_to(State.table, MatchTable.__len__)
    bm_mt_clear_entries = passed_to(State.table, MatchTable.clear)
    bm_mt_set_entry_ttl = passed_to(State.table, MatchTable.set_timeout)
    bm_mt_indirect_set_entry_ttl = bm_mt_set_entry_ttl

    # Entries that hold an action

    bm_mt_delete_entry = passed_to(_simple, MatchTable.delete)
    bm_mt_reset_default_entry = passed_to(_simple, MatchTable.reset_default)

    def bm_mt_add_entry(self, cxt, name, match, action, data, options):
        table = _simple(self.device.state, name)
        return _add(table, match, _run(table, action, data), options)

    def bm_mt_modify_entry(self, cxt, name, entry, action, data):
        table = _simple(self.device.state, name)
        table.modify(entry, _run(table, action, data))

    def bm_mt_set_default_action(self, cxt, name, action, data):
        table = _simple(self.device.state, name)
        table.set_default(_run(table, action, data))

    # Entries that refer to an action profile

    bm_mt_indirect_delete_entry = passed_to(_profiled, MatchTable.delete)
    bm_mt_indirect_reset_default_entry = passed_to(_profiled, MatchTable.reset_default)

    def bm_mt_indirect_add_entry(self, cxt, name, match, member, options):
        return _add(_profiled(self.device.state, name), match, UseMember(member), options)

    def bm_mt_indirect_modify_entry(self, cxt, name, entry, member):
        _profiled(self.device.state, name).modify(entry, UseMember(member))

    def bm_mt_indirect_set_default_member(self, cxt, name, member):
        _profiled(self.device.state, name).set_default(UseMember(member))

    def bm_mt_indirect_ws_add_entry(self, cxt, name, match, group, options):
        return _add(_selecting(self.device.state, name), match, UseGroup(group), options)

    def bm_mt_indirect_ws_modify_entry(self, cxt, name, entry, group):
        _selecting(self.device.state, name).modify(entry, UseGroup(group))

    def bm_mt_indirect_ws_set_default_group(self, cxt, name, group):
        _selecting(self.device.state, name).set_default(UseGroup(group))

    # Reading entries

    def _target_to_wire(self, target: Target) -> SimpleNamespace:
        if isinstance(target, UseMember):
            return SimpleNamespace(action_type=MEMBER, mbr_handle=target.member)
        if isinstance(target, UseGroup):
            return SimpleNamespace(action_type=GROUP, grp_handle=target.group)
        program = self.device.state.program
        name = program.actions[target.action].name
        return SimpleNamespace(action_type=ACTION_DATA, action_name=name, action_data=_data_to_wire(target))

    def _entry_to_wire(self, table: MatchTable, entry: Entry) -> SimpleNamespace:
        life = table.life_ms(entry.handle)
        return SimpleNamespace(
            match_key=match_to_wire(table.table, entry.match),
            options=SimpleNamespace(priority=entry.priority),
            entry_handle=entry.handle,
            action_entry=self._target_to_wire(entry.target),
            life=SimpleNamespace(timeout_ms=life[0], time_since_hit_ms=life[1]) if life and life[0] else None,
        )

    def bm_mt_get_entries(self, cxt, name):
        table = self.device.state.table(name)
        return [self._entry_to_wire(table, entry) for entry in table.all_entries()]

    def bm_mt_get_entry(self, cxt, name, entry):
        table = self.device.state.table(name)
        return self._entry_to_wire(table, table.entry(entry))

    def bm_mt_get_default_entry(self, cxt, name):
        try:
            return self._target_to_wire(self.device.state.table(name).get_default())
        except ControlError as error:
            if error.code != "NO_DEFAULT_ENTRY":
                raise
            return SimpleNamespace(action_type=NO_ENTRY)

    def bm_mt_get_entry_from_key(self, cxt, name, match, options):
        if not match:
            default = self.bm_mt_get_default_entry(cxt, name)
            return SimpleNamespace(match_key=[], options=SimpleNamespace(), entry_handle=0, action_entry=default)
        table = self.device.state.table(name)
        entry = table.entry_from_key(match_from_wire(table.table, match), options.priority or 0)
        return self._entry_to_wire(table, entry)

    # Direct counters and meters

    bm_mt_reset_counters = passed_to(State.table, MatchTable.reset_counters)

    def bm_mt_read_counter(self, cxt, name, entry):
        return counter_to_wire(*self.device.state.table(name).read_counter(entry))

    def bm_mt_write_counter(self, cxt, name, entry, value):
        self.device.state.table(name).write_counter(entry, value.packets or 0, value.bytes or 0)

    def bm_mt_set_meter_rates(self, cxt, name, entry, rates):
        self.device.state.table(name).set_meter_rates(entry, rates_from_wire(rates))

    def bm_mt_get_meter_rates(self, cxt, name, entry):
        return rates_to_wire(self.device.state.table(name).get_meter_rates(entry))

    # Action profiles

    bm_mt_act_prof_delete_member = passed_to(State.action_profile, ActionProfile.delete_member)
    bm_mt_act_prof_create_group = passed_to(State.action_profile, ActionProfile.create_group)
    bm_mt_act_prof_delete_group = passed_to(State.action_profile, ActionProfile.delete_group)
    bm_mt_act_prof_add_member_to_group = passed_to(State.action_profile, ActionProfile.add_to_group)
    bm_mt_act_prof_remove_member_from_group = passed_to(State.action_profile, ActionProfile.remove_from_group)

    def bm_mt_act_prof_add_member(self, cxt, name, action, data):
        profile = self.device.state.action_profile(name)
        return profile.add_member(_run(profile, action, data))

    def bm_mt_act_prof_modify_member(self, cxt, name, member, action, data):
        profile = self.device.state.action_profile(name)
        profile.modify_member(member, _run(profile, action, data))

    def bm_mt_act_prof_get_member(self, cxt, name, member):
        run = self.device.state.action_profile(name).member(member).run
        action = self.device.state.program.actions[run.action].name
        return SimpleNamespace(mbr_handle=member, action_name=action, action_data=_data_to_wire(run))

    def bm_mt_act_prof_get_members(self, cxt, name):
        profile = self.device.state.action_profile(name)
        with profile.lock:
            return [self.bm_mt_act_prof_get_member(cxt, name, handle) for handle in sorted(profile.members)]

    def bm_mt_act_prof_get_group(self, cxt, name, group):
        members = self.device.state.action_profile(name).group(group).members
        return SimpleNamespace(grp_handle=group, mbr_handles=sorted(members))

    def bm_mt_act_prof_get_groups(self, cxt, name):
        profile = self.device.state.action_profile(name)
        with profile.lock:
            return [self.bm_mt_act_prof_get_group(cxt, name, handle) for handle in sorted(profile.groups)]
