"""Communication priority: of buckets that are ready the one that is waited for first goes first (ByteScheduler, SOSP
2019; P3, MLSys 2019). It helps where an op waits for its own bucket; DDP waits for all of them at once.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.traces.joined import Joined
from emulator.whatif.buckets import gradients
from emulator.workload.graph import Order


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """Streams of buckets take what is ready, by the place of the first op that waits for it."""
    if not setting.priority:
        return joined
    graph, ops = joined.graph, joined.graph.ops
    meetings = gradients(joined).meetings
    members = np.flatnonzero(np.isin(ops.meeting, meetings))
    of_dep = np.repeat(np.arange(len(ops)), np.diff(ops.dep_start))
    first = np.full(len(graph.meetings) + 1, len(ops), np.int64)  # the last place: ops in no meeting
    np.minimum.at(first, ops.meeting[ops.deps], of_dep)
    rank_of = np.empty(len(meetings), np.int32)
    rank_of[np.argsort(-first[meetings], kind="stable")] = np.arange(len(meetings))
    priority = graph.works.priority.copy()
    priority[graph.meetings.work[meetings]] = rank_of
    order = graph.streams.order.copy()
    order[np.unique(ops.stream[members])] = Order.READY
    graph = dataclasses.replace(
        graph,
        works=dataclasses.replace(graph.works, priority=priority),
        streams=dataclasses.replace(graph.streams, order=order),
    )
    return dataclasses.replace(joined, graph=graph)
