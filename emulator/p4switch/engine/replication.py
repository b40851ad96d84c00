"""Multicast groups and mirroring sessions in the VM's format: a row for each number, rewritten when the group or
session changes."""

import numpy as np

from emulator.p4switch.state.replication import MAX_SESSION, Mirroring, Replication

MAX_GROUPS = 1 << 16
"""Number of multicast groups: group ids have 16 bits."""


class Groups:
    """`rows`: int64[MAX_GROUPS, 2], the address and number of each group's copies."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication
        self.rows = np.zeros((MAX_GROUPS, 2), dtype=np.int64)
        self._copies: dict[int, np.ndarray] = {}
        for mgid in replication.groups:
            self.change(mgid)
        replication.observers.append(self.change)

    def change(self, mgid: int) -> None:
        if not 0 <= mgid < MAX_GROUPS:
            return
        copies = self._replication.copies(mgid)
        if not copies:
            self.rows[mgid] = 0
            self._copies.pop(mgid, None)
            return
        self._copies[mgid] = rows = np.array(copies, dtype=np.int64)
        self.rows[mgid] = rows.ctypes.data, len(rows)


class Sessions:
    """`rows`: int64[MAX_SESSION + 1, 3], whether there is a session, its port and its group (-1: none)."""

    def __init__(self, mirroring: Mirroring) -> None:
        self._mirroring = mirroring
        self.rows = np.zeros((MAX_SESSION + 1, 3), dtype=np.int64)
        for number in mirroring.sessions:
            self.change(number)
        mirroring.observers.append(self.change)

    def change(self, number: int) -> None:
        session = self._mirroring.sessions.get(number)
        port, group = (None, None) if session is None else (session.port, session.mgid)
        self.rows[number] = session is not None, -1 if port is None else port, -1 if group is None else group
