"""Idle time-outs of table entries, for those who report them."""

from emulator.p4switch.state.tables import MatchTable


class Ageing:
    """The entries of `table` to report: an entry is due when it was not hit for its time-out, and again after each
    further one, until it is hit or removed (P4Runtime 16.4, and BMv2)."""

    def __init__(self, table: MatchTable) -> None:
        self.table = table
        self._reported: dict[int, int] = {}

    def due(self) -> list[int]:
        """Handles, ascending, of the entries that are due since the last call."""
        expired = self.table.expired()
        due = [handle for handle, at in expired.items() if self._reported.get(handle) != at]
        self._reported = expired
        return sorted(due)
