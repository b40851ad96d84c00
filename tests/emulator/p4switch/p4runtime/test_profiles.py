"""Action profiles: members, groups, one-shots."""

import pytest

from emulator.p4switch.p4runtime.profiles import Profile, Profiles
from emulator.p4switch.program.ir import MatchParam
from switchml.control.p4runtime_protos import info
from switchml.errors import ControlError
from tests.support.launch import until
from tests.support.p4runtime_controller import exact, refused, short, v1


def lpm(value, length):
    return {"lpm": {"value": short(value), "prefix_len": length}}


@pytest.fixture
def selector(primary):
    return primary("action_selector")


def profile_id(controller):
    return controller.info.action_profiles[0].preamble.id


def member(controller, number, *args):
    action = controller.action("send", *args)
    return {"action_profile_id": profile_id(controller), "member_id": number, "action": action}


def group(controller, number, weights, max_size=0):
    members = [{"member_id": number, "weight": weight} for number, weight in weights.items()]
    return {"action_profile_id": profile_id(controller), "group_id": number, "members": members, "max_size": max_size}


def to(controller, **action):
    return controller.entry("paths", {1: lpm(0x1200, 8)}, v1.TableAction(**action))


def test_members_and_groups(selector, target):
    for number in (10, 20):
        selector.write("INSERT", action_profile_member=member(selector, number, 1, number))
    selector.write("INSERT", action_profile_group=group(selector, 10, {10: 1, 20: 2}))
    assert [item.member_id for item in selector.read(action_profile_member={})] == [10, 20]
    assert selector.read(action_profile_member={"member_id": 20}) == [
        v1.ActionProfileMember(**member(selector, 20, 1, 20))
    ]
    assert selector.read(action_profile_group={}) == [v1.ActionProfileGroup(**group(selector, 10, {10: 1, 20: 2}))]
    profile = target.state.action_profiles[0]
    assert [item.eligible.tolist() for item in profile.groups.values()] == [[0, 1, 1]]
    entry = to(selector, action_profile_group_id=10)
    selector.write("INSERT", table_entry=entry)
    assert selector.read(table_entry={}) == [entry]
    with refused("FAILED_PRECONDITION", "still used"):
        selector.write("DELETE", action_profile_group=group(selector, 10, {}))
    with refused("FAILED_PRECONDITION", "still used"):
        selector.write("DELETE", action_profile_member=member(selector, 10, 0, 0))
    selector.write("MODIFY", action_profile_group=group(selector, 10, {20: 1}))
    selector.write("DELETE", action_profile_member=member(selector, 10, 0, 0))
    selector.write("MODIFY", action_profile_member=member(selector, 20, 3, 3))
    assert profile.member(1).run.args == (3, 3)
    entry.action.action_profile_member_id = 20
    selector.write("MODIFY", table_entry=entry)
    assert selector.read(table_entry={}) == [entry]
    selector.write("DELETE", action_profile_group=group(selector, 10, {}))
    selector.write("DELETE", table_entry=entry)
    selector.write("DELETE", action_profile_member=member(selector, 20, 0, 0))
    assert not profile.members and not profile.groups


