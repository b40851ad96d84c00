"""The calls of service `standard` on tables and action profiles."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from emulator.p4switch.device import Device
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import (
    ActionOwner,
    ActionProfile,
    RunAction,
    Target,
    UseGroup,
    UseMember,
    table_error,
)
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import Entry, MatchTable
from emulator.p4switch.values import n_bytes
from switchml.errors import ControlError

NO_ENTRY, ACTION_DATA, MEMBER, GROUP = range(4)
"""Values of ActionKind."""

_PARTS_OF_KIND = {
    "exact": ("key",),
    "lpm": ("key", "prefix_length"),
    "ternary": ("key", "mask"),
    "valid": ("key",),
    "range": ("start", "end_"),
}
"""Match kind, in the order of MatchKind, which is also the field of MatchParam with its parts → the parts."""
_KINDS = list(_PARTS_OF_KIND)


def match_from_wire(table: ir.Table, params: Sequence[SimpleNamespace]) -> list[ir.MatchParam]:
    """Decode the key of an entry. Raises BAD_MATCH_KEY if a value has the wrong number of bytes."""
    if table.key and len(params) != len(table.key):
        raise table_error("BAD_MATCH_KEY", f"table {table.name} matches {len(table.key)} fields, not {len(params)}")
    return [_param_from_wire(table, field, param) for field, param in zip(table.key, params, strict=False)]


def _param_from_wire(table: ir.Table, field: ir.KeyField, param: SimpleNamespace) -> ir.MatchParam:
    def bad(problem: str) -> ControlError:
        return table_error("BAD_MATCH_KEY", f"table {table.name}, field {field.name}: {problem}")

    kind = _KINDS[param.type] if param.type in range(len(_KINDS)) else ""
    value = getattr(param, kind, None)
    if value is None or None in (parts := [getattr(value, name) for name in _PARTS_OF_KIND[kind]]):
        raise bad("a part of the value is missing")
    for number, part in enumerate(parts):
        if isinstance(part, bytes):
            if len(part) != n_bytes(field.width):
                raise bad(f"{len(part)} bytes, but it has {n_bytes(field.width)}")
            parts[number] = int.from_bytes(part, "big")
    if kind == "lpm" and parts[1] > field.width:  # although prefix lengths include the padding: BMv2 rejects it
        raise bad(f"a prefix of {parts[1]} bits, but it has {field.width}")
    return ir.MatchParam(kind, *map(int, parts))


def match_to_wire(table: ir.Table, match: Sequence[ir.MatchParam]) -> list[SimpleNamespace]:
    """Encode the key of an entry as MatchParams."""
    records = []
    for field, param in zip(table.key, match, strict=True):
        size = n_bytes(field.width)
        values = [param.value.to_bytes(size, "big"), param.extra]
        if param.kind == "valid":
            values[0] = bool(param.value)
        elif param.kind in ("ternary", "range"):
            values[1] = param.extra.to_bytes(size, "big")
        parts = SimpleNamespace(**dict(zip(_PARTS_OF_KIND[param.kind], values, strict=False)))
        records.append(SimpleNamespace(type=_KINDS.index(param.kind), **{param.kind: parts}))
    return records


def rates_from_wire(rates: Sequence[SimpleNamespace]) -> tuple[list[tuple[float, int]]]:
    """(units/µs, burst in units) of each rate of a meter, as a single argument."""
    return ([(rate.units_per_micros or 0.0, rate.burst_size or 0) for rate in rates],)


def rates_to_wire(rates: Sequence[tuple[float, int]]) -> list[SimpleNamespace]:
    """The inverse of `rates_from_wire`."""
    return [SimpleNamespace(units_per_micros=rate, burst_size=burst) for rate, burst in rates]


def counter_from_wire(value: SimpleNamespace) -> tuple[int, int]:
    """Decode a CounterValue to (packets, bytes)."""
    return value.packets or 0, value.bytes or 0


def counter_to_wire(value: tuple[int, int]) -> SimpleNamespace:
    """The inverse of `counter_from_wire`."""
    return SimpleNamespace(packets=value[0], bytes=value[1])


Handler = Callable[..., Any]


class Uncaught(Exception):
    """A C++ exception that BMv2 leaves to Thrift, with its text."""


def forwarding(
    find: Callable[[State, Any], Any],
    method: Callable[..., Any],
    last: Callable[[Any], tuple[Any, ...]] | None = None,
    to_wire: Callable[[Any], Any] | None = None,
) -> Handler:
    """The handler of a call whose arguments are a context, the key with which `find` looks up an object, and those of
    the object's `method`. `last` converts the call's last argument to the method's arguments; `to_wire` the method's
    result to the call's."""

    def answer(self: CallHandlers, cxt: int, name: Any, *arguments: Any) -> Any:
        if last is not None:
            arguments = *arguments[:-1], *last(arguments[-1])
        result = method(find(self.device.state, name), *arguments)
        return result if to_wire is None else to_wire(result)

    return answer


