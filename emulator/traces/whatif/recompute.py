"""Change: recomputation. Backward repeats its part of forward, and activations only need the square root of their
memory (Chen et al., 2016: sublinear memory cost). It costs time; its gain is memory for a larger batch.
"""

import numpy as np

from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import computes, durations, with_durations
from emulator.traces.whatif.gradients import after_backward, gradients

FORWARD_SHARE = 1 / 3
"""Share of forward in the compute until the last gradient: backward takes twice as long as forward."""


def recompute(joined: Joined) -> Joined:
    """Lengthen backward by the duration of forward."""
    ops = np.flatnonzero(computes(joined) & ~after_backward(joined))
    seconds = durations(joined)[ops]
    rank = joined.graph.op_rank()[ops]
    times = np.ones(len(ops))
    for number in np.unique(rank):
        mine = np.flatnonzero(rank == number)
        done_s = np.cumsum(seconds[mine])
        times[mine[done_s > FORWARD_SHARE * done_s[-1]]] = 1 + FORWARD_SHARE / (1 - FORWARD_SHARE)
    return with_durations(joined, ops, seconds * times)


def activations(traced_bytes: float, joined: Joined) -> float:
    """Return the remaining activation bytes: one in sqrt(n) of n layers' is saved, plus one segment's at a time."""
    layers = max(1, len(gradients(joined).bytes) // 2)  # a weight and a bias each
    return traced_bytes * min(1.0, 2 / np.sqrt(layers))
