"""Compression: each bucket through the codec that `setting` names for it. It pays where 1/B > 1/(ratio B) + 1/T, B
being the network's rate and T the codec's. A rank's codec and its all-reduces take turns, as in
host_agent/pytorch/comm_hooks.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.whatif import edits as edit
from emulator.whatif.buckets import gradients
from emulator.whatif.transfers import meeting_bytes
from emulator.workload.graph import Kind


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """Buckets with a codec cost what compressed ones do, and have it run before (half its time) and after. None waits
    in line behind another, so nothing announces their exponents."""
    meetings = gradients(joined).meetings
    specs = [setting.codec_of(i) for i in range(len(meetings))]
    if not any(specs):
        return joined
    costs = joined.costs
    fixed_s, moved, rate = (
        np.array(getattr(costs, name)) for name in ("meeting_fixed_s", "meeting_bytes", "meeting_bytes_per_s")
    )
    sizes = meeting_bytes(joined)
    took_s = np.zeros(len(fixed_s))
    for meeting, spec in zip(meetings, specs, strict=True):
        transfer = machine.compressed(setting.placement, spec)
        if spec:
            fixed_s[meeting], rate[meeting], moved[meeting] = transfer.fixed_s, transfer.bytes_per_s, sizes[meeting]
            took_s[meeting] = sizes[meeting] / machine.codec(spec).bytes_per_s
        fixed_s[meeting] += transfer.again_s(sizes[meeting])
    costs = dataclasses.replace(costs, meeting_fixed_s=fixed_s, meeting_bytes=moved, meeting_bytes_per_s=rate)
    joined = dataclasses.replace(joined, costs=costs)
    ops = np.flatnonzero(np.isin(joined.graph.ops.meeting, np.flatnonzero(took_s > 0)))
    half_s = took_s[joined.graph.ops.meeting[ops]] / 2
    return edit.around(joined, ops, half_s, half_s, "codec", Kind.CODEC)
