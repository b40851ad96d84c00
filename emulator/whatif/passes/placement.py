"""Who adds up gradients: the ranks in a ring (Patarasuk and Yuan, JPDC 2009), a parameter server (Li et al., OSDI
2014), or the switch (SwitchML, NSDI 2021).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer import cuts
from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.whatif.buckets import gradients
from emulator.whatif.transfers import lost_to_guesses_s, repriced


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """The buckets' all-reduces cost what they would there."""
    if setting.placement in ("", machine.traced_placement):
        return joined
    transfer, found = machine.transfer(setting.placement), gradients(joined)
    joined = repriced(joined, transfer, found.meetings)
    if not transfer.again or any(setting.codec):  # what codecs lose to guesses, their pass adds
        return joined
    meetings, bucket = np.unique(found.bucket, return_inverse=True)  # gradients of several may come in turns
    ready_s = np.zeros(len(meetings))
    np.maximum.at(ready_s, bucket, cuts.ready(joined)[0])
    sizes = np.bincount(bucket, weights=found.bytes)
    fixed_s = joined.costs.meeting_fixed_s.copy()
    fixed_s[meetings] += lost_to_guesses_s(transfer, ready_s, sizes)
    return dataclasses.replace(joined, costs=dataclasses.replace(joined.costs, meeting_fixed_s=fixed_s))
