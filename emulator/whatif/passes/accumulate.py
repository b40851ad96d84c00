"""Gradient accumulation: several micro-batches go forward and backward before gradients are all-reduced, once for all
of them. The batch is as many times larger.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.optimizer.setting import Setting
from emulator.replay.engine import replay
from emulator.traces.joined import GAP, Joined
from emulator.whatif import edits as edit
from emulator.whatif.buckets import gradients
from emulator.workload.graph import NO_MEETING, NO_MICRO_BATCH, Kind, Ops, Order, Streams, Works


def apply(joined: Joined, setting: Setting, machine: Machine) -> Joined:
    """Everything on a rank waits for its earlier micro-batches, each of which takes what the traced one takes until its
    last gradient."""
    if setting.accumulate == 1:
        return joined
    graph, ops = joined.graph, joined.graph.ops
    found = gradients(joined)
    end_s = replay(graph, edit.without_meetings(joined).costs).end_s
    earlier_s = np.zeros(len(graph.ranks))
    earlier_s[found.rank] = (setting.accumulate - 1) * end_s[found.op].max(axis=1)
    ranks, count = len(graph.ranks), len(ops)
    rank = graph.op_rank()
    widths = np.diff(ops.dep_start)
    roots = np.flatnonzero(widths == 0)
    starts = np.concatenate([np.zeros(ranks, np.int64), np.where(widths == 0, 1, widths)])
    deps = np.insert(ops.deps + ranks, ops.dep_start[roots], rank[roots])
    works = graph.works
    new = Works(
        name=works.name + ["earlier micro-batches"] * ranks,
        kind=np.append(works.kind, np.full(ranks, Kind.COMPUTE)).astype(np.int8),
        seconds=np.append(works.seconds, earlier_s),
        **{
            name: np.append(getattr(works, name), np.zeros(ranks)).astype(getattr(works, name).dtype)
            for name in ("collective", "flops", "bytes", "priority", "is_source")
        },
    )
    numbers = np.arange(ranks)
    changed = dataclasses.replace(
        graph,
        works=new,
        streams=Streams(
            rank=np.append(graph.streams.rank, numbers).astype(np.int32),
            name=graph.streams.name + ["earlier micro-batches"] * ranks,
            order=np.append(graph.streams.order, np.full(ranks, Order.PROGRAM)).astype(np.int8),
        ),
        ops=Ops(
            work=np.append(len(works) + numbers, ops.work).astype(np.int32),
            stream=np.append(len(graph.streams) + numbers, ops.stream).astype(np.int32),
            meeting=np.append(np.full(ranks, NO_MEETING), ops.meeting).astype(np.int32),
            micro_batch=np.append(np.full(ranks, NO_MICRO_BATCH), ops.micro_batch).astype(np.int32),
            dep_start=np.concatenate([[0], np.cumsum(starts)]).astype(np.int64),
            deps=deps.astype(np.int32),
        ),
    )
    assert len(changed.ops) == count + ranks
    return dataclasses.replace(
        joined,
        graph=changed,
        costs=dataclasses.replace(joined.costs, work_s=np.append(joined.costs.work_s, earlier_s)),
        event=np.append(np.full(ranks, GAP), joined.event),
        start_s=np.append(np.full(ranks, np.nan), joined.start_s),
        end_s=np.append(np.full(ranks, np.nan), joined.end_s),
        gradients=[(op + ranks, meeting, size) for op, meeting, size in joined.gradients],
    )
