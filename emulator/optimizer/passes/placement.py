"""Who adds up gradients: the ranks in a ring (Patarasuk and Yuan, JPDC 2009), a parameter server (Li et al., OSDI
2014), or the switch (SwitchML, NSDI 2021).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer import cuts
from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.trace.buckets import gradients
from emulator.trace.joined import Joined
from emulator.trace.transfers import lost_to_guesses_s, repriced


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """The buckets' all-reduces cost what they would there."""
    if setting.placement in ("", machine.traced_placement):
        return joined
    transfer, found = machine.transfer(setting.placement), gradients(joined)
    joined = repriced(joined, transfer, found.meetings)
    if not transfer.again or any(setting.codec):  # what codecs lose to guesses, their pass adds
        return joined
    last = np.flatnonzero(np.diff(found.bucket, append=-1))
    ready_s, _ = cuts.ready(joined)
    sizes = np.add.reduceat(found.bytes, np.concatenate([[0], last[:-1] + 1]))
    fixed_s = joined.costs.meeting_fixed_s.copy()
    fixed_s[found.bucket[last]] += lost_to_guesses_s(transfer, ready_s[last], sizes)
    return dataclasses.replace(joined, costs=dataclasses.replace(joined.costs, meeting_fixed_s=fixed_s))
