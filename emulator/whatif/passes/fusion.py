"""Operator fusion: small ops that follow each other on a stream become one, as compilers make them (XLA,
TorchInductor). What goes is the start of all but the first, and the host's gaps between them; the work itself is taken
to stay.
"""

from __future__ import annotations

import numpy as np

from emulator.optimizer import chains
from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.whatif import edits as edit
from emulator.workload.graph import Kind

SMALL_S = 1e-4
"""An op that takes longer is worth its start."""


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """Small ops of a run lose `machine.launch_s`, all but the first; gaps inside runs go."""
    if not setting.fuse:
        return joined
    graph, seconds = joined.graph, edit.durations(joined)
    kind = graph.op_kind()
    joins = chains.follower(graph)
    before, _ = chains.on_stream(graph)
    small = (kind == Kind.COMPUTE) & (seconds < SMALL_S)
    gap = (kind == Kind.DELAY) & (seconds < SMALL_S)
    inside = joins & (small | gap)
    inside[inside] &= (small | gap)[before[inside]]
    which = np.flatnonzero(inside)
    left_s = np.where(gap[which], 0.0, np.maximum(seconds[which] - machine.launch_s, 0.0))
    return edit.with_durations(joined, which, left_s)
