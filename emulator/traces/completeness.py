"""What a trace lacks that it should have, and which notes of a reader every report has to repeat."""

import re

import numpy as np

from emulator.traces.events import LaneKind, RankTrace, What

NOTES = ("ranks", "broken", "dropped", "unpaired", "clock")
"""Of `RankTrace.about`: what the reader left out, or put right."""
_OF_DEVICES = re.compile(r"(nccl|rccl|xccl|hccl)\b")
_LAUNCHES = re.compile(r"[^:.]*(launch|memcpy|memset)", re.IGNORECASE)


def unanswered(trace: RankTrace) -> np.ndarray:
    """int64: a host's launches of which nothing is in the trace. Those that a graph captures have none either."""
    launches = trace.events.what == What.LAUNCH
    launches &= np.array([bool(_LAUNCHES.match(name)) for name in trace.names], bool)[trace.events.name]
    launches[trace.causes[:, 0]] = False
    return np.flatnonzero(launches)


def lost_device(trace: RankTrace) -> str:
    """Why a trace is that of a job on an accelerator although nothing in it ran on one; "" where it is not."""
    if trace.lanes_of(LaneKind.DEVICE):
        return ""
    hint = "profile with ProfilerActivity.CUDA, where CUPTI may record kernels"
    if count := len(unanswered(trace)):
        dropped = f"; dropped: {trace.about['dropped']}" if "dropped" in trace.about else f": {hint}"
        return f"it has {count} launches on an accelerator, but no kernel{dropped}"
    if _OF_DEVICES.match(trace.backend) and not trace.events.collective.any():
        return f"its ranks communicate over {trace.backend}, but it has no kernel: {hint}"
    return ""
