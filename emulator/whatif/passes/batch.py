"""Another batch size: what computes takes in proportion, all-reduces and the host's gaps stay. More samples for each
all-reduce, as far as memory goes.
"""

from __future__ import annotations

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.whatif import edits as edit


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """Ops that compute take `setting.batch` times as long, those after the last gradient (the optimizer) as long as
    before."""
    if setting.batch == 1:
        return joined
    own = np.flatnonzero(edit.computes(joined) & ~edit.after_backward(joined))
    return edit.with_durations(joined, own, edit.durations(joined)[own] * setting.batch)
