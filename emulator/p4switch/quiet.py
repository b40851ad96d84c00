"""A process in which a switch forwards has no long pauses: what a large table takes of Python's garbage collector, and
of the lock that its threads share, would be gaps in the traffic."""

import gc
import sys
from typing import Any

from emulator.p4switch.state.state import State
from emulator.p4switch.switch import Switch

SWITCH_INTERVAL_S = 0.0002
"""How long another thread may keep one that has a packet waiting; Python's own is 5 ms."""
N_ADDED = 1000
"""Entries and members after which they are taken from the collector: few enough that it looks at no more."""


class _Frozen:
    """Observes tables and action profiles. Their entries live until they are deleted, so the collector need not look
    at them again and again: a second at 100,000 entries."""

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


def keep_quiet(switch: Switch) -> None:
    """Do so from now on."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    switch.on_load.append(_watch)
    _watch(switch.state)


def _watch(state: State) -> None:
    """Do so for the state of a program; that of the one before is collected."""
    observer = _Frozen()
    for table in state.tables:
        table.observers.append(observer)
    for profile in state.action_profiles:
        profile.observers.append(observer)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
