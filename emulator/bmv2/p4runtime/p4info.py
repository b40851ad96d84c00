"""A P4Info with the state of the program that it describes: P4Runtime's ids on one side, our tables and arrays on the
other. Objects have the same names in both."""

from __future__ import annotations

from typing import Any

from emulator.bmv2.p4runtime.values import invalid, not_found
from emulator.bmv2.state import State
from emulator.bmv2.tables import MatchTable

EXACT, LPM, TERNARY, RANGE, OPTIONAL = 2, 3, 4, 5, 6
"""Values of p4.config.v1.MatchField.MatchType."""

_LISTS = (
    "tables", "actions", "action_profiles", "counters", "direct_counters", "meters", "direct_meters", "registers",
    "digests", "value_sets", "controller_packet_metadata",
)  # fmt: skip


class Info:
    """Looks objects up by id. All methods raise Refused for what the P4Info does not have."""

    def __init__(self, p4info: Any, state: State) -> None:
        self.p4info = p4info
        self.state = state
        self._by_id = {name: {obj.preamble.id: obj for obj in getattr(p4info, name)} for name in _LISTS}
        self._by_name = {name: {obj.preamble.name: obj for obj in getattr(p4info, name)} for name in _LISTS}
        self._state_tables = {table.name: table for table in state.tables}
        for name in self._by_name["tables"]:
            if name not in self._state_tables:
                raise invalid(f"the program has no table {name!r}, but the P4Info has")

    def get(self, sort: str, number: int) -> Any:
        """The P4Info's object of a sort (the name of a list of P4Info) with an id."""
        found = self._by_id[sort].get(number)
        if found is None:
            raise not_found(f"there is no {sort.removesuffix('s').replace('_', ' ')} with id {number:#x}")
        return found

    def all(self, sort: str, number: int) -> list:
        """The object with an id, or all if it is 0 (a wildcard)."""
        return [self.get(sort, number)] if number else list(self._by_id[sort].values())

    def named(self, sort: str, name: str) -> Any | None:
        """The object with a name, if there is one."""
        return self._by_name[sort].get(name)

    def table(self, number: int) -> tuple[Any, MatchTable]:
        """A table: P4Info's and ours."""
        found = self.get("tables", number)
        return found, self._state_tables[found.preamble.name]

    def action(self, table: Any, number: int) -> Any:
        """An action of a P4Info table or action profile's table."""
        if number not in {ref.id for ref in table.action_refs}:
            raise invalid(f"table {table.preamble.name} has no action with id {number:#x}")
        return self.get("actions", number)

    def tables_of_profile(self, number: int) -> list[Any]:
        """The tables that an action profile is for."""
        return [self.get("tables", table) for table in self.get("action_profiles", number).table_ids]

    def direct(self, sort: str, table: Any) -> Any | None:
        """The direct counter or meter (a name of a list of P4Info) of a table."""
        for obj in self._by_id[sort].values():
            if obj.direct_table_id == table.preamble.id:
                return obj
        return None
