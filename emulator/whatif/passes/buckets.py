"""Tensor fusion and partition: gradients into other buckets. Few large ones pay the fixed cost of an all-reduce seldom,
many small ones start earlier; which is better where, `cuts.py` finds along the critical path (dPRO, MLSys 2022, section
5.2; DDP: Li et al., VLDB 2020, section 3.2.3).
"""

from __future__ import annotations

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.whatif.buckets import rebucket


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """DDP's buckets for the caps of `setting`; they cost what the trace's own did."""
    return rebucket(joined, setting.buckets, machine.traced) if setting.buckets else joined