def _of_type(*types: str) -> Callable[[State, str], MatchTable]:
    """A function that looks up a table with one of these types, which BMv2 checks before anything else in a call."""

    def find(state: State, name: str) -> MatchTable:
        table = state.table(name)
        if table.table.type not in types:
            raise table_error("WRONG_TABLE_TYPE", f"table {name} is {table.table.type}, not {' or '.join(types)}")
        return table

    return find


_simple, _profiled, _selecting = _of_type(ir.SIMPLE), _of_type(ir.INDIRECT, ir.INDIRECT_WS), _of_type(ir.INDIRECT_WS)


def _run(owner: MatchTable | ActionProfile, action: str, data: Sequence[bytes]) -> RunAction:
    return RunAction(owner.action(action), tuple(int.from_bytes(item, "big") for item in data))


def _entry_calls(find: Callable[[State, str], MatchTable], target: Callable[..., Target]) -> tuple[Handler, ...]:
    """The handlers of calls that add an entry, modify an entry, and set the default of tables looked up by `find`;
    `target` is called with the table and the call's arguments for the target."""

    def add(self: CallHandlers, cxt: int, name: str, match: list[SimpleNamespace], *arguments: Any) -> int:
        *parts, options = arguments
        table = find(self.device.state, name)
        run = target(table, *parts)
        return table.add(match_from_wire(table.table, match), run, options.priority or 0)

    def modify(self: CallHandlers, cxt: int, name: str, entry: int, *parts: Any) -> None:
        table = find(self.device.state, name)
        table.modify(entry, target(table, *parts))

    def set_default(self: CallHandlers, cxt: int, name: str, *parts: Any) -> None:
        table = find(self.device.state, name)
        table.set_default(target(table, *parts))

    return add, modify, set_default


class CallHandlers:
    """Base class: handles calls of a service for `device`."""

    def __init__(self, device: Device) -> None:
        self.device = device


