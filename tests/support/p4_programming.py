"""Installs the entries of p4/tables.py in a switch: as commands of simple_switch_CLI, or directly in our switch's
state."""

from itertools import count

from emulator.p4switch.program.ir import MatchParam
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import RunAction
from switchml.control.p4.tables import Changes


def apply(state: State, changes: Changes) -> None:
    for cells in changes.counters:
        counter = state.counter(cells.name)
        for index in range(cells.start, cells.end):
            counter.write(index, 0, 0)
    for group in changes.groups:
        state.replication.create_group(group.group)
        for rid, port in group.copies:
            state.replication.associate_node(group.group, state.replication.create_node(rid, [port]))
    for entry in changes.entries:
        table = state.table(entry.table)
        key = [MatchParam("exact", value) for value in entry.key]
        table.add(key, RunAction(table.action(entry.action), entry.params))


def undo(state: State, changes: Changes) -> None:
    for entry in changes.entries:
        table = state.table(entry.table)
        table.delete(table.entry_from_key([MatchParam("exact", value) for value in entry.key]).handle)
    for group in changes.groups:
        for handle in list(state.replication.groups[group.group]):
            state.replication.destroy_node(handle)
        state.replication.destroy_group(group.group)


def commands(all_changes: list[Changes]) -> list[str]:
    """For a switch that was just started: counters are 0."""
    lines, nodes = [], count()
    for changes in all_changes:
        for group in changes.groups:
            lines.append(f"mc_mgrp_create {group.group}")
            for rid, port in group.copies:
                node = next(nodes)
                lines += [f"mc_node_create {rid} {port}", f"mc_node_associate {group.group} {node}"]
        for entry in changes.entries:
            key, params = (" ".join(hex(value) for value in values) for values in (entry.key, entry.params))
            lines.append(f"table_add {entry.table} {entry.action} {key} => {params}")
    return lines
