"""Data-parallel iterations as a trace's join would make them, with durations that a test chooses."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.builder import GraphBuilder
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.costs import NO_ROUTE, Costs
from emulator.jobs.workload.graph import Collective, Kind
from emulator.traces.events import Events, RankTrace
from emulator.traces.joined import Joined
from emulator.traces.whatif.buckets import DDP_CAPS, MIB, assign

CAPS = st.lists(st.integers(1, 4 * MIB), min_size=1, max_size=3).map(tuple)


def options(most: int, **others) -> st.SearchStrategy[dict]:
    """Of `ddp`: at most `most` gradients; `others` are strategies for more of them."""

    def of(count: int):
        numbers = {"min_size": count, "max_size": count}
        sizes = st.lists(st.integers(1, 8).map(lambda quarters: quarters * MIB / 4), **numbers)
        seconds = st.lists(st.integers(0, 8).map(lambda units: units / 256), **numbers)
        return st.fixed_dictionaries(
            {"sizes": sizes, "backward_s": seconds, "fixed_s": st.sampled_from([0.0, 1 / 64])} | others
        ).map(lambda drawn: {"bytes_per_s": 64.0 * MIB} | drawn)

    return st.integers(1, most).flatmap(of)


def jobs(most: int, **others) -> st.SearchStrategy[Joined]:
    return options(most, **others).map(lambda drawn: ddp(**drawn))


def ddp(
    sizes: Sequence[float], backward_s: Sequence[float], *, ranks: int = 2, forward_s: float = 0.010,
    optimizer_s: Sequence[float] = (0.001, 0.002), fixed_s: float = 0.001, bytes_per_s: float = 1e8,
    caps: Sequence[float] = DDP_CAPS, slowness: Sequence[float] = (), waits_for_own: bool = False,
) -> Joined:  # fmt: skip
    """Forward, one backward op for each gradient, all-reduces of buckets on a stream of their own, then the optimizer.
    `waits_for_own`: each gradient's update waits for its own bucket only, as in graph-mode frameworks, and comes in
    the order in which the next forward pass needs it."""
    builder = GraphBuilder()
    bucket = assign(sizes, caps)
    bucket_bytes = np.bincount(bucket, weights=sizes)
    for _ in range(ranks):
        builder.add_rank()
    group = builder.add_group(range(ranks), name="world")
    transfers = []
    for i, size in enumerate(bucket_bytes):
        work = builder.add_op_type(f"all-reduce {i}", Kind.COLLECTIVE, collective=Collective.ALL_REDUCE, bytes=size)
        transfers.append(builder.add_transfers(work, group))
    listed = []
    for rank in range(ranks):
        slow = slowness[rank] if slowness else 1.0
        compute, comm = builder.add_stream(rank, "compute"), builder.add_stream(rank, "comm")
        builder.add_op(compute, builder.add_op_type("forward", seconds=forward_s * slow))
        reduced = {}
        for i, seconds in enumerate(backward_s):
            backward = builder.add_op(compute, builder.add_op_type(f"backward {i}", seconds=seconds * slow))
            listed.append((backward, transfers[bucket[i]], float(sizes[i])))
            if i + 1 == len(sizes) or bucket[i + 1] != bucket[i]:
                work = builder.add_op_type(
                    f"all-reduce {bucket[i]}",
                    Kind.COLLECTIVE,
                    collective=Collective.ALL_REDUCE,
                    bytes=bucket_bytes[bucket[i]],
                )
                reduced[bucket[i]] = builder.add_op(comm, work, after=[backward], transfer=transfers[bucket[i]])
        if waits_for_own:
            for i in reversed(range(len(sizes))):
                step = builder.add_op_type(f"optimizer {i}", seconds=optimizer_s[0])
                builder.add_op(compute, step, after=[reduced[bucket[i]]])
        else:
            for i, seconds in enumerate(optimizer_s):
                step = builder.add_op_type(f"optimizer {i}", seconds=seconds)
                builder.add_op(compute, step, after=list(reduced.values()) if i == 0 else [])
    graph = builder.build()
    check(graph)
    count = len(graph.transfers)
    costs = Costs(
        op_type_s=graph.op_types.seconds,
        transfer_fixed_s=np.full(count, fixed_s),
        transfer_bytes=graph.op_types.bytes[graph.transfers.op_type],
        transfer_bytes_per_s=np.full(count, bytes_per_s),
        transfer_route=np.full(count, NO_ROUTE, np.int32),
    )
    played = replay(graph, costs)
    return Joined(
        graph=graph, costs=costs, traces=[_trace(rank, ranks) for rank in range(ranks)],
        event=np.arange(len(graph.ops)), start_s=played.start_s, end_s=played.end_s, offset_s=np.zeros(ranks),
        iteration=0, iteration_s=played.makespan_s, gradients=listed,
    )  # fmt: skip


def takes_s(joined: Joined) -> float:
    check(joined.graph)
    return replay(joined.graph, joined.costs).makespan_s


def _trace(rank: int, ranks: int) -> RankTrace:
    columns = {name: np.empty(0) for name in Events.__dataclass_fields__}
    return RankTrace(
        rank, ranks, "", Path("synthetic"), "switchml", 0.0, [], [], [], Events(**columns),
        np.empty((0, 2), np.int32), np.empty((0, 2)), "gloo",
    )  # fmt: skip
