"""Saving a state and bringing it back: the same answers, the same handles, and the same bytes for packets."""

import json

import pytest

from emulator.p4switch.program import ir
from emulator.p4switch.snapshot import restore, save
from emulator.p4switch.state.action_profiles import RunAction, UseGroup, UseMember
from emulator.p4switch.state.state import State
from switchml.errors import ConfigError


def restored(state):
    """A fresh state that was brought to this one."""
    other = State(state.program)
    restore(other, save(state))
    assert save(other) == save(state)
    return other


def test_every_program_at_start(program, names):
    for name in names:
        restored(State(program(name)))


def test_entries_keep_their_handles(switch):
    running = switch("counters")
    for value in range(4):
        running.add("MyIngress.flows", [value], "MyIngress.send", (1,))
    table = running.state.table("MyIngress.flows")
    table.delete(1)
    table.delete(2)
    running.add("MyIngress.flows", [9], "MyIngress.send", (1,))
    table.set_default(RunAction(table.action("MyIngress.send"), (7,)))
    table.write_counter(0, 5, 6)
    restored_table = restored(running.state).table("MyIngress.flows")
    assert [entry.handle for entry in restored_table.all_entries()] == [0, 1 << 24 | 1, 3]
    assert restored_table.read_counter(0) == (5, 6)
    assert restored_table.default == table.default
    assert restored_table.add([ir.MatchParam("exact", 50)], restored_table.default) & 0xFFFFFF == 2


def test_profiles_keep_members_groups_and_uses(program):
    state = State(program("action_selector"))
    table = next(table for table in state.tables if table.profile)
    send = table.action("MyIngress.send")
    members = [table.profile.add_member(RunAction(send, (1, mark))) for mark in range(3)]
    group = table.profile.create_group()
    table.profile.add_to_group(members[2], group, 3)
    table.profile.delete_member(members[0])
    table.add([ir.MatchParam("lpm", 0, 0)], UseGroup(group))
    table.add([ir.MatchParam("lpm", 0, 8)], UseMember(members[1]))
    profile = next(iter(restored(state).action_profiles))
    assert {handle: member.uses for handle, member in profile.members.items()} == {1: 1, 2: 1}
    assert profile.group(group).eligible.tolist() == [2, 2, 2]
    assert profile.add_member(RunAction(send, (1, 1))) == 0


def test_wide_registers_meters_groups_and_sessions(program):
    state = State(program("registers"))
    state.register("MyIngress.wides").write(3, (1 << 136) - 1)
    state.mirroring.add(4, mgid=2)
    state.replication.create_group(2)
    for ports in ([1], [2, 3]):
        state.replication.associate_node(2, state.replication.create_node(7, ports, [0]))
    state.replication.set_lag(0, [5])
    state.replication.destroy_node(0)
    other = restored(state)
    assert other.register("MyIngress.wides").read(3) == (1 << 136) - 1
    assert other.replication.copies(2) == [(2, 7), (3, 7), (5, 7)]
    assert other.replication.create_node(1, []) == 0
    meters = State(program("meters"))
    meters.meters[0].set_rates(1, [(0.5, 10), (1.0, 20)])
    assert restored(meters).meters[0].get_rates(1) == [(0.5, 10), (1.0, 20)]


@pytest.mark.parametrize("damage", [
    lambda saved: saved.update(program_md5="0"),
    lambda saved: saved.pop("tables"),
    lambda saved: saved["registers"].update(nothing={"0": 1}),
    lambda saved: saved["registers"].update({"MyIngress.sums": {"99": 1}}),
    lambda saved: saved["mirroring"].update(x=[1, 2]),
    lambda saved: saved.update(tables={"nothing": []}),
])  # fmt: skip
def test_a_damaged_text_leaves_a_fresh_state(program, damage):
    state = State(program("registers"))
    saved = json.loads(save(state))
    damage(saved)
    with pytest.raises(ConfigError):
        restore(state, json.dumps(saved))
    assert save(state) == save(State(program("registers")))


@pytest.mark.parametrize("text", ["", "[]", "3", "{}"])
def test_what_is_no_snapshot(program, text):
    with pytest.raises(ConfigError):
        restore(State(program("registers")), text)


def test_a_member_that_runs_no_action_is_refused(program):
    state = State(program("action_selector"))
    state.action_profiles[0].add_member(RunAction(state.action_profiles[0].actions[0], (1, 2)))
    saved = json.loads(save(state))
    profile = next(iter(saved["action_profiles"].values()))
    profile["members"]["0"] = ["member", 0]
    with pytest.raises(ConfigError, match="a member of an action profile does not run an action"):
        restore(state, json.dumps(saved))
