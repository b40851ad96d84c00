"""Detects incomplete traces, and lists the reader's notes that every report must repeat."""

import re

import numpy as np

from emulator.traces.events import LaneKind, RankTrace, What

NOTES = ("ranks", "broken", "dropped", "unpaired", "clock")
"""Keys of `RankTrace.about` for what the reader omitted or corrected."""
_OF_DEVICES = re.compile(r"(nccl|rccl|xccl|hccl)\b")
_LAUNCHES = re.compile(r"[^:.]*(launch|memcpy|memset)", re.IGNORECASE)


def unanswered(trace: RankTrace) -> np.ndarray:
    """Return a host's launches without an effect in the trace, int64, which includes those captured into a graph."""
    launches = trace.events.what == What.LAUNCH
    launches &= np.array([bool(_LAUNCHES.match(name)) for name in trace.names], bool)[trace.events.name]
    launches[trace.causes[:, 0]] = False
    return np.flatnonzero(launches)


def lost_device(trace: RankTrace) -> str:
    """Return why a trace seems to be of a job on an accelerator although it contains no device activity; ""
    otherwise."""
    if trace.lanes_of(LaneKind.DEVICE):
        return ""
    hint = "profile with ProfilerActivity.CUDA, where CUPTI may record kernels"
    if count := len(unanswered(trace)):
        dropped = f"; dropped: {trace.about['dropped']}" if "dropped" in trace.about else f": {hint}"
        return f"it has {count} launches on an accelerator, but no kernel{dropped}"
    if _OF_DEVICES.match(trace.backend) and not trace.events.collective.any():
        return f"its ranks communicate over {trace.backend}, but it has no kernel: {hint}"
    return ""
