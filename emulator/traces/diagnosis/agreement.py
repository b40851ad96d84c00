"""Invariants of every report: parts add up, waiting adds up over peers, and no finding gains time in which accelerators
compute. Also the warning about a replay that is far off the trace.
"""

from collections.abc import Sequence

import numpy as np

from emulator.jobs.replay.parts import IDLE, WAITING
from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.events import LaneKind

SLACK = 1e-6
"""Tolerance relative to the iteration, for sums of many numbers."""
MAX_OFF = 0.1
"""Maximum deviation of the replay from the traced iteration: beyond it, the replay lacks something that the job waits
for."""
COMPUTES_AS_BEFORE = {
    "network bound", "small messages", "serialized all-reduces", "starved accelerator", "synchronizations",
    "allocations", "first use", "host gaps", "loading",
}  # fmt: skip
"""Findings whose change leaves accelerator compute unchanged."""


def check(context: DiagnosisContext, findings: Sequence[Finding]) -> None:
    """Raise AssertionError, as for any internal error, unless table and findings agree."""
    parts, slack_s = context.causes.parts.by_rank, SLACK * context.iteration_s
    off_s = np.abs(parts.sum(axis=1) - context.iteration_s)
    assert (off_s <= slack_s).all(), f"parts of an iteration of {context.iteration_s} s do not add up: {off_s} s off"
    waited_s = parts[:, [WAITING, IDLE]].sum(axis=1)
    off_s = np.abs(context.causes.waiting_s.sum(axis=1) - waited_s)
    assert (off_s <= slack_s).all(), f"ranks wait {waited_s} s, but for each other {off_s} s more or less"
    left_s = context.iteration_s - _computed_s(context)
    for one in findings:
        most_s = left_s if one.kind in COMPUTES_AS_BEFORE else context.iteration_s
        assert 0 < one.gain_s <= most_s + slack_s, f"{one.title!r} gains {one.gain_s} s of at most {most_s} s"
        assert abs(one.share * context.iteration_s - one.gain_s) <= slack_s, (
            f"{one.title!r} is a share of something else"
        )


def replay_warning(context: DiagnosisContext) -> list[str]:
    """Return a warning for reports whose replay is far off the trace."""
    traced_s = context.joined.iteration_s
    if not traced_s or abs(context.iteration_s / traced_s - 1) <= MAX_OFF:
        return []
    return [
        f"the replay is {context.iteration_s / traced_s - 1:+.0%} off the trace: the traces do not show all "
        "that the job waits for, so findings and table may mislead"
    ]


def _computed_s(context: DiagnosisContext) -> float:
    """Return the compute time of the busiest accelerator stream, a lower bound of the iteration."""
    computes = (context.kind == Kind.COMPUTE) & (context.lane_kind == LaneKind.DEVICE)
    stream = context.graph.ops.stream[computes]
    return float(np.bincount(stream, context.own_s[computes], minlength=1).max(initial=0.0))
