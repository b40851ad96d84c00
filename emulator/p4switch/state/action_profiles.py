"""Targets of table entries, and action profiles: members (an action with its arguments) that entries share, and groups
of members from which a selector's hash chooses."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

from emulator.p4switch.program import ir
from emulator.p4switch.state.handles import HandleTable, locked
from switchml.errors import ControlError


def table_error(code: str, message: str) -> ControlError:
    """A ControlError with a code of Thrift's TableOperationErrorCode (action profiles share it)."""
    return ControlError("Table", code, message)


@dataclass(frozen=True)
class RunAction:
    """Target: run an action (its index in Program.actions) with these arguments."""

    action: int
    args: tuple[int, ...] = ()


@dataclass(frozen=True)
class UseMember:
    """Target: run the action of a member of the table's action profile."""

    member: int


@dataclass(frozen=True)
class UseGroup:
    """Target: run the action of the member that the selector chooses from a group."""

    group: int


Target = RunAction | UseMember | UseGroup
"""The target of a table entry."""


class ActionOwner:
    """A table or an action profile, called `title` in errors, which may run the program's actions with the indices
    `actions`."""

    def __init__(self, program: ir.Program, actions: Sequence[int], title: str) -> None:
        self.program = program
        self.actions = actions
        self.title = title

    def action(self, name: str) -> int:
        """Index of one of its actions, by name. Raises INVALID_ACTION_NAME."""
        for index in self.actions:
            if self.program.actions[index].name == name:
                return index
        raise table_error("INVALID_ACTION_NAME", f"{self.title} has no action {name!r}")

    def check_action(self, run: RunAction) -> None:
        """Reject an action that is not in its list, or a wrong number of arguments."""
        if run.action not in self.actions:
            raise table_error("INVALID_ACTION_NAME", f"{self.title} does not have that action")
        action = self.program.actions[run.action]
        n = len(action.params)
        if len(run.args) != n:
            raise table_error("BAD_ACTION_DATA", f"action {action.name} takes {n} arguments, not {len(run.args)}")


@dataclass
class Member:
    """A member. `uses`: number of entries and groups that refer to it."""

    run: RunAction
    uses: int = 0


class Group:
    """A group. `members`: handle → weight; `uses`: number of entries that refer to it; `inactive`: members that are
    currently excluded. `eligible`: the array that the hash indexes, shared with the engines: active members in
    ascending order, each repeated by its weight."""

    def __init__(self) -> None:
        self.members: dict[int, int] = {}
        self.uses = 0
        self.inactive: frozenset[int] = frozenset()
        self.eligible = array("q")

    def add(self, member: int, weight: int) -> None:
        self.members[member] = weight
        if member not in self.inactive:
            self._insert(member)

    def remove(self, member: int) -> None:
        del self.members[member]
        self._exclude(member)

    def set_inactive(self, members: frozenset[int]) -> None:
        before, self.inactive = self.inactive, members
        for member in members - before:
            self._exclude(member)
        for member in before - members:
            if member in self.members:
                self._insert(member)

    def _insert(self, member: int) -> None:
        at = bisect_left(self.eligible, member)
        self.eligible[at:at] = array("q", [member]) * self.members[member]

    def _exclude(self, member: int) -> None:
        del self.eligible[bisect_left(self.eligible, member) : bisect_right(self.eligible, member)]


class ProfileObserver(Protocol):
    """An engine that stores the profile in another format. Called under the profile's lock, after a change."""

    def member_changed(self, handle: int) -> None:
        """A member was added, or its action was changed."""

    def group_changed(self, handle: int) -> None:
        """The members of a group, or the eligible ones, have changed."""


