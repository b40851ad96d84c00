"""Half precision: kernels of an accelerator that multiply matrices take a third of their time, others half of it
(Daydream, ATC 2020, section 5.1), ops of a host what `Machine.half_speed` says; gradients have half their bytes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.traces.kernels import on_matrix_units
from emulator.whatif import edits as edit
from emulator.whatif.buckets import gradients

MATRIX_TIMES, OTHER_TIMES = 3.0, 2.0


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """Shorter kernels, and half of each gradient."""
    if not setting.precision:
        return joined
    graph = joined.graph
    own = np.flatnonzero(edit.computes(joined))
    if edit.is_on_device(joined).any():
        is_matrix = on_matrix_units(graph.works.name)[graph.ops.work[own]]
        times = np.where(is_matrix, MATRIX_TIMES, OTHER_TIMES)
    else:
        times = np.full(len(own), machine.half_speed or 1.0)
    meetings = gradients(joined).meetings
    halved = edit.with_durations(joined, own, edit.durations(joined)[own] / times)
    works, costs = halved.graph.works, halved.costs
    size, moved = works.bytes.copy(), costs.meeting_bytes.copy()
    fixed_s = costs.meeting_fixed_s.copy()
    size[np.unique(graph.meetings.work[meetings])] /= 2
    is_timed = moved[meetings] == 0  # a traced duration, not bytes at a rate: what is above the fixed part halves
    least_s = np.minimum(machine.traced.fixed_s, fixed_s[meetings])
    fixed_s[meetings] = np.where(is_timed, least_s + (fixed_s[meetings] - least_s) / 2, fixed_s[meetings])
    moved[meetings] /= 2
    return dataclasses.replace(
        halved,
        graph=dataclasses.replace(halved.graph, works=dataclasses.replace(works, bytes=size)),
        costs=dataclasses.replace(costs, meeting_bytes=moved, meeting_fixed_s=fixed_s),
        gradients=[(op, meeting, bytes / 2) for op, meeting, bytes in halved.gradients],
    )
