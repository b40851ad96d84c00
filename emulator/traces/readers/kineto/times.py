"""Times that can't be: profilers have written kernels of another century, that last less than nothing or that begin
before their launch. Such events are left out, by name; where all of a device's clock is off, its times are shifted.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from emulator.traces.events import NONE
from emulator.traces.readers.kineto.processes import launches

LONGEST_US = 3.6e9
"""Longer than that nothing in a profile lasts, and nobody profiles an idle program."""
SLACK_US = 2.0
"""Old traces round to whole microseconds."""
ALIKE_US = 50.0
"""Events that begin before their launches by so nearly the same share the cause, a clock that is off: what an idle
device begins with comes so soon after its launch."""
_MOST_NAMES = 3


class Times:
    """Which of a part's events have times that can be: `possible`, bool (events,). `columns`: as of `Table`; a device's
    clock is put right in them. `notes`: what was done, by the name of a note in `RankTrace.about`."""

    def __init__(self, columns: dict[str, np.ndarray], names: list[str], is_call: np.ndarray, is_work: np.ndarray):
        """names: by kind. is_call, is_work: bool (events,), runtime calls and what runs on a device."""
        self._columns, self._names = columns, names
        self.possible = np.ones(len(columns["ts"]), bool)
        self.notes: dict[str, str] = {}
        self._dropped: list[str] = []
        if not len(self.possible):
            return
        ts, dur = columns["ts"], columns["dur"]
        with np.errstate(invalid="ignore"):
            self._drop(~(np.isfinite(ts) & np.isfinite(dur)), "have no finite times")
            self._drop(dur < 0, "last less than nothing")
            self._drop(dur > LONGEST_US, "last longer than an hour")
        self._drop(self._far_off(~is_work), "begin over an hour from all others")
        self._before_launch(launches(columns["correlation"], is_call & self.possible, is_work & self.possible))
        if self._dropped:
            self.notes["dropped"] = "; ".join(self._dropped)

    def _drop(self, chosen: np.ndarray, why: str) -> None:
        chosen = np.flatnonzero(chosen & self.possible)
        if not len(chosen):
            return
        self.possible[chosen] = False
        counts = Counter(self._names[kind] for kind in self._columns["kind"][chosen].tolist())
        named = [name if len(name) <= 60 else name[:59] + "…" for name, _ in counts.most_common(_MOST_NAMES)]
        names = ", ".join(named) + (", …" if len(counts) > _MOST_NAMES else "")
        if len(chosen) == 1:
            why = (
                why.replace("have ", "has ")
                .replace("last ", "lasts ")
                .replace("begin ", "begins ")
                .replace("their", "its")
            )
        self._dropped.append(f"{len(chosen)} event{'s' * (len(chosen) > 1)} that {why} ({names})")

    def _far_off(self, on_host: np.ndarray) -> np.ndarray:
        """bool (events,): not within an hour of another of those where most of the host's are."""
        ts = np.where(self.possible, self._columns["ts"], np.nan)
        order = np.argsort(ts, kind="stable")[: np.count_nonzero(self.possible)]
        if not len(order):
            return np.zeros(len(ts), bool)
        bursts = np.split(order, np.flatnonzero(np.diff(ts[order]) > LONGEST_US) + 1)
        chosen = np.zeros(len(ts), bool)
        chosen[max(bursts, key=lambda burst: (np.count_nonzero(on_host[burst]), len(burst)))] = True
        return ~chosen

    def _before_launch(self, launch: np.ndarray) -> None:
        """Of each device's clock."""
        ts, lane = self._columns["ts"], self._columns["lane"]
        works = np.flatnonzero(launch != NONE)
        lead_us = ts[launch[works]] - ts[works]
        order = np.argsort(-lead_us, kind="stable")
        works, lead_us = works[order], lead_us[order]
        alone = 0
        while alone < len(works) and lead_us[alone] > SLACK_US:
            alike = np.count_nonzero(lead_us >= lead_us[alone] - ALIKE_US) - alone
            if alike > 1:
                break
            alone += 1
        early = np.zeros(len(ts), bool)
        early[works[:alone]] = True
        self._drop(early, "begin before their launch")
        if alone < len(works) and (shift_us := float(lead_us[alone])) > SLACK_US:
            moved = np.isin(lane, np.unique(lane[works]))
            self._columns["ts"] = np.where(moved & self.possible, ts + shift_us, ts)
            self.notes["clock"] = (
                f"work on its device begins up to {shift_us:,.0f} µs before its launch: the device's clock is taken to "
                "be off by that"
            )
