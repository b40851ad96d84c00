"""Idle timeouts of table entries, for components that report them."""

from emulator.p4switch.state.tables import MatchTable


class Ageing:
    """Finds the entries of `table` to be reported: an entry is due when it was not hit for its timeout, and again after
    each further timeout, until it is hit or removed (P4Runtime 16.4, and BMv2)."""

    def __init__(self, table: MatchTable) -> None:
        self.table = table
        self._reported: dict[int, int] = {}

    def due(self) -> list[int]:
        """Handles, in ascending order, of the entries that became due since the last call."""
        expired = self.table.expired()
        due = [handle for handle, at in expired.items() if self._reported.get(handle) != at]
        self._reported = expired
        return sorted(due)
