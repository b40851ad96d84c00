"""Serializes all-reduces. Overlapping ones share a link; serialized, each can be given another cost."""

import dataclasses

import numpy as np

from emulator.jobs.workload.graph import NO_TRANSFER, Kind
from emulator.traces.intervals import stretches
from emulator.traces.joined import GAP, Joined
from emulator.traces.whatif import edits
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.transfers import all_reduces, arrivals_s, transfer_s
from switchml.errors import GraphError


def one_at_a_time(joined: Joined) -> Joined:
    """Put all-reduces on one stream of each rank, in the order of their starts; threads wake up at the same points as
    before. In each stretch of time with any in progress, durations are proportional to bytes, at the rate with which
    the stretch ends at the same time."""
    graph, ops = joined.graph, joined.graph.ops
    transfers, rank = all_reduces(joined), joined.graph.op_rank()
    member = np.isin(ops.transfer, transfers)
    streams = [np.unique(ops.stream[member & (rank == number)]) for number in range(len(graph.ranks))]
    if all(len(own) <= 1 for own in streams):
        return joined
    if np.isnan(joined.start_s[member]).any():
        raise GraphError("all-reduces on several streams that were never traced: their overlap is unknown")
    order = transfers[np.argsort(arrivals_s(joined)[transfers], kind="stable")]
    began_s, elapsed_s = arrivals_s(joined)[order], transfer_s(joined.costs)[order]
    sizes = graph.op_types.bytes[graph.transfers.op_type[order]]
    seconds = np.empty(len(order))
    for stretch in stretches(began_s, elapsed_s):
        weight = sizes[stretch] if sizes[stretch].sum() else elapsed_s[stretch] + 1e-9
        seconds[stretch] = weight * _rate(began_s[stretch], weight, float((began_s + elapsed_s)[stretch].max()))
    joined = edits.with_transfer_seconds(joined, order, seconds)
    in_turn = len(graph.streams)
    joined = edits.with_streams(joined, "all-reduces in turn")
    stream, key = ops.stream.copy(), np.arange(len(ops), dtype=np.float64)
    turn = np.zeros(len(graph.transfers))
    turn[order] = (1 + np.arange(len(order))) / (len(order) + 2)
    wakes = np.zeros(len(ops), bool)
    wakes[gaps_before(joined, transfers)[1]] = True  # another all-reduce is in progress meanwhile
    owners, ons = [[part] for part in edits.edges(ops)]
    for number, own in enumerate(streams):
        if len(own) <= 1:
            continue
        reduces = np.flatnonzero(member & (rank == number))
        stream[reduces] = in_turn + number
        key[reduces] = np.flatnonzero(np.isin(ops.stream, own)).max() + turn[ops.transfer[reduces]]
        for one in own.tolist():
            behind, before = _behind(np.flatnonzero(ops.stream == one), reduces)
            key[behind] = key[before] + 0.25 / (len(order) + 2)
            owners.append(behind[~wakes[behind]])
            ons.append(before[~wakes[behind]])
    joined = edits.with_table(joined, "ops", stream=stream)
    return edits.arrange(joined, np.argsort(key, kind="stable"), np.concatenate(owners), np.concatenate(ons))


def _behind(own: np.ndarray, reduces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ops of a stream, `own`, that follow one of `reduces`, and the last one before each, int64 each."""
    is_reduce = np.isin(own, reduces)
    last = np.maximum.accumulate(np.where(is_reduce, np.arange(len(own)), -1))
    behind = ~is_reduce & (last >= 0)
    return own[behind], own[last[behind]]


def _rate(came_s: np.ndarray, weight: np.ndarray, end_s: float) -> float:
    """Return the seconds per unit of weight with which all, served in order of arrival, are done at `end_s`: for some
    k, the k-th did not have to wait, and from it on there was no idle time."""
    left = np.cumsum(weight[::-1])[::-1]
    return float(np.min((end_s - came_s) / left))


def prepared(joined: Joined) -> Joined:
    """Serialize all-reduces, and merge each with the gap between call and all-reduce, so that both move together."""
    joined = one_at_a_time(joined)
    ops = joined.graph.ops
    members, gaps = gaps_before(joined, gradients(joined).transfers)
    if not len(gaps):
        return joined
    # Each all-reduce is lengthened by the gap of its last-arriving member.
    gap_s, last_s = edits.durations(joined)[gaps], arrivals_s(joined)
    longer_s = joined.costs.transfer_fixed_s.copy()
    for transfer in np.unique(ops.transfer[members]):
        own = np.flatnonzero(ops.transfer[members] == transfer)
        longer_s[transfer] += gap_s[own[np.argmin(np.abs(joined.start_s[members[own]] - last_s[transfer]))]]
    costs = dataclasses.replace(joined.costs, transfer_fixed_s=longer_s)
    return edits.drop(dataclasses.replace(joined, costs=costs), gaps)


def gaps_before(joined: Joined, transfers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return members of `transfers` that directly follow a gap of the host on their stream, and these gaps, int64
    each."""
    graph, ops = joined.graph, joined.graph.ops
    members = np.flatnonzero(np.isin(ops.transfer, transfers))
    gaps = edits.on_stream(graph)[0][members]
    is_gap = (gaps >= 0) & (joined.event[gaps] == GAP) & (ops.transfer[gaps] == NO_TRANSFER)
    is_gap &= graph.op_kind()[gaps] == Kind.DELAY
    return members[is_gap], gaps[is_gap]
