"""Another batch size: what computes takes in proportion; all-reduces and the host's gaps stay."""

import numpy as np

from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import computes, durations, with_durations
from emulator.traces.whatif.gradients import after_backward


def batch(joined: Joined, factor: float) -> Joined:
    """Ops that compute take `factor` times as long, those after the last gradient (the optimizer) as long as before."""
    ops = np.flatnonzero(computes(joined) & ~after_backward(joined))
    return with_durations(joined, ops, durations(joined)[ops] * factor)
