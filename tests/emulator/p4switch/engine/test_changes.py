"""Changes of the control plane between packets: both engines follow each one."""

import contextlib
import random

import pytest

from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import RunAction, UseGroup, UseMember
from emulator.p4switch.state.state import ParseVSet
from emulator.p4switch.state.tables import MatchTable
from emulator.p4switch.switch import Switch
from switchml.errors import ControlError
from tests.support.bmv2_engines import both, outcome


def field(source: random.Random, kind: str, width: int) -> ir.MatchParam:
    """A field of few values, so that entries overlap and packets hit them."""
    value, top = source.choice((0, 1, 2, 3, 5)) << source.choice((0, max(width - 3, 0))), (1 << width) - 1
    value &= top
    if kind == "lpm":
        return ir.MatchParam(kind, value, source.choice((0, width // 2, width)))
    if kind == "ternary":
        return ir.MatchParam(kind, value, source.choice((0, 1, 3, top, top >> 1)))
    if kind == "range":
        return ir.MatchParam(kind, value, source.choice((value, top)))
    return ir.MatchParam(kind, value & 1 if kind == "valid" else value)


def change(source: random.Random, switch: Switch) -> None:
    """A random change of a random table; one that is refused is none."""
    tables = [table for table in switch.state.tables if table.table.key and not table.is_immutable]
    if not tables:
        return
    table = source.choice(tables)
    profile, handles = table.profile, [entry.handle for entry in table.all_entries()]

    def run() -> RunAction:
        action = source.choice(sorted(profile.actions if profile else table.table.actions))
        return RunAction(action, tuple(source.randrange(4) for _ in table.program.actions[action].params))

    def target():
        if profile is None:
            return run()
        kinds = [UseMember, UseGroup] if profile.has_selector else [UseMember]
        return source.choice(kinds)(source.randrange(4))

    steps = [
        lambda: table.add([field(source, *part) for part in _fields(table)], target(), source.randrange(4)),
        lambda: table.add([field(source, *part) for part in _fields(table)], target(), source.randrange(4)),
        lambda: table.modify(source.choice(handles or [0]), target()),
        lambda: table.delete(source.choice(handles or [0])),
        lambda: table.set_default(target()),
    ]
    if source.random() < 0.01:
        steps = [table.clear]
    if profile is not None:
        steps += [
            lambda: profile.add_member(run()),
            lambda: profile.modify_member(source.randrange(4), run()),
            lambda: profile.delete_member(source.randrange(6)),
            profile.create_group,
            lambda: profile.add_to_group(source.randrange(4), source.randrange(4), source.randrange(1, 3)),
            lambda: profile.remove_from_group(source.randrange(4), source.randrange(4)),
            lambda: profile.set_inactive(source.randrange(4), frozenset({source.randrange(4)})),
        ]
    with contextlib.suppress(ControlError):
        source.choice(steps)()


def _fields(table: MatchTable) -> list[tuple[str, int]]:
    return [(part.kind, width) for part, width in zip(table.table.key, table.widths, strict=True)]


@pytest.mark.parametrize(
    "name",
    ["exact", "lpm", "ternary", "range", "mixed_keys", "optional", "action_profile", "action_selector", "value_set"],
)
def test_both_engines_follow_every_change(program, name):
    """Packets of few values between 300 random changes."""
    switches = both(program(name))
    for switch in switches:
        source, packets = random.Random(5), random.Random(6)
        switch.seen = []
        for number in range(300):
            if switch.state.parse_vsets and number % 3 == 0:
                vset: ParseVSet = source.choice(switch.state.parse_vsets)
                source.choice((vset.add, vset.remove))(source.randrange(8) << source.choice((0, vset.width - 3)))
            change(source, switch)
            frame = bytes(packets.choice((0, 0, 1, 2, 8)) for _ in range(80))
            switch.seen.append(outcome(switch, [(packets.randrange(3), frame)]))
    reference, compiled = switches
    assert compiled.seen == reference.seen


def test_both_engines_follow_groups_and_sessions(program):
    reference, compiled = both(program("multicast"))
    for switch in (reference, compiled):
        source, replication = random.Random(7), switch.state.replication
        switch.seen = []
        for _ in range(300):
            steps = [
                lambda s=source, r=replication: r.create_group(s.randrange(4)),
                lambda s=source, r=replication: r.create_node(s.randrange(3), {s.randrange(5)}, {s.randrange(2)}),
                lambda s=source, r=replication: r.update_node(s.randrange(6), {s.randrange(5)}),
                lambda s=source, r=replication: r.associate_node(s.randrange(4), s.randrange(6)),
                lambda s=source, r=replication: r.dissociate_node(s.randrange(4), s.randrange(6)),
                lambda s=source, r=replication: r.destroy_node(s.randrange(6)),
                lambda s=source, r=replication: r.set_lag(s.randrange(2), {s.randrange(5)}),
                lambda s=source, r=replication: r.destroy_group(s.randrange(4)),
            ]
            with contextlib.suppress(ControlError):
                source.choice(steps)()
            groups = switch.engine._groups if switch is compiled else None
            switch.seen.append([_copies(groups, replication, mgid) for mgid in range(4)])
    assert compiled.seen == reference.seen


def _copies(groups, replication, mgid: int) -> list:
    """The copies of a group in the VM's memory, or of the state."""
    if groups is None:
        return [list(copy) for copy in replication.copies(mgid) or []]
    return groups._copies[mgid].tolist() if groups.rows[mgid, 1] else []