class ActionProfile(ActionOwner):
    """An action profile. `members` and `groups` by handle. `observers` are called after each change. Tables count their
    references with `use`."""

    def __init__(self, profile: ir.ActionProfile, program: ir.Program, lock: RLock) -> None:
        super().__init__(program, profile.actions, f"action profile {profile.name}")
        self.profile = profile
        self.name = profile.name
        self.lock = lock
        self.members: HandleTable[Member] = HandleTable()
        self.groups: HandleTable[Group] = HandleTable()
        self.observers: list[ProfileObserver] = []

    @property
    def has_selector(self) -> bool:
        """Whether entries may refer to groups."""
        return self.profile.selector is not None

    @locked
    def member(self, handle: int) -> Member:
        """A member. Raises INVALID_MBR_HANDLE."""
        if handle not in self.members:
            raise table_error("INVALID_MBR_HANDLE", f"{self.title} has no member {handle}")
        return self.members[handle]

    @locked
    def group(self, handle: int) -> Group:
        """A group. Raises INVALID_GRP_HANDLE."""
        if handle not in self.groups:
            raise table_error("INVALID_GRP_HANDLE", f"{self.title} has no group {handle}")
        return self.groups[handle]

    def _member_changed(self, handle: int) -> None:
        for observer in self.observers:
            observer.member_changed(handle)

    def _group_changed(self, handle: int) -> None:
        for observer in self.observers:
            observer.group_changed(handle)

    @locked
    def add_member(self, run: RunAction) -> int:
        """Add a member; returns its handle."""
        self.check_action(run)
        handle = self.members.add(Member(run))
        self._member_changed(handle)
        return handle

    @locked
    def modify_member(self, handle: int, run: RunAction) -> None:
        self.check_action(run)
        self.member(handle).run = run
        self._member_changed(handle)

    @locked
    def delete_member(self, handle: int) -> None:
        """Delete an unused member."""
        if self.member(handle).uses:
            raise table_error("MBR_STILL_USED", f"member {handle} of {self.name} is still used")
        self.members.release(handle)

    @locked
    def create_group(self) -> int:
        """Create an empty group; returns its handle. As in BMv2, this is also possible in a profile without selector,
        where no entry can use it."""
        handle = self.groups.add(Group())
        self._group_changed(handle)
        return handle

    @locked
    def delete_group(self, handle: int) -> None:
        """Delete an unused group; its members remain."""
        group = self.group(handle)
        if group.uses:
            raise table_error("GRP_STILL_USED", f"group {handle} of {self.name} is still used")
        for member in group.members:
            self.members[member].uses -= 1
        self.groups.release(handle)

    @locked
    def add_to_group(self, member: int, group: int, weight: int = 1) -> None:
        profile_member = self.member(member)
        changed = self.group(group)
        if member in changed.members:
            raise table_error("MBR_ALREADY_IN_GRP", f"member {member} is already in group {group} of {self.name}")
        if weight < 1:
            raise table_error("ERROR", f"a member's weight must be at least 1, not {weight}")
        changed.add(member, weight)
        profile_member.uses += 1
        self._group_changed(group)

    @locked
    def remove_from_group(self, member: int, group: int) -> None:
        profile_member = self.member(member)
        changed = self.group(group)
        if member not in changed.members:
            raise table_error("MBR_NOT_IN_GRP", f"member {member} is not in group {group} of {self.name}")
        changed.remove(member)
        profile_member.uses -= 1
        self._group_changed(group)

    @locked
    def set_inactive(self, group: int, members: frozenset[int]) -> None:
        """Exclude members of a group from the selector's choice."""
        changed = self.group(group)
        if changed.inactive != members:
            changed.set_inactive(members)
            self._group_changed(group)

    @locked
    def restore(self, members: Mapping[int, RunAction], groups: Mapping[int, Mapping[int, int]]) -> None:
        """Replace all members, and all groups (handle → member → weight), before any entry uses them."""
        for run in members.values():
            self.check_action(run)
        self.members.restore({handle: Member(run) for handle, run in members.items()})
        for handle in members:
            self._member_changed(handle)
        self.groups.restore({handle: Group() for handle in groups})
        for handle in groups:
            self._group_changed(handle)
        for group, weights in groups.items():
            for member, weight in weights.items():
                self.add_to_group(member, group, weight)

    def use(self, target: Target | None, by: int = 1) -> None:
        """Change the reference count of a target by `by`."""
        if isinstance(target, UseMember):
            self.member(target.member).uses += by
        elif isinstance(target, UseGroup):
            self.group(target.group).uses += by

    @locked
    def reset(self) -> None:
        self.members.clear()
        self.groups.clear()
