"""Detects impossible times: profilers have written kernels with absurd timestamps, negative durations, or a start
before their launch. Such events are omitted, with a note; if a device's whole clock is off, its times are shifted.
"""

from collections import Counter

import numpy as np

from emulator.traces.events import NONE
from emulator.traces.readers.kineto.processes import launches

LONGEST_US = 3.6e9
"""Maximum duration of an event, and maximum gap without any event."""
SLACK_US = 2.0
"""Old traces are rounded to whole microseconds."""
ALIKE_US = 50.0
"""If several events precede their launches by nearly the same time, the clock is off."""
_MAX_NAMES = 3


def check_times(
    columns: dict[str, np.ndarray], names: list[str], is_call: np.ndarray, is_work: np.ndarray
) -> tuple[np.ndarray, dict[str, str]]:
    """Return which events have possible times, bool (events,), and notes on corrections by their key in
    `RankTrace.about`. `columns`: of `Table`; a device's clock is corrected in them. `names`: by kind. `is_call`,
    `is_work`: bool (events,), runtime calls and device events."""
    possible, dropped, notes = np.ones(len(columns["ts"]), bool), [], {}

    def drop(chosen: np.ndarray, why: str, of_one: str) -> None:
        events = np.flatnonzero(chosen & possible)
        if len(events):
            possible[events] = False
            kinds = Counter(names[kind] for kind in columns["kind"][events].tolist())
            dropped.append(_dropped(len(events), kinds, why if len(events) > 1 else of_one))

    ts, dur = columns["ts"], columns["dur"]
    with np.errstate(invalid="ignore"):
        drop(~(np.isfinite(ts) & np.isfinite(dur)), "have no finite times", "has no finite times")
        drop(dur < 0, "last less than nothing", "lasts less than nothing")
        drop(dur > LONGEST_US, "last longer than an hour", "lasts longer than an hour")
    drop(_far_off(ts, possible, ~is_work), "begin over an hour from all others", "begins over an hour from all others")
    launch = launches(columns["correlation"], is_call & possible, is_work & possible)
    early, shift_us = _before_launch(ts, launch)
    drop(early, "begin before their launch", "begins before its launch")
    if shift_us:
        moved = np.isin(columns["lane"], np.unique(columns["lane"][launch != NONE]))
        columns["ts"] = np.where(moved & possible, ts + shift_us, ts)
        notes["clock"] = (
            f"work on its device begins up to {shift_us:,.0f} µs before its launch: the device's clock is taken to be "
            "off by that"
        )
    return possible, notes | ({"dropped": "; ".join(dropped)} if dropped else {})


def _dropped(count: int, kinds: Counter[str], why: str) -> str:
    names = [name if len(name) <= 60 else name[:59] + "…" for name, _ in kinds.most_common(_MAX_NAMES)]
    listed = ", ".join(names) + (", …" if len(kinds) > _MAX_NAMES else "")
    return f"{count} event{'s' * (count > 1)} that {why} ({listed})"


def _far_off(ts: np.ndarray, possible: np.ndarray, on_host: np.ndarray) -> np.ndarray:
    """Return events that are not within an hour of the cluster that contains most of the host's, bool (events,)."""
    order = np.argsort(np.where(possible, ts, np.nan), kind="stable")[: np.count_nonzero(possible)]
    if not len(order):
        return np.zeros(len(ts), bool)
    bursts = np.split(order, np.flatnonzero(np.diff(ts[order]) > LONGEST_US) + 1)
    chosen = np.zeros(len(ts), bool)
    chosen[max(bursts, key=lambda burst: (np.count_nonzero(on_host[burst]), len(burst)))] = True
    return ~chosen


def _before_launch(ts: np.ndarray, launch: np.ndarray) -> tuple[np.ndarray, float]:
    """Return single events that begin before their launches, bool (events,), and the offset of the device's clock, 0 if
    it is correct."""
    works = np.flatnonzero(launch != NONE)
    lead_us = ts[launch[works]] - ts[works]
    order = np.argsort(-lead_us, kind="stable")
    works, lead_us = works[order], lead_us[order]
    alone = 0
    while alone < len(works) and lead_us[alone] > SLACK_US:
        if np.count_nonzero(lead_us >= lead_us[alone] - ALIKE_US) - alone > 1:
            break
        alone += 1
    early = np.zeros(len(ts), bool)
    early[works[:alone]] = True
    return early, float(lead_us[alone]) if alone < len(works) and lead_us[alone] > SLACK_US else 0.0
