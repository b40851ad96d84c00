"""Finds retransmissions and the stalls before them, and machines that slow down every collective in which they take
part."""

import numpy as np

from emulator.jobs.workload.graph import Collective, Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.events import What, Wire, WireWhat
from emulator.traces.join import MEAN
from emulator.traces.joined import GAP
from switchml.units import bytes_text, time_text

STANDS_STILL = 5.0
"""Minimum ratio of a gap before a retransmission to the usual distance between records."""
MIN_STILL_S = 5e-4
SLOWER = 1.5
"""Minimum ratio of a slow machine's time per byte to the usual one."""
MIN_BYTES = 64 * 1024
"""Minimum size of collectives considered: smaller ones show latency, not bandwidth."""


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding of each kind."""
    return _resent(context) + _slow_host(context)


def _resent(context: DiagnosisContext) -> list[Finding]:
    """Replay all-reduces without their stalls before retransmissions."""
    counts, still_s = {}, np.zeros(len(context.graph.transfers))
    lost = _lost(context)
    for rank, trace in enumerate(context.joined.traces):
        if trace.wire is None or not len(trace.wire):
            continue
        counts[rank] = np.bincount(trace.wire.what, minlength=len(WireWhat))
        by_event = _still_s(context, rank, lost[rank])
        ops = np.flatnonzero((context.rank == rank) & (context.kind == Kind.COLLECTIVE) & (context.joined.event != GAP))
        lost_s = by_event[context.joined.event[ops]]
        np.maximum.at(still_s, context.graph.ops.transfer[ops], lost_s)
    still_s = np.minimum(still_s, context.transfer_s)
    if not counts:
        return []
    sent, resent, _, repeated = np.sum(list(counts.values()), axis=0)
    worst = max(counts, key=lambda rank: counts[rank][WireWhat.RESENT] / max(counts[rank][WireWhat.SENT], 1))
    of_worst = counts[worst]
    early = int(resent - sum(each.sum() for each in lost.values()))
    evidence = [
        f"{resent:,} of {sent:,} packets were retransmitted ({resent / max(sent, 1):.2%}); {repeated:,} results came "
        "twice",
        f"all-reduces stalled {time_text(float(still_s.sum()))} of "
        f"{time_text(float(context.transfer_s.sum()))} until a retransmission, "
        f"in {np.count_nonzero(still_s)} of them",
        f"most on {context.rank_name(worst)}: {of_worst[WireWhat.RESENT] / max(of_worst[WireWhat.SENT], 1):.2%}",
    ]
    if early:
        evidence.append(
            f"{early:,} were retransmitted before all ranks had sent theirs: a rank was late there, none lost"
        )
    return context.report(
        "packets sent again",
        "all-reduces wait for retransmissions",
        gain_s=context.iteration_s - context.replayed_s(transfer_s=context.transfer_s - still_s),
        evidence=evidence,
        settings=[
            "find where packets are dropped: ip -s link, ethtool -S, queue lengths and rates on the switch's ports",
            "SWITCHML_TRANSPORT=shm where agents and aggregator share a machine; zmq goes by TCP",
        ],
        replayed="all-reduces without their stalls before retransmissions",
        sightings=context.sightings(np.flatnonzero(np.isin(context.graph.ops.transfer, np.flatnonzero(still_s > 0)))),
    )


def _lost(context: DiagnosisContext) -> dict[int, np.ndarray]:
    """Return, by rank, which retransmissions followed an actual loss, bool (records,): those after all ranks had sent
    the chunk; before, a rank is late."""
    wires = {rank: trace.wire for rank, trace in enumerate(context.joined.traces) if trace.wire is not None}
    if not wires:
        return {}
    clock = context.joined.origin_s if len(context.joined.origin_s) else -context.joined.offset_s
    at_s = np.concatenate([wire.at_s - clock[rank] for rank, wire in wires.items()])
    what = np.concatenate([wire.what for wire in wires.values()])
    keys = np.concatenate([(wire.tensor << 32) + wire.chunk for wire in wires.values()])
    _, chunk = np.unique(keys, return_inverse=True)
    last_s, sent = np.full(len(keys), -np.inf), what == WireWhat.SENT
    np.maximum.at(last_s, chunk[sent], at_s[sent])
    lost = (what == WireWhat.RESENT) & (last_s[chunk] <= at_s)
    return dict(zip(wires, np.split(lost, np.cumsum([len(wire) for wire in wires.values()])[:-1]), strict=True))


def _still_s(context: DiagnosisContext, rank: int, lost: np.ndarray) -> np.ndarray:
    """Return the stall time of each collective of `rank`, float64 (events,); for a mean iteration, the mean over
    corresponding collectives."""
    trace, number = context.joined.traces[rank], context.iterations[rank].number
    assert trace.wire is not None, "of traces with records of packets"
    events, standing = trace.events, stalls(trace.wire, lost)
    still_s = np.zeros(len(events))
    reduces = np.flatnonzero(events.what == What.COLLECTIVE)
    for event in reduces:
        for from_s, until_s in standing.get(int(events.sequence[event]), ()):
            if from_s >= events.start_s[event] and until_s <= events.end_s[event]:
                still_s[event] += until_s - from_s
    if context.joined.iteration == MEAN:
        own = [reduces[number[reduces] == each] for each in range(context.iterations[rank].count)]
        own = [each[np.argsort(events.start_s[each], kind="stable")] for each in own if len(each)]
        usual = [each for each in own if len(each) == int(np.median([len(each) for each in own]))]
        if usual:
            still_s[np.stack(usual)] = still_s[np.stack(usual)].mean(axis=0)
    return still_s


def stalls(wire: Wire, lost: np.ndarray) -> dict[int, list[tuple[float, float]]]:
    """Return tensor → spans without a packet of it until a retransmission in `lost`, bool (records,)."""
    spans_of_tensor: dict[int, list[tuple[float, float]]] = {}
    order = np.lexsort((wire.at_s, wire.job, wire.tensor))
    key = np.stack([wire.tensor[order], wire.job[order]])
    first = np.flatnonzero(np.any(np.diff(key, axis=1) != 0, axis=0)) + 1
    for run in np.split(order, first):
        apart_s = np.diff(wire.at_s[run])
        if not len(apart_s):
            continue
        limit_s = max(STANDS_STILL * float(np.median(apart_s)), MIN_STILL_S)
        still = (apart_s > limit_s) & lost[run[1:]]
        if still.any():
            standing = np.stack([wire.at_s[run[:-1]][still], wire.at_s[run[1:]][still]], axis=1)
            spans_of_tensor.setdefault(int(wire.tensor[run[0]]), []).extend(map(tuple, standing.tolist()))
    return spans_of_tensor


def _slow_host(context: DiagnosisContext) -> list[Finding]:
    """Find a machine whose transfers with others are all slow, where transfers without it are not."""
    graph = context.graph
    size = graph.op_types.bytes[graph.transfers.op_type]
    measured = np.flatnonzero(context.communicates() & (size >= MIN_BYTES) & (context.transfer_s > 0))
    host_of = np.array([trace.host or f"rank {i}" for i, trace in enumerate(context.joined.traces)])
    members = {int(group): frozenset(host_of[graph.groups.members(group)]) for group in set(graph.transfers.group)}
    between = [len(members[int(graph.transfers.group[transfer])]) > 1 for transfer in measured]
    measured = measured[np.array(between, bool)]
    if len({members[int(graph.transfers.group[transfer])] for transfer in measured}) < 3:
        return []
    kinds = graph.op_types.collective[graph.transfers.op_type]
    per_byte_s = context.transfer_s / np.maximum(size, 1.0)
    hosts = {}
    for host in np.unique(host_of):
        for kind in np.unique(kinds[measured]):
            mine = [m for m in measured if kinds[m] == kind and host in members[int(graph.transfers.group[m])]]
            rest = [m for m in measured if kinds[m] == kind and m not in set(mine)]
            if mine and rest:
                hosts[str(host), int(kind)] = mine, float(np.median(per_byte_s[rest]))
    slow = {key: mine for key, (mine, usual) in hosts.items() if per_byte_s[mine].min() > SLOWER * usual}
    if not slow:
        return []
    host, kind = max(slow, key=lambda key: (len(slow[key]), -per_byte_s[hosts[key][0]].min()))
    mine, usual = hosts[host, kind]
    changed_s = context.transfer_s.copy()
    changed_s[mine] = np.minimum(usual * size[mine], context.transfer_s[mine])
    rate, others = 1 / float(np.median(per_byte_s[mine])), 1 / usual
    times = per_byte_s[mine].min() / usual
    what = "sends" if kind == Collective.P2P else Collective(kind).name.lower().replace("_", "-") + "s"
    return context.report(
        "slow network",
        f"the network of {host} is slow",
        gain_s=context.iteration_s - context.replayed_s(transfer_s=changed_s),
        evidence=[
            f"{what} with {host} move {bytes_text(rate)}/s (median of {len(mine)}), those without it "
            f"{bytes_text(others)}/s",
            f"its fastest takes {times:.2g} times as long for its bytes as is usual elsewhere",
        ],
        settings=[
            f"look at the link of {host}: negotiated speed (ethtool), cable, MTU, other traffic, which interface "
            "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names"
        ],
        replayed=f"{what} with {host} as fast as those of the others",
        sightings=context.sightings(np.flatnonzero(np.isin(graph.ops.transfer, mine))),
    )
