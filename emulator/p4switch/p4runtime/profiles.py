"""Action profiles: members, groups, and one-shots, groups that are specified with their members in a table entry
(section "ActionProfileMember & ActionProfileGroup").

Members and groups have numbers chosen by the controller, and handles in the switch. Those of a one-shot have no number.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from emulator.p4switch.p4runtime.errors import DELETE, INSERT, MODIFY, check_presence, rpc_error
from emulator.p4switch.p4runtime.fields import Actions, decode
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.state.action_profiles import ActionProfile
from switchml.control.p4runtime_protos import info, v1


@dataclass(eq=False)
class Group:
    """A group's handle and the controller's message, which for a one-shot is the entry's action set. `watched`: handles
    of members → the ports that they watch. `members`: of a one-shot, which are in no other group."""

    handle: int
    message: v1.ActionProfileGroup | v1.ActionProfileActionSet
    watched: dict[int, int]
    members: Sequence[int] = ()


@dataclass
class Profile:
    """An action profile in P4Runtime and in the switch. `members`: P4Runtime's number → the switch's handle; `groups`:
    by P4Runtime's number. `one_shots`: groups created by entries."""

    item: info.ActionProfile
    profile: ActionProfile
    actions: Actions
    pipeline: Pipeline
    members: dict[int, int] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    one_shots: list[Group] = field(default_factory=list)

    def forget_lost(self) -> None:
        """Drop members and groups that were removed through Thrift."""
        self.members = {number: handle for number, handle in self.members.items() if handle in self.profile.members}
        self.groups = {number: group for number, group in self.groups.items() if group.handle in self.profile.groups}

    def member(self, number: int) -> int:
        """Handle of a member. Raises NOT_FOUND."""
        if number not in self.members:
            raise rpc_error("NOT_FOUND", f"action profile {self.profile.name} has no member {number}")
        return self.members[number]

    def group(self, number: int) -> Group:
        """A group by number. Raises NOT_FOUND."""
        if number not in self.groups:
            raise rpc_error("NOT_FOUND", f"action profile {self.profile.name} has no group {number}")
        return self.groups[number]

    def number_of_member(self, handle: int) -> int:
        """P4Runtime's number of a member, or 0 if it has none."""
        return next((number for number, member in self.members.items() if member == handle), 0)

    def number_of_group(self, handle: int) -> int:
        """P4Runtime's number of a group, or 0 if it has none."""
        return next((number for number, group in self.groups.items() if group.handle == handle), 0)

    def check_weight(self, weight: int) -> int:
        """The switch's weight of a member. Raises INVALID_ARGUMENT."""
        if self.item.weights_disallowed:
            if weight:
                raise rpc_error("INVALID_ARGUMENT", f"action profile {self.profile.name}: members can't have weights")
            return 1
        if weight < 1:
            raise rpc_error("INVALID_ARGUMENT", f"a member's weight must be at least 1, not {weight}")
        return weight

    def size_of(self, weights: Sequence[int]) -> int:
        """Size of a group whose members have these weights."""
        by_members = self.item.WhichOneof("selector_size_semantics") == "sum_of_members"
        return len(weights) if by_members else sum(weights)

    def new_one_shot(self, message: v1.ActionProfileActionSet) -> Group:
        """Create an action set's members and group, all or nothing (section "One Shot Action Selector Programming")."""
        name = self.profile.name
        if not self.profile.has_selector:
            raise rpc_error("INVALID_ARGUMENT", f"action profile {name} has no selector, so it takes no action sets")
        if self.members or self.groups:
            problem = "holds members or groups: it can't take action sets as well"
            raise rpc_error("INVALID_ARGUMENT", f"action profile {name} {problem}")
        if message.HasField("group_action"):
            raise rpc_error("UNIMPLEMENTED", "an action for the whole group is not supported")
        if message.action_selection_mode:
            raise rpc_error("UNIMPLEMENTED", "only the program's own selection of actions is supported")
        if not message.action_profile_actions:
            raise rpc_error("INVALID_ARGUMENT", f"action profile {name}: an action set needs an action")
        runs, weights, ports = [], [], []
        for part in message.action_profile_actions:
            ports.append(watched_port(part))
            runs.append(self.actions.decode(part.action))
            weights.append(self.check_weight(part.weight))
        if 0 < self.item.max_group_size < self.size_of(weights):
            raise rpc_error("RESOURCE_EXHAUSTED", f"a group of {name} has room for {self.item.max_group_size}")
        members = [self.profile.add_member(run) for run in runs]
        group = self.profile.create_group()
        for member, weight in zip(members, weights, strict=True):
            self.profile.add_to_group(member, group, weight)
        watched = {member: port for member, port in zip(members, ports, strict=True) if port is not None}
        self.one_shots.append(Group(group, deepcopy(message), watched, members))
        self.follow_ports()
        return self.one_shots[-1]

    def remove(self, one_shot: Group) -> None:
        """Delete the group and members of an action set, except those removed or used through Thrift."""
        self.one_shots.remove(one_shot)
        group = self.profile.groups.get(one_shot.handle)
        if group is not None and not group.uses:
            self.profile.delete_group(one_shot.handle)
        for handle in one_shot.members:
            member = self.profile.members.get(handle)
            if member is not None and not member.uses:
                self.profile.delete_member(handle)

    def follow_ports(self) -> None:
        """Exclude members from the selection in their groups while the port that they watch is down."""
        watching = [group for group in (*self.groups.values(), *self.one_shots) if group.watched]
        up = self.pipeline.ports_up() if watching else set()
        for group in watching:
            if group.handle in self.profile.groups:
                down = frozenset(member for member, port in group.watched.items() if port not in up)
                self.profile.set_inactive(group.handle, down)


