"""Serialization of a switch's state as text: for the control plane's serialize_state and for --restore-state.

The text is JSON. Zero cells are left out; handles are preserved, so that a control plane can continue to use them.
Direct counters and timeouts are saved with their entries; queued packets, digests and hit times are not saved.
"""

import hashlib
import json
from typing import Any

import numpy as np

from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import RunAction, Target, UseGroup, UseMember
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import MatchTable
from switchml.errors import ConfigError, ControlError


def digest_of(program: ir.Program) -> str:
    """Identifier of a program in a snapshot: the MD5 of its JSON, as BMv2's Thrift interface returns it."""
    return hashlib.md5(program.text.encode(), usedforsecurity=False).hexdigest()


def save(state: State) -> str:
    """Serialize the state as text."""
    with state.lock:
        saved = {
            "program_md5": digest_of(state.program),
            "registers": {array.name: _cells(array.data, lambda i, a=array: a[i]) for array in state.registers},
            "counters": {array.name: _cells(array.data, array.read) for array in state.counters},
            "meters": {
                array.name: {int(i): array.get_rates(int(i)) for i in np.flatnonzero(array.configured)}
                for array in state.meters
            },
            "parse_vsets": {vset.name: vset.get() for vset in state.parse_vsets},
            "action_profiles": {
                profile.name: {
                    "members": {handle: _target(member.run) for handle, member in profile.members.items()},
                    "groups": {handle: group.members for handle, group in profile.groups.items()},
                }
                for profile in state.action_profiles
            },
            "tables": {table.name: _table(table) for table in state.tables if table.table.key},
            "defaults": {table.name: _target(table.default) for table in state.tables},
            "replication": state.replication.describe(),
            "mirroring": {number: [s.port, s.mgid] for number, s in state.mirroring.sessions.items()},
        }
    return json.dumps(saved)


def _cells(data: np.ndarray, value: Any) -> dict[int, Any]:
    """Index → value of the non-zero cells."""
    return {int(index): value(int(index)) for index in np.flatnonzero(data.any(axis=1))}


def _target(target: Target | None) -> list[Any] | None:
    match target:
        case RunAction(action, args):
            return ["action", action, *args]
        case UseMember(member):
            return ["member", member]
        case UseGroup(group):
            return ["group", group]
    return None


def _table(table: MatchTable) -> list[dict[str, Any]]:
    return [
        {
            "handle": entry.handle,
            "match": [[param.kind, param.value, param.extra] for param in entry.match],
            "priority": entry.priority,
            "target": _target(entry.target),
            "counter": [int(number) for number in table.counters[entry.index]],
            "timeout_us": int(table.timeout_us[entry.index]),
        }
        for entry in table.all_entries()
    ]


def restore(state: State, text: str) -> None:
    """Restore a fresh state from the text of `save`. Raises ConfigError if the text is not a snapshot of the same
    program; the state is then reset to its initial content."""
    try:
        saved = json.loads(text)
        if saved["program_md5"] != digest_of(state.program):
            raise ConfigError("the saved state is that of another program")
        with state.lock:
            state.reset()
            _fill(state, saved)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ControlError, OverflowError) as error:
        state.reset()
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the saved state can't be read: {type(error).__name__}: {error}") from error


def _fill(state: State, saved: dict[str, Any]) -> None:
    for name, cells in saved["registers"].items():
        for index, value in cells.items():
            state.register(name).write(int(index), value)
    by_name = {array.name: array for array in state.counters}
    for name, cells in saved["counters"].items():
        for index, (packets, n_bytes) in cells.items():
            by_name[name].write(int(index), packets, n_bytes)
    for name, cells in saved["meters"].items():
        for index, rates in cells.items():
            state.meter(name).set_rates(int(index), rates)
    for name, values in saved["parse_vsets"].items():
        for value in values:
            state.parse_vset(name).add(value)
    for name, profile in saved["action_profiles"].items():
        members = {int(handle): _read_run(target) for handle, target in profile["members"].items()}
        groups = {int(h): {int(m): weight for m, weight in g.items()} for h, g in profile["groups"].items()}
        state.action_profile(name).restore(members, groups)
    for name, entries in saved["tables"].items():
        _fill_table(state.table(name), entries)
    for name, target in saved["defaults"].items():
        table = state.table(name)
        if target != _target(table.default) and target is not None:
            table.set_default(_read_target(target))
    state.replication.restore(saved["replication"])
    for number, (port, mgid) in saved["mirroring"].items():
        state.mirroring.add(int(number), port, mgid)


def _fill_table(table: MatchTable, entries: list[dict[str, Any]]) -> None:
    table.restore(
        [
            (item["handle"], [ir.MatchParam(*param) for param in item["match"]], _read_target(item["target"]),
             item["priority"])
            for item in entries
        ]
    )  # fmt: skip
    for item in entries:
        index = table.entry(item["handle"]).index
        table.counters[index] = np.array(item["counter"], dtype=np.uint64)
        table.timeout_us[index] = item["timeout_us"]


def _read_target(target: list[Any]) -> Target:
    kind, number, *args = target
    if kind == "action":
        return RunAction(number, tuple(args))
    return UseMember(number) if kind == "member" else UseGroup(number)


def _read_run(saved: list[Any]) -> RunAction:
    target = _read_target(saved)
    if not isinstance(target, RunAction):
        raise ConfigError("the saved state can't be read: a member of an action profile does not run an action")
    return target
