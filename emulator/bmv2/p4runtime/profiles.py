"""Action profiles (section 9.2): members and groups, whose ids the controller chooses, and action sets that a table entry
brings along (one-shot programming, 9.2.3), for which members and a group are made and removed with the entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from emulator.bmv2.action_profiles import ActionProfile, RunAction, Target, UseGroup
from emulator.bmv2.p4runtime.actions import run_action, tell_action
from emulator.bmv2.p4runtime.p4info import Info
from emulator.bmv2.p4runtime.protos import messages
from emulator.bmv2.p4runtime.values import Code, Refused, invalid, not_found
from emulator.bmv2.tables import MatchTable

INSERT, MODIFY, DELETE = 1, 2, 3


class Profiles:
    """`members` and `groups`: (profile's name, id) → handle."""

    def __init__(self, info: Info) -> None:
        self.info = info
        self.members: dict[tuple[str, int], int] = {}
        self.groups: dict[tuple[str, int], int] = {}
        self._one_shot: dict[tuple[str, int], list[int]] = {}

    def _profile(self, number: int) -> tuple[Any, ActionProfile]:
        found = self.info.get("action_profiles", number)
        return found, self.info.state.action_profile(found.preamble.name)

    def member(self, profile: int, number: int) -> int:
        """The handle of a member."""
        return self._handle(self.members, profile, number, "member")

    def group(self, profile: int, number: int) -> int:
        """The handle of a group."""
        return self._handle(self.groups, profile, number, "group")

    def _handle(self, handles: dict, profile: int, number: int, sort: str) -> int:
        name = self._profile(profile)[1].name
        if (name, number) not in handles:
            raise not_found(f"action profile {name} has no {sort} {number}")
        return handles[name, number]

    def member_id(self, table: MatchTable, handle: int) -> int:
        """The id of a member that an entry of a table uses."""
        return self._id(self.members, table, handle)

    def group_id(self, table: MatchTable, handle: int) -> int:
        """The id of a group that an entry of a table uses."""
        return self._id(self.groups, table, handle)

    @staticmethod
    def _id(handles: dict, table: MatchTable, handle: int) -> int:
        for (name, number), found in handles.items():
            if name == table.profile.name and found == handle:
                return number
        return 0  # made through Thrift

    # Action sets

    def one_shot(self, table: MatchTable, runs: Sequence[tuple[RunAction, int]]) -> Target:
        """Make members and a group for an action set."""
        profile = table.profile
        if profile is None or not profile.has_selector:
            raise invalid(f"table {table.name} has no action selector")
        if not runs or any(weight < 1 for _, weight in runs):
            raise invalid(f"table {table.name}: an action set needs actions, each with a positive weight")
        group = profile.create_group()
        members = []
        for run, weight in runs:
            members.append(profile.add_member(run))
            profile.add_to_group(members[-1], group, weight)
        self._one_shot[profile.name, group] = members
        return UseGroup(group)

    def drop(self, table: MatchTable, target: Target) -> None:
        """Remove what was made for an action set that is not used any more."""
        if isinstance(target, UseGroup) and (table.profile.name, target.group) in self._one_shot:
            members = self._one_shot.pop((table.profile.name, target.group))
            table.profile.delete_group(target.group)
            for member in members:
                table.profile.delete_member(member)

    # Entities

    def write_member(self, kind: int, entity: Any) -> None:
        """INSERT, MODIFY or DELETE an ActionProfileMember."""
        described, profile = self._profile(entity.action_profile_id)
        key = profile.name, entity.member_id
        if kind == INSERT:
            if key in self.members:
                raise Refused(Code.ALREADY_EXISTS, f"action profile {profile.name} has member {key[1]} already")
            self.members[key] = profile.add_member(self._run(described, profile, entity.action))
        elif kind == MODIFY:
            profile.modify_member(self.member(entity.action_profile_id, key[1]), self._run(described, profile, entity.action))
        else:
            profile.delete_member(self.member(entity.action_profile_id, key[1]))
            del self.members[key]

    def _run(self, described: Any, profile: ActionProfile, action: Any) -> RunAction:
        table = self.info.get("tables", described.table_ids[0])
        return run_action(self.info, table, profile, action)

    def write_group(self, kind: int, entity: Any) -> None:
        """INSERT, MODIFY or DELETE an ActionProfileGroup."""
        _, profile = self._profile(entity.action_profile_id)
        key = profile.name, entity.group_id
        if kind == INSERT:
            if key in self.groups:
                raise Refused(Code.ALREADY_EXISTS, f"action profile {profile.name} has group {key[1]} already")
            members = self._weights(entity)
            self.groups[key] = profile.create_group()
            self._fill(profile, self.groups[key], members)
        elif kind == MODIFY:
            self._fill(profile, self.group(entity.action_profile_id, key[1]), self._weights(entity))
        else:
            profile.delete_group(self.group(entity.action_profile_id, key[1]))
            del self.groups[key]

    def _weights(self, entity: Any) -> dict[int, int]:
        """Handle → weight of a group's members."""
        weights = {self.member(entity.action_profile_id, item.member_id): item.weight for item in entity.members}
        if len(weights) < len(entity.members):
            raise invalid(f"group {entity.group_id}: a member is given twice")
        if any(weight < 1 for weight in weights.values()):
            raise invalid(f"group {entity.group_id}: weights must be positive")
        return weights

    @staticmethod
    def _fill(profile: ActionProfile, group: int, weights: dict[int, int]) -> None:
        with profile.lock:
            for member in list(profile.group(group).members):
                profile.remove_from_group(member, group)
            for member, weight in weights.items():
                profile.add_to_group(member, group, weight)

    def read_members(self, wanted: Any) -> Iterator[Any]:
        """The members that match (0: all)."""
        for described, (name, number), handle in self._all(self.members, wanted.action_profile_id, wanted.member_id):
            told = messages().ActionProfileMember(action_profile_id=described.preamble.id, member_id=number)
            tell_action(self.info, told.action, self.info.state.action_profile(name).member(handle).run)
            yield told

    def read_groups(self, wanted: Any) -> Iterator[Any]:
        """The groups that match (0: all)."""
        for described, (name, number), handle in self._all(self.groups, wanted.action_profile_id, wanted.group_id):
            told = messages().ActionProfileGroup(action_profile_id=described.preamble.id, group_id=number)
            told.max_size = described.max_group_size
            ids = {found: key[1] for key, found in self.members.items() if key[0] == name}
            for member, weight in self.info.state.action_profile(name).group(handle).members.items():
                told.members.add(member_id=ids.get(member, 0), weight=weight)
            yield told

    def _all(self, handles: dict, profile: int, number: int) -> Iterator[tuple[Any, tuple[str, int], int]]:
        for described in self.info.all("action_profiles", profile):
            name = described.preamble.name
            if number and (name, number) not in handles:
                raise not_found(f"action profile {name} has no {number}")
            for key, handle in sorted(handles.items()):
                if key[0] == name and number in (0, key[1]):
                    yield described, key, handle