def watched_port(member: v1.ActionProfileGroup.Member | v1.ActionProfileAction) -> int | None:
    """The port that a member watches, or None. Raises INVALID_ARGUMENT."""
    kind = member.WhichOneof("watch_kind")
    if kind == "watch_port":
        return decode(member.watch_port, 32, "a watched port") if member.watch_port else None
    return (member.watch or None) if kind == "watch" else None


class Profiles:
    """Handles requests for all action profiles of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.by_number = {number: self._profile(*pair) for number, pair in pipeline.profiles.items()}
        self._of = {profile.profile.name: profile for profile in self.by_number.values()}

    def _profile(self, item: info.ActionProfile, profile: ActionProfile) -> Profile:
        """Bind a profile; its actions are those of its tables."""
        tables = [table for table in self.pipeline.p4info.tables if table.preamble.id in item.table_ids]
        refs = {ref.id: ref for table in tables for ref in table.action_refs}
        return Profile(item, profile, self.pipeline.actions_of(profile, refs.values(), profile.name), self.pipeline)

    def of(self, profile: ActionProfile | None) -> Profile | None:
        """The profile of a table. Raises INVALID_ARGUMENT if P4Info does not contain it."""
        if profile is None:
            return None
        if profile.name not in self._of:
            raise rpc_error("INVALID_ARGUMENT", f"the P4Info has no action profile {profile.name}")
        return self._of[profile.name]

    def _one(self, number: int) -> Profile:
        profile = self.pipeline.one(self.by_number, number, "action profile")
        profile.forget_lost()
        if profile.one_shots:
            name = profile.profile.name
            raise rpc_error("INVALID_ARGUMENT", f"tables of action profile {name} hold action sets: it can't take both")
        return profile

    def _selected(self, number: int) -> list[Profile]:
        profiles = self.pipeline.pick(self.by_number, number, "action profile")
        for profile in profiles:
            profile.forget_lost()
        return profiles

    # Members

    def write_member(self, kind: int, entry: v1.ActionProfileMember) -> None:
        profile = self._one(entry.action_profile_id)
        number = entry.member_id
        if not number:
            raise rpc_error("INVALID_ARGUMENT", "a member's id can't be 0")
        check_presence(kind, number in profile.members, f"member {number} of action profile {profile.profile.name}")
        if kind == DELETE:
            profile.profile.delete_member(profile.members[number])
            del profile.members[number]
            return
        if not entry.HasField("action"):
            raise rpc_error("INVALID_ARGUMENT", f"member {number} needs an action")
        run = profile.actions.decode(entry.action)
        if kind == MODIFY:
            profile.profile.modify_member(profile.members[number], run)
        else:
            profile.members[number] = profile.profile.add_member(run)

    def read_members(self, pattern: v1.ActionProfileMember) -> Iterator[v1.Entity]:
        for profile in self._selected(pattern.action_profile_id):
            for number, handle in sorted(profile.members.items()):
                if pattern.member_id in (0, number):
                    run = profile.profile.member(handle).run
                    key = {"action_profile_id": profile.item.preamble.id, "member_id": number}
                    yield v1.Entity(action_profile_member=key | {"action": profile.actions.encode(run)})

    # Groups

    def write_group(self, kind: int, entry: v1.ActionProfileGroup) -> None:
        numbered = self._one(entry.action_profile_id)
        profile, number = numbered.profile, entry.group_id
        if not profile.has_selector:
            raise rpc_error("INVALID_ARGUMENT", f"action profile {profile.name} has no selector, so it has no groups")
        if not number:
            raise rpc_error("INVALID_ARGUMENT", "a group's id can't be 0")
        check_presence(kind, number in numbered.groups, f"group {number} of action profile {profile.name}")
        if kind == DELETE:
            profile.delete_group(numbered.groups[number].handle)
            del numbered.groups[number]
            return
        entry = deepcopy(entry)
        if kind == MODIFY:
            max_size = numbered.groups[number].message.max_size
            if entry.max_size not in (0, max_size):
                raise rpc_error("INVALID_ARGUMENT", f"the max_size of group {number} can't be changed")
            entry.max_size = max_size
        weights, watched = self._members(numbered, entry)
        if kind == INSERT:
            handle = profile.create_group()
        else:
            handle = numbered.groups[number].handle
            for member in list(profile.group(handle).members):
                profile.remove_from_group(member, handle)
        for member, weight in weights.items():
            profile.add_to_group(member, handle, weight)
        profile.set_inactive(handle, frozenset())
        numbered.groups[number] = Group(handle, entry, watched)
        numbered.follow_ports()

    @staticmethod
    def _members(profile: Profile, entry: v1.ActionProfileGroup) -> tuple[dict[int, int], dict[int, int]]:
        """(handle → weight, handle → watched port) of a group's members. As in BMv2's server, a max_size of 0 stands
        for the profile's max_group_size, or for no limit."""
        limit = profile.item.max_group_size
        if entry.max_size < 0 or 0 < limit < entry.max_size:
            most = f"0 to {limit}" if limit else "0 or more"
            raise rpc_error("INVALID_ARGUMENT", f"max_size must be {most}, not {entry.max_size}")
        limit = entry.max_size or limit
        weights, watched = {}, {}
        for member in entry.members:
            handle = profile.member(member.member_id)
            port = watched_port(member)
            if port is not None:
                watched[handle] = port
            if handle in weights:
                raise rpc_error("INVALID_ARGUMENT", f"member {member.member_id} is twice in group {entry.group_id}")
            weights[handle] = profile.check_weight(member.weight)
        if limit and profile.size_of(list(weights.values())) > limit:
            raise rpc_error("RESOURCE_EXHAUSTED", f"group {entry.group_id} has room for {limit}")
        return weights, watched

    def follow_ports(self) -> None:
        """Update all profiles to the current state of the ports that members watch."""
        for profile in self.by_number.values():
            profile.follow_ports()

    def read_groups(self, pattern: v1.ActionProfileGroup) -> Iterator[v1.Entity]:
        for profile in self._selected(pattern.action_profile_id):
            for number, group in sorted(profile.groups.items()):
                if pattern.group_id in (0, number):
                    yield v1.Entity(action_profile_group=group.message)
