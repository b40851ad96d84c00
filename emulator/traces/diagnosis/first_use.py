"""Cost of first calls: CUDA loads modules at first launch, libraries create handles, the first operator a context."""

import numpy as np

from emulator.traces.diagnosis.context import DiagnosisContext, Iterations
from emulator.traces.events import NONE, LaneKind, What
from emulator.traces.joined import GAP

TIMES = 10.0
"""Minimum ratio of a first call's duration to the usual one of its name."""
MIN_S = 1e-4
LAUNCH_S = 2e-5
"""Maximum duration of a launch if no other call is available for comparison: 3 to 12 µs in published traces of V100,
A100, MI250 and H200."""
MIN_OTHERS = 3
"""Minimum number of other calls of a name to determine the usual duration."""


def usual_s(context: DiagnosisContext) -> np.ndarray:
    """Return `own_s` with first calls that load something at their usual duration, float64 (ops,)."""
    own_s = context.own_s.copy()
    for rank, each in enumerate(context.iterations):
        excess = _excess(each)
        if not len(excess):
            continue
        ops = np.flatnonzero((context.rank == rank) & (context.joined.event != GAP))
        own_s[ops] *= 1.0 - excess[context.joined.event[ops]]
    return own_s


def _excess(own: Iterations) -> np.ndarray:
    """Return the excess share of each host call that is the first of its name and launched kernel, float64 (events,);
    or an empty array."""
    trace, events = own.trace, own.trace.events
    if not trace.lanes_of(LaneKind.DEVICE):
        return np.empty(0)
    launched = np.full(len(events), NONE, np.int64)
    cause, caused = trace.causes.T.astype(np.int64)
    launched[cause] = np.where(events.what[cause] == What.LAUNCH, events.name[caused], NONE)
    calls = np.flatnonzero((trace.lane_kind == LaneKind.HOST) & np.isin(events.what, (What.COMPUTE, What.LAUNCH)))
    calls = calls[np.argsort(events.start_s[calls], kind="stable")]
    _, first = np.unique(np.stack([events.name[calls], launched[calls]]), axis=1, return_index=True)
    is_first = np.zeros(len(calls), bool)
    is_first[first] = True
    launches = events.what[calls] == What.LAUNCH
    name, elapsed_s = events.name[calls], own.self_s[calls]
    usual_s = np.full(len(calls), np.inf)
    for each in np.unique(name[is_first & (elapsed_s >= MIN_S)]).tolist():
        mine = name == each
        others = elapsed_s[mine & ~is_first]
        if len(others) >= MIN_OTHERS:
            usual_s[mine] = np.median(others)
        elif np.any(mine & launches):
            usual_s[mine] = min(LAUNCH_S, float(elapsed_s[mine].min()))
    loads = is_first & (elapsed_s >= np.maximum(MIN_S, TIMES * usual_s))
    if not loads.any():
        return np.empty(0)
    excess = np.zeros(len(events))
    excess[calls[loads]] = 1.0 - usual_s[loads] / elapsed_s[loads]
    return excess