class TableCalls(CallHandlers):
    """Handles calls on the tables of the device's program."""

    # All tables

    bm_mt_get_num_entries = forwarding(State.table, MatchTable.__len__)
    bm_mt_clear_entries = forwarding(State.table, MatchTable.clear)
    bm_mt_set_entry_ttl = forwarding(State.table, MatchTable.set_timeout)
    bm_mt_indirect_set_entry_ttl = bm_mt_set_entry_ttl

    # Entries that hold an action

    bm_mt_delete_entry = forwarding(_simple, MatchTable.delete)
    bm_mt_reset_default_entry = forwarding(_simple, MatchTable.reset_default)
    bm_mt_add_entry, bm_mt_modify_entry, bm_mt_set_default_action = _entry_calls(_simple, _run)

    # Entries that refer to an action profile

    bm_mt_indirect_delete_entry = forwarding(_profiled, MatchTable.delete)
    bm_mt_indirect_reset_default_entry = forwarding(_profiled, MatchTable.reset_default)
    bm_mt_indirect_add_entry, bm_mt_indirect_modify_entry, bm_mt_indirect_set_default_member = _entry_calls(
        _profiled, lambda table, member: UseMember(member)
    )
    bm_mt_indirect_ws_add_entry, bm_mt_indirect_ws_modify_entry, bm_mt_indirect_ws_set_default_group = _entry_calls(
        _selecting, lambda table, group: UseGroup(group)
    )

    # Reading entries

    def _run_to_wire(self, owner: ActionOwner, run: RunAction, **fields: int) -> SimpleNamespace:
        """A record of these fields and an action, with arguments in BMv2's format: without leading zero bytes. `owner`:
        the table or profile of the action, as the switch may run another program by now."""
        data = [value.to_bytes(max(n_bytes(value.bit_length()), 1), "big") for value in run.args]
        name = owner.program.actions[run.action].name
        return SimpleNamespace(action_name=name, action_data=data, **fields)

    def _target_to_wire(self, table: MatchTable, target: Target) -> SimpleNamespace:
        if isinstance(target, UseMember):
            return SimpleNamespace(action_type=MEMBER, mbr_handle=target.member)
        if isinstance(target, UseGroup):
            return SimpleNamespace(action_type=GROUP, grp_handle=target.group)
        return self._run_to_wire(table, target, action_type=ACTION_DATA)

    def _entry_to_wire(self, table: MatchTable, entry: Entry) -> SimpleNamespace:
        life = table.life_ms(entry.handle)
        return SimpleNamespace(
            match_key=match_to_wire(table.table, entry.match),
            options=SimpleNamespace(priority=entry.priority),
            entry_handle=entry.handle,
            action_entry=self._target_to_wire(table, entry.target),
            life=SimpleNamespace(timeout_ms=life[0], time_since_hit_ms=life[1]) if life and life[0] else None,
        )

    def bm_mt_get_entries(self, cxt: int, name: str) -> list[SimpleNamespace]:
        table = self.device.state.table(name)
        return [self._entry_to_wire(table, entry) for entry in table.all_entries()]

    def bm_mt_get_entry(self, cxt: int, name: str, entry: int) -> SimpleNamespace:
        table = self.device.state.table(name)
        return self._entry_to_wire(table, table.entry(entry))

    def bm_mt_get_default_entry(self, cxt: int, name: str) -> SimpleNamespace:
        table = self.device.state.table(name)
        try:
            return self._target_to_wire(table, table.get_default())
        except ControlError as error:
            if error.code != "NO_DEFAULT_ENTRY":
                raise
            return SimpleNamespace(action_type=NO_ENTRY)

    def bm_mt_get_entry_from_key(
        self, cxt: int, name: str, match: list[SimpleNamespace], options: SimpleNamespace
    ) -> SimpleNamespace:
        if not match:
            default = self.bm_mt_get_default_entry(cxt, name)
            return SimpleNamespace(match_key=[], options=SimpleNamespace(), entry_handle=0, action_entry=default)
        table = self.device.state.table(name)
        entry = table.entry_from_key(match_from_wire(table.table, match), options.priority or 0)
        return self._entry_to_wire(table, entry)

    # Direct counters and meters

    bm_mt_reset_counters = forwarding(State.table, MatchTable.reset_counters)
    bm_mt_read_counter = forwarding(State.table, MatchTable.read_counter, to_wire=counter_to_wire)
    bm_mt_write_counter = forwarding(State.table, MatchTable.write_counter, counter_from_wire)
    bm_mt_set_meter_rates = forwarding(State.table, MatchTable.set_meter_rates, rates_from_wire)
    bm_mt_get_meter_rates = forwarding(State.table, MatchTable.get_meter_rates, to_wire=rates_to_wire)

    # Action profiles

    bm_mt_act_prof_delete_member = forwarding(State.action_profile, ActionProfile.delete_member)
    bm_mt_act_prof_create_group = forwarding(State.action_profile, ActionProfile.create_group)
    bm_mt_act_prof_delete_group = forwarding(State.action_profile, ActionProfile.delete_group)
    bm_mt_act_prof_add_member_to_group = forwarding(State.action_profile, ActionProfile.add_to_group)
    bm_mt_act_prof_remove_member_from_group = forwarding(State.action_profile, ActionProfile.remove_from_group)

    def bm_mt_act_prof_add_member(self, cxt: int, name: str, action: str, data: list[bytes]) -> int:
        profile = self.device.state.action_profile(name)
        return profile.add_member(_run(profile, action, data))

    def bm_mt_act_prof_modify_member(self, cxt: int, name: str, member: int, action: str, data: list[bytes]) -> None:
        profile = self.device.state.action_profile(name)
        profile.modify_member(member, _run(profile, action, data))

    def bm_mt_act_prof_get_member(self, cxt: int, name: str, member: int) -> SimpleNamespace:
        profile = self.device.state.action_profile(name)
        return self._run_to_wire(profile, profile.member(member).run, mbr_handle=member)

    def bm_mt_act_prof_get_members(self, cxt: int, name: str) -> list[SimpleNamespace]:
        return self._listed(name, "members", self.bm_mt_act_prof_get_member)

    def _listed(self, name: str, part: str, get: Handler) -> list[SimpleNamespace]:
        """A profile's members or groups by handle; like BMv2, returns none for a missing profile."""
        for profile in self.device.state.action_profiles:
            if profile.name == name:
                with profile.lock:
                    return [get(0, name, handle) for handle in sorted(getattr(profile, part))]
        return []

    def bm_mt_act_prof_get_group(self, cxt: int, name: str, group: int) -> SimpleNamespace:
        members = self.device.state.action_profile(name).group(group).members
        return SimpleNamespace(grp_handle=group, mbr_handles=sorted(members))

    def bm_mt_act_prof_get_groups(self, cxt: int, name: str) -> list[SimpleNamespace]:
        return self._listed(name, "groups", self.bm_mt_act_prof_get_group)
