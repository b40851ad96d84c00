"""Host backends with an accelerator's tensors, such as Gloo: one annotation covers the wait for the copy to the host,
the communication, and the launch of the copy back. Only the middle part counts as communication.
"""

import dataclasses

import numpy as np

from emulator.traces.events import NONE, LaneKind, RankTrace, What
from emulator.traces.readers.tables import in_order, table

_SLACK_S = 2e-6
_LATE_S = 5e-5
"""Maximum delay with which an agent may log the end of a collective after a waiting thread has resumed."""
_OF_TRAINING = ("ProfilerStep", "autograd::engine")
"""Name prefixes that occur only on training threads."""


def without_copies(trace: RankTrace) -> RankTrace:
    """Return `trace` with each transport communication that waits for a device, or launches work on one, reduced to the
    part in between. Calls of its thread become scopes; causes bypass them."""
    events = trace.events
    start_s, end_s, what = events.start_s.copy(), events.end_s, events.what.copy()
    lane_kind = trace.lane_kind
    works = np.flatnonzero((lane_kind == LaneKind.TRANSPORT) & (events.collective > 0))
    work = _inside(events.parent, works)
    child = _inside(events.parent, np.flatnonzero(np.isin(events.parent, works)), itself=True)
    waits, launches = (np.flatnonzero((work != NONE) & (what == each)) for each in (What.SYNC, What.LAUNCH))
    if not len(waits) and not len(launches):
        return trace
    np.minimum.at(end_s, work[launches], events.start_s[child[launches]])
    waits = waits[events.end_s[waits] <= end_s[work[waits]]]
    np.maximum.at(start_s, work[waits], events.end_s[waits])
    end_s = np.maximum(end_s, start_s)
    what[(lane_kind == LaneKind.TRANSPORT) & (events.collective == 0)] = What.SCOPE

    causes = trace.causes.astype(np.int64)
    cause, caused = causes.T
    down = _copies_down(trace, works, start_s)
    causes[np.isin(caused, waits), 1] = work[caused[np.isin(caused, waits)]]
    causes[np.isin(cause, launches), 0] = work[cause[np.isin(cause, launches)]]
    causes = np.unique(np.concatenate([causes, down]), axis=0)

    order = in_order(events.lane, start_s, end_s - start_s)
    columns = vars(events) | {"what": what, "start_s": start_s, "duration_s": end_s - start_s}
    events = table(**{name: column[order] for name, column in columns.items() if name != "parent"})
    return dataclasses.replace(trace, events=events, causes=np.argsort(order)[causes].astype(np.int32))


def by_agents(trace: RankTrace) -> RankTrace:
    """Return `trace` with the equivalent causes for communication by switchml agents: one thread waits for copies down
    and submits, others launch copies up once a collective has ended. Calls of such threads become scopes."""
    events, end_s = trace.events, trace.events.end_s
    lane_kind = trace.lane_kind
    works = np.flatnonzero((lane_kind == LaneKind.TRANSPORT) & (events.what == What.COLLECTIVE))
    works = works[np.argsort(end_s[works], kind="stable")]
    causes = trace.causes.astype(np.int64)
    cause, caused = causes.T
    trains = np.array([name.startswith(_OF_TRAINING) for name in trace.names], bool)[events.name]
    trains |= (events.what == What.LAUNCH) & np.isin(np.arange(len(events)), cause[np.isin(caused, works)])
    is_ours = lane_kind == LaneKind.HOST
    is_ours &= ~np.isin(events.lane, np.unique(events.lane[trains]))
    is_up = is_ours[cause] & (events.what[cause] == What.LAUNCH) & (lane_kind[caused] == LaneKind.DEVICE)
    place = np.searchsorted(end_s[works], events.start_s[cause[is_up]] + _LATE_S, side="right") - 1
    if not is_up.any() or np.any(place < 0):
        return trace
    causes[is_up, 0] = works[place]
    causes = np.unique(np.concatenate([causes, _copies_down(trace, works, events.start_s)]), axis=0)
    calls = is_ours & np.isin(events.lane, events.lane[is_ours & np.isin(events.what, (What.LAUNCH, What.SYNC))])
    what = np.where(calls, What.SCOPE, events.what).astype(np.int8)
    return dataclasses.replace(trace, events=dataclasses.replace(events, what=what), causes=causes.astype(np.int32))


def _copies_down(trace: RankTrace, works: np.ndarray, start_s: np.ndarray) -> np.ndarray:
    """Return copies launched by the call that launched each of `works`, and that work, if it began later, int64 (pairs,
    2)."""
    events = trace.events
    cause, caused = trace.causes.astype(np.int64).T
    lane_kind = trace.lane_kind
    sets_going = np.isin(caused, works) & (events.what[cause] == What.LAUNCH)
    set_going = np.full(len(events), NONE, np.int64)
    set_going[cause[sets_going]] = caused[sets_going]
    call = _inside(events.parent, cause[sets_going], itself=True)
    is_down = (call[cause] != NONE) & (lane_kind[caused] == LaneKind.DEVICE)
    down, of = caused[is_down], set_going[call[cause[is_down]]]
    is_over = events.end_s[down] <= start_s[of] + _SLACK_S
    return np.stack([down[is_over], of[is_over]], axis=1)


def _inside(parent: np.ndarray, outer: np.ndarray, *, itself: bool = False) -> np.ndarray:
    """Return the innermost of the events `outer` that encloses each event, or equals it if `itself`, int64 (events,);
    else NONE."""
    is_outer = np.zeros(len(parent), bool)
    is_outer[outer] = True
    within: list[int] = []
    around: list[int] = []
    for event, (above, counts) in enumerate(zip(parent.tolist(), is_outer.tolist(), strict=True)):
        around.append(within[above] if above != NONE else NONE)
        within.append(event if counts else around[-1])
    return np.array(within if itself else around, np.int64)
