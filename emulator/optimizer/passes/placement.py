"""Who adds up gradients: the ranks in a ring (Patarasuk and Yuan, JPDC 2009), a parameter server (Li et al., OSDI
2014), or the switch (SwitchML, NSDI 2021).
"""

from __future__ import annotations

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.trace.buckets import gradients
from emulator.trace.joined import Joined
from emulator.trace.transfers import repriced


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """The buckets' all-reduces cost what they would there."""
    if setting.placement in ("", machine.traced_placement):
        return joined
    return repriced(joined, machine.transfer(setting.placement), gradients(joined).meetings)
