"""The engine for jobs without contention: streams in program order and known durations. An op's start is then the
latest end of its predecessors, regardless of the order in which ops are processed; each stream therefore runs ahead
until it is blocked, without an event queue. `calendar.py` replays all other jobs.
"""

from typing import NamedTuple

import numpy as np

from emulator.jobs.replay.conditions import Flat, finish, noise
from emulator.jobs.workload.graph import Graph
from switchml.runtime.jit import kernel


class State(NamedTuple):
    """State of the engine; every array is updated by it."""

    start_s: np.ndarray  # float64 (ops,): time at which an op took its stream; NaN: not yet
    end_s: np.ndarray  # float64 (ops,)
    transfer_start_s: np.ndarray  # float64 (transfers,): the last arrival so far
    transfer_last: np.ndarray  # int32 (transfers,): the op that arrived last
    transfer_left: np.ndarray  # int32 (transfers,): members yet to arrive
    transfer_head: np.ndarray  # int32 (transfers,): first of the streams blocked in it, −1: none
    op_head: np.ndarray  # int32 (ops,): first of the streams that wait for this op's end, −1: none
    stream_next: np.ndarray  # int32 (streams,): the next stream in either list
    following: np.ndarray  # int32 (ops,): the next op of the same stream, −1: none
    cursor: np.ndarray  # int32 (streams,): the current op of a stream
    clock_s: np.ndarray  # float64 (streams,): the end of its last op
    stack: np.ndarray  # int32 (streams,): runnable streams
    depth: np.ndarray  # int64 (1,): number of streams on the stack


def begin(graph: Graph, flat: Flat) -> State:
    """Return the initial state."""
    ops, streams, transfers = len(graph.ops), len(graph.streams), len(graph.transfers)
    following, cursor, members = _chains(graph.ops.stream, streams, graph.ops.transfer, transfers)
    runnable = np.flatnonzero(cursor >= 0)[::-1].astype(np.int32)
    stack = np.zeros(streams + 1, np.int32)
    stack[: len(runnable)] = runnable
    return State(
        start_s=np.full(ops, np.nan),
        end_s=np.full(ops, np.nan),
        transfer_start_s=np.full(transfers, -1.0),
        transfer_last=np.full(transfers, -1, np.int32),
        transfer_left=members,
        transfer_head=np.full(transfers, -1, np.int32),
        op_head=np.full(ops, -1, np.int32),
        stream_next=np.full(streams, -1, np.int32),
        following=following,
        cursor=cursor,
        clock_s=flat.start_s[graph.streams.rank],
        stack=stack,
        depth=np.array([len(runnable)]),
    )


@kernel
def _chains(stream, streams, transfer, transfers):
    """Return each op's successor on its stream, int32 (ops,); each stream's first op, int32 (streams,); −1: none; and
    the number of members of each transfer, int32 (transfers,)."""
    following = np.empty(len(stream), np.int32)
    first = np.full(streams, -1, np.int32)
    members = np.zeros(transfers, np.int32)
    for op in range(len(stream) - 1, -1, -1):
        following[op] = first[stream[op]]
        first[stream[op]] = op
        if transfer[op] >= 0:
            members[transfer[op]] += 1
    return following, first, members


@kernel
def run(budget, op_type, stream, transfer, dep_start, deps, stream_rank, op_type_s, transfer_s, flat, state):
    """Run until all streams are blocked or finished, or for about `budget` more ops. Return the number of ops that
    ended."""
    ended = 0
    depth = state.depth[0]
    while depth and ended < budget:
        depth -= 1
        here = state.stack[depth]
        rank = stream_rank[here]
        now_s = state.clock_s[here]
        op = state.cursor[here]
        is_waiting = False
        while op >= 0 and ended < budget:
            waits_for = -1
            for i in range(dep_start[op], dep_start[op + 1]):
                other_s = state.end_s[deps[i]]
                if np.isnan(other_s):
                    waits_for = deps[i]
                    break
                if other_s > now_s:
                    now_s = other_s
            if waits_for >= 0:
                state.stream_next[here] = state.op_head[waits_for]
                state.op_head[waits_for] = here
                is_waiting = True
                break
            state.start_s[op] = now_s
            together = transfer[op]
            if together >= 0:
                if now_s > state.transfer_start_s[together]:
                    state.transfer_start_s[together] = now_s
                    state.transfer_last[together] = op
                state.transfer_left[together] -= 1
                if state.transfer_left[together] > 0:
                    state.stream_next[here] = state.transfer_head[together]
                    state.transfer_head[together] = here
                    is_waiting = True
                    break
                now_s = state.transfer_start_s[together] + transfer_s[together]
                peer = state.transfer_head[together]
                while peer >= 0:
                    after = state.stream_next[peer]
                    its_op = state.cursor[peer]
                    state.end_s[its_op] = now_s
                    ended += 1
                    depth = _wake(state, its_op, depth)
                    state.cursor[peer] = state.following[its_op]
                    state.clock_s[peer] = now_s
                    if state.cursor[peer] >= 0:
                        state.stack[depth] = peer
                        depth += 1
                    peer = after
            else:
                seconds = op_type_s[op_type[op]] * flat.slowness[rank]
                if flat.sigma > 0:
                    seconds *= noise(flat.seed, op, flat.sigma)
                if flat.pause_start[rank] < flat.pause_start[rank + 1]:
                    now_s = finish(flat, rank, now_s, seconds)
                else:
                    now_s += seconds
            state.end_s[op] = now_s
            ended += 1
            depth = _wake(state, op, depth)
            op = state.following[op]
        state.cursor[here] = op
        state.clock_s[here] = now_s
        if op >= 0 and not is_waiting:
            state.stack[depth] = here
            depth += 1
    state.depth[0] = depth
    return ended


@kernel(inline=True)
def _wake(state, op, depth):
    """Push the streams that wait for `op` onto the stack of size `depth`; return its new size."""
    waiting = state.op_head[op]
    while waiting >= 0:
        state.stack[depth] = waiting
        depth += 1
        waiting = state.stream_next[waiting]
    return depth