def test_what_is_refused(selector):
    selector.write("INSERT", action_profile_member=member(selector, 1, 1, 1))
    selector.write("INSERT", action_profile_group=group(selector, 1, {1: 1}, max_size=2))
    cases = [
        ("INSERT", {"action_profile_member": member(selector, 1, 1, 1)}, "ALREADY_EXISTS"),
        ("INSERT", {"action_profile_member": member(selector, 0, 1, 1)}, "INVALID_ARGUMENT"),
        ("INSERT", {"action_profile_member": member(selector, 2, 512, 1)}, "OUT_OF_RANGE"),
        ("MODIFY", {"action_profile_member": member(selector, 2, 1, 1)}, "NOT_FOUND"),
        ("DELETE", {"action_profile_member": member(selector, 2, 1, 1)}, "NOT_FOUND"),
        ("INSERT", {"action_profile_member": {"action_profile_id": 1, "member_id": 1}}, "INVALID_ARGUMENT"),
        ("INSERT", {"action_profile_group": group(selector, 1, {1: 1})}, "ALREADY_EXISTS"),
        ("INSERT", {"action_profile_group": group(selector, 2, {9: 1})}, "NOT_FOUND"),
        ("INSERT", {"action_profile_group": group(selector, 2, {1: 0})}, "INVALID_ARGUMENT"),
        ("INSERT", {"action_profile_group": group(selector, 2, {1: 3}, max_size=2)}, "RESOURCE_EXHAUSTED"),
        ("MODIFY", {"action_profile_group": group(selector, 1, {1: 1}, max_size=3)}, "INVALID_ARGUMENT"),
        ("MODIFY", {"action_profile_group": group(selector, 2, {1: 1})}, "NOT_FOUND"),
        ("DELETE", {"action_profile_group": group(selector, 2, {})}, "NOT_FOUND"),
        ("INSERT", {"table_entry": to(selector, action_profile_member_id=9)}, "NOT_FOUND"),
        ("INSERT", {"table_entry": to(selector, action_profile_group_id=9)}, "NOT_FOUND"),
        ("INSERT", {"table_entry": to(selector, action=selector.action("send", 1, 1))}, "INVALID_ARGUMENT"),
        (
            "INSERT",
            {"table_entry": to(selector, action_profile_action_set=action_set(selector, 1))},
            "INVALID_ARGUMENT",
        ),
    ]
    for kind, entity, code in cases:
        with refused(code):
            selector.write(kind, **entity)
    assert len(selector.read(action_profile_member={})) == len(selector.read(action_profile_group={})) == 1


def action_set(controller, *weights):
    actions = [
        {"action": controller.action("send", number, 0), "weight": weight} for number, weight in enumerate(weights)
    ]
    return v1.ActionProfileActionSet(action_profile_actions=actions)


def test_one_shot(selector, target):
    profile = target.state.action_profiles[0]
    entry = to(selector, action_profile_action_set=action_set(selector, 1, 2))
    selector.write("INSERT", table_entry=entry)
    assert selector.read(table_entry={}) == [entry]
    assert selector.read(action_profile_member={}) == selector.read(action_profile_group={}) == []
    assert len(profile.members) == 2
    with refused("ALREADY_EXISTS"):
        selector.write("INSERT", table_entry=entry)
    with refused("INVALID_ARGUMENT"):
        selector.write("INSERT", action_profile_member=member(selector, 1, 1, 1))
    assert (len(profile.members), len(profile.groups)) == (2, 1)
    entry.action.action_profile_action_set.CopyFrom(action_set(selector, 5, 5, 5))
    selector.write("MODIFY", table_entry=entry)
    assert (len(profile.members), len(profile.groups)) == (3, 1)
    for bad in (action_set(selector), action_set(selector, 0)):
        with refused("INVALID_ARGUMENT"):
            selector.write("MODIFY", table_entry=to(selector, action_profile_action_set=bad))
    assert selector.read(table_entry={}) == [entry]
    selector.write("DELETE", table_entry=entry)
    assert not profile.members and not profile.groups
    selector.write("INSERT", action_profile_member=member(selector, 1, 1, 1))


def test_a_one_shot_whose_group_thrift_uses_stays_until_then(selector, target):
    """Its own entry can be changed and deleted all the same."""
    profile, table = target.state.action_profiles[0], target.state.tables[0]
    entry = to(selector, action_profile_action_set=action_set(selector, 1))
    selector.write("INSERT", table_entry=entry)
    (ours,) = table.all_entries()
    theirs = table.add([MatchParam("lpm", 0x3400, 8)], ours.target)
    selector.write("MODIFY", table_entry=to(selector, action_profile_action_set=action_set(selector, 5, 5)))
    assert (len(profile.members), len(profile.groups)) == (3, 2)
    selector.write("DELETE", table_entry=entry)
    assert (len(profile.members), len(profile.groups)) == (1, 1)
    assert [left.handle for left in table.all_entries()] == [theirs]


