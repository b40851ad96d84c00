"""Change: communication priority. Of the ready buckets, the one that is waited for first is reduced first
(ByteScheduler, SOSP 2019; P3, MLSys 2019). It helps where an op waits for its own bucket; DDP waits for all of them at
once.
"""

import numpy as np

from emulator.jobs.workload.graph import Order
from emulator.traces.joined import Joined
from emulator.traces.whatif.edits import edges, with_table
from emulator.traces.whatif.gradients import gradients


def urgent_first(joined: Joined) -> Joined:
    """Set streams of buckets to ready order, with priority by the position of the first dependent op."""
    graph, ops = joined.graph, joined.graph.ops
    transfers = gradients(joined).transfers
    owner, on = edges(ops)
    first = np.full(len(graph.transfers) + 1, len(ops), np.int64)  # the last entry: ops in no collective
    np.minimum.at(first, ops.transfer[on], owner)
    urgency = np.empty(len(transfers), np.int32)
    urgency[np.argsort(-first[transfers], kind="stable")] = np.arange(len(transfers))
    priority, order = graph.op_types.priority.copy(), graph.streams.order.copy()
    priority[graph.transfers.op_type[transfers]] = urgency
    order[ops.stream[np.isin(ops.transfer, transfers)]] = Order.READY
    return with_table(with_table(joined, "op_types", priority=priority), "streams", order=order)
