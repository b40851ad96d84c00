"""Settings that avoid long pauses in a process whose switch forwards packets: garbage collection of a large table, and
waiting for Python's global interpreter lock, would interrupt the traffic."""

import gc
import sys
from typing import Any

from emulator.p4switch.state.state import State
from emulator.p4switch.switch import Switch

SWITCH_INTERVAL_S = 0.0002
"""Interval after which a thread must release the interpreter lock to a waiting one, such as one with a packet; Python's
default is 5 ms."""
N_ADDED = 1000
"""Number of added entries and members after which they are exempted from garbage collection; it bounds the collector's
work."""


class _Frozen:
    """Observes tables and action profiles, and exempts their entries from garbage collection. Entries live until they
    are deleted, and scanning 100,000 of them takes a second."""

    def __init__(self) -> None:
        self._n_added = 0

    def added(self, *_: Any) -> None:
        self._n_added += 1
        if self._n_added == N_ADDED:
            self._n_added = 0
            gc.freeze()

    member_changed = added

    def nothing(self, *_: Any) -> None: ...

    removed = target_changed = default_changed = cleared = group_changed = nothing


def avoid_pauses(switch: Switch) -> None:
    """Apply these settings to a switch and its future programs."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    switch.on_load.append(_watch)
    _watch(switch.state)


def _watch(state: State) -> None:
    """Observe the state of a program; the previous program's state is collected."""
    observer = _Frozen()
    for table in state.tables:
        table.observers.append(observer)
    for profile in state.action_profiles:
        profile.observers.append(observer)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
