"""Change: another batch size. Compute scales in proportion; all-reduces and the host's gaps are unchanged."""

import numpy as np

from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import computes, durations, with_durations
from emulator.traces.whatif.gradients import after_backward


def batch(joined: Joined, factor: float) -> Joined:
    """Scale compute ops by `factor`, except those after the last gradient (the optimizer)."""
    ops = np.flatnonzero(computes(joined) & ~after_backward(joined))
    return with_durations(joined, ops, durations(joined)[ops] * factor)
