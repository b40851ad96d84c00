"""The targets of table entries, and action profiles: members (an action with its arguments) that entries share, and
groups of members among which a selector's hash chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock

from emulator.p4switch.program import ir
from emulator.p4switch.state.handles import Handled, changing, locked
from switchml.errors import ControlError


def table_error(code: str, message: str) -> ControlError:
    """A ControlError of Thrift's TableOperationErrorCode (action profiles share it)."""
    return ControlError("Table", code, message)


@dataclass(frozen=True)
class RunAction:
    """Run an action (its index in Program.actions) with these arguments."""

    action: int
    args: tuple[int, ...] = ()


@dataclass(frozen=True)
class UseMember:
    """Run the action of a member of the table's action profile."""

    member: int


@dataclass(frozen=True)
class UseGroup:
    """Run the action of the member that the selector chooses from a group."""

    group: int


Target = RunAction | UseMember | UseGroup
"""The target of a table entry."""


class ActionOwner:
    """A table or an action profile, `title` in errors, which may run some `actions` of the program (their indices)."""

    def __init__(self, program: ir.Program, actions: Sequence[int], title: str) -> None:
        self.program = program
        self.actions = actions
        self.title = title

    def action(self, name: str) -> int:
        """The index of one of its actions. Raises INVALID_ACTION_NAME."""
        for index in self.actions:
            if self.program.actions[index].name == name:
                return index
        raise table_error("INVALID_ACTION_NAME", f"{self.title} has no action {name!r}")

    def check_action(self, run: RunAction) -> None:
        """Refuse an action that it does not have, or a wrong number of arguments."""
        if run.action not in self.actions:
            raise table_error("INVALID_ACTION_NAME", f"{self.title} does not have that action")
        action = self.program.actions[run.action]
        n = len(action.params)
        if len(run.args) != n:
            raise table_error("BAD_ACTION_DATA", f"action {action.name} takes {n} arguments, not {len(run.args)}")


@dataclass
class Member:
    """`uses`: entries and groups that refer to it."""

    run: RunAction
    uses: int = 0


@dataclass
class Group:
    """`members`: handle → weight; `uses`: entries that refer to it; `inactive`: members that are not eligible now."""

    members: dict[int, int] = field(default_factory=dict)
    uses: int = 0
    inactive: frozenset[int] = frozenset()

    def choices(self) -> list[int]:
        """The list that the hash indexes: active members in ascending order, each repeated by its weight."""
        active = (member for member in sorted(self.members) if member not in self.inactive)
        return [member for member in active for _ in range(self.members[member])]


class ActionProfile(ActionOwner):
    """`members` and `groups` by handle. `version` grows with each change. Tables count their uses with `use`."""

    def __init__(self, profile: ir.ActionProfile, program: ir.Program, lock: RLock) -> None:
        super().__init__(program, profile.actions, f"action profile {profile.name}")
        self.profile = profile
        self.name = profile.name
        self.lock = lock
        self.members: Handled[Member] = Handled()
        self.groups: Handled[Group] = Handled()
        self.version = 0

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

    @changing
    def add_member(self, run: RunAction) -> int:
        """A new member; returns its handle."""
        self.check_action(run)
        return self.members.add(Member(run))

    @changing
    def modify_member(self, handle: int, run: RunAction) -> None:
        self.check_action(run)
        self.member(handle).run = run

    @changing
    def delete_member(self, handle: int) -> None:
        """Remove a member that nothing uses."""
        if self.member(handle).uses:
            raise table_error("MBR_STILL_USED", f"member {handle} of {self.name} is still used")
        self.members.release(handle)

    @changing
    def create_group(self) -> int:
        """A new, empty group; returns its handle. As in BMv2, a profile without selector takes it, too; no entry can
        use it then."""
        return self.groups.add(Group())

    @changing
    def delete_group(self, handle: int) -> None:
        """Remove a group that no entry uses; its members stay."""
        group = self.group(handle)
        if group.uses:
            raise table_error("GRP_STILL_USED", f"group {handle} of {self.name} is still used")
        for member in group.members:
            self.members[member].uses -= 1
        self.groups.release(handle)

    @changing
    def add_to_group(self, member: int, group: int, weight: int = 1) -> None:
        profile_member = self.member(member)
        members = self.group(group).members
        if member in members:
            raise table_error("MBR_ALREADY_IN_GRP", f"member {member} is already in group {group} of {self.name}")
        if weight < 1:
            raise table_error("ERROR", f"a member's weight must be at least 1, not {weight}")
        members[member] = weight
        profile_member.uses += 1

    @changing
    def remove_from_group(self, member: int, group: int) -> None:
        profile_member = self.member(member)
        members = self.group(group).members
        if member not in members:
            raise table_error("MBR_NOT_IN_GRP", f"member {member} is not in group {group} of {self.name}")
        del members[member]
        profile_member.uses -= 1

    @locked
    def set_inactive(self, group: int, members: frozenset[int]) -> None:
        """Exclude members from the selector's choice in a group."""
        changed = self.group(group)
        if changed.inactive != members:
            changed.inactive = members
            self.version += 1

    @changing
    def restore(self, members: Mapping[int, RunAction], groups: Mapping[int, Mapping[int, int]]) -> None:
        """Replace all members, and all groups (handle → member → weight), before any entry uses them."""
        for run in members.values():
            self.check_action(run)
        self.members.restore({handle: Member(run) for handle, run in members.items()})
        self.groups.restore({handle: Group() for handle in groups})
        for group, weights in groups.items():
            for member, weight in weights.items():
                self.add_to_group(member, group, weight)

    def use(self, target: Target | None, by: int = 1) -> None:
        """Count references from a table, `by` more or fewer."""
        if isinstance(target, UseMember):
            self.member(target.member).uses += by
        elif isinstance(target, UseGroup):
            self.group(target.group).uses += by

    @changing
    def reset(self) -> None:
        self.members.clear()
        self.groups.clear()
