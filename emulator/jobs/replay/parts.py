"""Attribution of each rank's time to parts. At any time a rank is charged to the first part that applies: computing,
compressing, communicating without overlap with these, copying between host and device, waiting in a collective for late
ranks, checkpointing, host delay, loading samples; otherwise idle, which is the pipeline bubble where there are stages,
host time where the rank is the job's only one, and otherwise waiting for peers. A rank's parts therefore sum to its
job's time.
"""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.replay.engine import Replayed
from emulator.jobs.replay.tables import grouped
from emulator.jobs.workload.graph import Graph, Kind, Order
from switchml.runtime.jit import kernel

PARTS = (
    "compute",
    "compression",
    "exposed communication",
    "offload",
    "waiting for peers",
    "checkpoint",
    "host",
    "loading",
    "bubble",
)
"""Parts in order of precedence."""

COMPUTE, COMPRESSION, COMMUNICATION, OFFLOAD, WAITING, CHECKPOINT, HOST, LOADING, IDLE = range(len(PARTS))

PART_OF_KIND = {
    Kind.COMPUTE: COMPUTE,
    Kind.COLLECTIVE: COMMUNICATION,
    Kind.SEND: COMMUNICATION,
    Kind.RECV: COMMUNICATION,
    Kind.LOAD: LOADING,
    Kind.CODEC: COMPRESSION,
    Kind.COPY: OFFLOAD,
    Kind.CHECKPOINT: CHECKPOINT,
    Kind.DELAY: HOST,
}

PART_OF_WAIT = {Kind.COLLECTIVE: WAITING, Kind.LOAD: LOADING, Kind.CHECKPOINT: CHECKPOINT}
"""Part charged while an op waits for the rest of its transfer. A send or receive that waits counts as pipeline idle
time."""


@dataclass(frozen=True)
class Parts:
    """Seconds by rank and part."""

    by_rank: np.ndarray
    """float64 (ranks, len(PARTS))."""
    communication_s: np.ndarray
    """float64 (ranks,): time with a transfer of the rank in progress, including hidden ones; concurrent transfers count
    once."""
    weight: np.ndarray
    """float64 (ranks,): number of ranks that each represents."""

    def mean(self) -> dict[str, float]:
        """Return part → seconds of an average rank, without parts of 0 except compute."""
        means = np.average(self.by_rank, axis=0, weights=self.weight)
        return {name: float(mean) for name, mean in zip(PARTS, means, strict=True) if mean > 0 or name == "compute"}

    def hidden_communication_s(self) -> float:
        """Transfers of an average rank that overlap with compute or compression."""
        hidden = self.communication_s - self.by_rank[:, COMMUNICATION]
        return float(np.average(hidden, weights=self.weight))


def parts(played: Replayed) -> Parts:
    """Charge the time of every rank, from its job's start to its job's end."""
    graph = played.graph
    began_s = played.conditions.for_kernels(graph).start_s
    end_s = np.full(len(graph.job_names), played.makespan_s)
    if len(end_s) > 1:
        job = graph.ranks.job[graph.op_rank()]
        end_s = np.array([played.end_s[job == number].max(initial=0.0) for number in range(len(end_s))])
    stream_start, ops = ops_by_stream(graph, played.start_s, played.end_s)
    active, waiting = (
        np.array([table.get(kind, IDLE) for kind in Kind], np.int8)[graph.op_types.kind]
        for table in (PART_OF_KIND, PART_OF_WAIT)
    )
    ranks = (*grouped(graph.streams.rank, len(graph.ranks)), began_s, end_s[graph.ranks.job])
    times = tuple(map(np.ascontiguousarray, (played.start_s, played.transfer_start_s, played.end_s)))
    charged, communication_s = _charge(
        ranks, stream_start, ops, graph.ops.op_type, graph.ops.transfer, times, active, waiting
    )
    if graph.stages() < 2:
        is_alone = len(graph.ranks) == 1 and graph.ranks.weight[0] <= 1
        charged[:, HOST if is_alone else WAITING] += charged[:, IDLE]
        charged[:, IDLE] = 0.0
    return Parts(charged, communication_s, graph.ranks.weight)


def ops_by_stream(graph: Graph, start_s: np.ndarray, end_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ops of each stream in execution order: int64 (streams + 1,), where each stream's begin, and the
    ops."""
    stream_start, ops = grouped(graph.ops.stream, len(graph.streams))
    for stream in np.flatnonzero(graph.streams.order == Order.READY):
        run = ops[stream_start[stream] : stream_start[stream + 1]]
        run[:] = run[np.lexsort((end_s[run], start_s[run]))]
    return stream_start, ops


@kernel
def _charge(ranks, stream_start, ops, op_type, transfer, times, active, waiting):
    """Return seconds charged, float64 (ranks, parts), and seconds with a transfer in progress, float64 (ranks,).
    `ranks`: where each rank's streams begin, the streams, start and end of its job; `times`: start of ops and of
    transfers, end of ops."""
    rank_start, rank_stream, began_s, horizon_s = ranks
    start_s, transfer_start_s, end_s = times
    charged = np.zeros((len(began_s), 9))
    moving_s = np.zeros(len(began_s))
    at = np.empty(len(rank_stream), np.int64)  # for each stream, the current or next op
    state = np.empty(len(rank_stream), np.int8)
    until_s = np.empty(len(rank_stream))  # end of `state`
    for rank in range(len(began_s)):
        first, last = rank_start[rank], rank_start[rank + 1]
        now_s = began_s[rank]
        for i in range(first, last):
            at[i] = stream_start[rank_stream[i]]
            until_s[i] = now_s
            state[i] = 8
        while now_s < horizon_s[rank]:
            part = 8
            next_s = horizon_s[rank]
            is_moving = False
            for i in range(first, last):
                while until_s[i] <= now_s:  # advance to the stream's next activity
                    if at[i] == stream_start[rank_stream[i] + 1]:
                        state[i], until_s[i] = 8, np.inf
                        break
                    op = ops[at[i]]
                    moves_s = start_s[op] if transfer[op] < 0 else max(start_s[op], transfer_start_s[transfer[op]])
                    if now_s < start_s[op]:
                        state[i], until_s[i] = 8, start_s[op]
                    elif now_s < moves_s:
                        state[i], until_s[i] = waiting[op_type[op]], moves_s
                    else:
                        state[i], until_s[i] = active[op_type[op]], end_s[op]
                        at[i] += 1
                part = min(part, state[i])
                next_s = min(next_s, until_s[i])
                is_moving |= state[i] == 2
            charged[rank, part] += next_s - now_s
            if is_moving:
                moving_s[rank] += next_s - now_s
            now_s = next_s
    return charged, moving_s