@pytest.mark.parametrize("watch", [{"watch_port": b"\7"}, {"watch": 7}], ids=["bytes", "number"])
def test_members_that_watch_a_port(selector, target, watch):
    """They are not chosen while it is down, or not there."""
    for number in (10, 20):
        selector.write("INSERT", action_profile_member=member(selector, number, 1, number))
    watching = group(selector, 10, {10: 1, 20: 2})
    watching["members"][1].update(watch)
    selector.write("INSERT", action_profile_group=watching)
    (item,) = target.state.action_profiles[0].groups.values()
    assert item.eligible.tolist() == [0]
    target.ports.up = {7}
    until(lambda: item.eligible.tolist() == [0, 1, 1])
    target.ports.up = {6}
    until(lambda: item.eligible.tolist() == [0])
    assert selector.read(action_profile_group={}) == [v1.ActionProfileGroup(**watching)]
    selector.write("MODIFY", action_profile_group=group(selector, 10, {10: 1, 20: 2}))
    assert item.eligible.tolist() == [0, 1, 1]


def test_actions_of_a_one_shot_that_watch_a_port(selector, target):
    actions = [
        {"action": selector.action("send", 1, 1), "weight": 1, "watch_port": b"\7"},
        {"action": selector.action("send", 2, 2), "weight": 1},
    ]
    entry = to(selector, action_profile_action_set={"action_profile_actions": actions})
    selector.write("INSERT", table_entry=entry)
    (item,) = target.state.action_profiles[0].groups.values()
    assert item.eligible.tolist() == [1]
    target.ports.up = {7}
    until(lambda: item.eligible.tolist() == [0, 1])
    assert selector.read(table_entry={}) == [entry]


def test_profile_without_selector(primary):
    controller = primary("action_profile")
    controller.write("INSERT", action_profile_member=member(controller, 1, *[0] * n_params(controller)))
    entry = controller.entry("flows", {1: exact(3)}, v1.TableAction(action_profile_member_id=1))
    controller.write("INSERT", table_entry=entry)
    assert controller.read(table_entry={}) == [entry]
    with refused("INVALID_ARGUMENT", "no selector"):
        controller.write("INSERT", action_profile_group=group(controller, 1, {1: 1}))


def n_params(controller):
    return next(len(action.params) for action in controller.info.actions if action.preamble.alias == "send")


def test_a_group_without_a_max_size_has_the_profile_s(selector):
    """What finsy and p4runtime-shell send; BMv2's server takes max_group_size, and on MODIFY what the group had."""
    item = info.ActionProfile(max_group_size=4)
    profile = Profile(item, None, None, None, members={1: 0})
    for weight, max_size in ((4, 0), (4, 4), (3, 3)):
        assert Profiles._members(profile, v1.ActionProfileGroup(**group(selector, 1, {1: weight}, max_size)))[0] == {
            0: weight
        }
    for weight, max_size, code in (
        (5, 0, "RESOURCE_EXHAUSTED"),
        (1, 5, "INVALID_ARGUMENT"),
        (1, -1, "INVALID_ARGUMENT"),
    ):
        with pytest.raises(ControlError) as error:
            Profiles._members(profile, v1.ActionProfileGroup(**group(selector, 1, {1: weight}, max_size)))
        assert error.value.code == code
    selector.write("INSERT", action_profile_member=member(selector, 1, 1, 1))
    selector.write("INSERT", action_profile_group=group(selector, 1, {1: 1}, max_size=2))
    selector.write("MODIFY", action_profile_group=group(selector, 1, {1: 2}))
    assert selector.read(action_profile_group={})[0].max_size == 2
    with refused("RESOURCE_EXHAUSTED", "room for 2"):
        selector.write("MODIFY", action_profile_group=group(selector, 1, {1: 3}))
