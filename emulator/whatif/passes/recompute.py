"""Recomputation: backward runs its part of forward again, and activations need but the square root of their memory
(Chen et al., 2016: sublinear memory cost). It costs time; what it gains is room for a larger batch.
"""

from __future__ import annotations

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.whatif import edits as edit
from emulator.whatif.buckets import gradients

FORWARD_SHARE = 1 / 3
"""Of the compute until the last gradient: backward takes twice as long as forward."""


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """Backward takes as much longer as forward takes."""
    if not setting.recompute:
        return joined
    own = np.flatnonzero(edit.computes(joined) & ~edit.after_backward(joined))
    seconds = edit.durations(joined)[own]
    rank = joined.graph.op_rank()[own]
    times = np.ones(len(own))
    for number in np.unique(rank):
        mine = np.flatnonzero(rank == number)
        done = np.cumsum(seconds[mine])
        backward = done > FORWARD_SHARE * done[-1]
        times[mine[backward]] = 1 + FORWARD_SHARE / (1 - FORWARD_SHARE)
    return edit.with_durations(joined, own, seconds * times)


def activations(traced_bytes: float, joined: Joined) -> float:
    """What is left of them: one in sqrt(n) of n layers' is kept, and one segment's at a time."""
    layers = max(1, len(gradients(joined).bytes) // 2)  # a weight and a bias each
    return traced_bytes * min(1.0, 2 / np.sqrt(layers))
