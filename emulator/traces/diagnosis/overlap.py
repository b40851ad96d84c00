"""Finds gradients reduced later than possible: all-reduces that wait for the end of the backward pass, and buckets that
are too large (late first all-reduce, long last one) or too small (latency paid too often).
"""

import dataclasses

import numpy as np

from emulator.jobs.replay.parts import COMMUNICATION
from emulator.jobs.workload.graph import NO_TRANSFER, Kind
from emulator.traces.diagnosis.compression import ratios
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.whatif import changes
from emulator.traces.whatif import network as networks
from emulator.traces.whatif.buckets import MIB, caps_of, in_buckets
from emulator.traces.whatif.edits import edges, with_edges
from emulator.traces.whatif.gradients import Gradients, gradients
from switchml.errors import ConfigError, GraphError
from switchml.units import time_text

CAPS_MIB = (1, 2, 4, 8, 16, 25, 50, 100, 200, 400)
"""Candidate bucket sizes."""
LATE = 0.3
"""Share of the backward pass after which the first bucket counts as late."""


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding of each kind."""
    if not context.joined.gradients:
        return []
    return _serialized(context) + _buckets(context)


def _serialized(context: DiagnosisContext) -> list[Finding]:
    """Replay all-reduces that begin as soon as their gradients are final."""
    transfer, end_s = context.graph.ops.transfer, context.played.end_s
    # (rank, bucket's transfer) → the op that made its last gradient final.
    final = {
        (context.rank[op], bucket): op
        for op, bucket, _ in sorted(context.joined.gradients, key=lambda gradient: end_s[gradient[0]])
    }
    members = np.flatnonzero(transfer != NO_TRANSFER).tolist()
    waits = {
        _first_of_chain(context, op): final[key] for op in members if (key := (context.rank[op], transfer[op])) in final
    }
    owner, on = edges(context.graph.ops)
    stays = ~np.isin(owner, list(waits))
    starts, ready = (np.array(list(ops), np.int64) for ops in (waits.keys(), waits.values()))
    changed = with_edges(context.joined, np.append(owner[stays], starts), np.append(on[stays], ready))
    gain_s = context.iteration_s - context.replayed_s(graph=changed.graph)
    if not context.is_worth_it(gain_s):
        return []
    late_s = context.played.start_s[starts] - end_s[ready]
    exposed_s = context.causes.parts.by_rank[:, COMMUNICATION].mean()
    return context.report(
        "serialized all-reduces",
        "all-reduces begin only after the backward pass",
        gain_s=gain_s,
        evidence=[
            f"they begin {time_text(float(late_s.mean()))} after their last gradient was final, "
            f"the worst {time_text(float(late_s.max()))}",
            f"nothing hides {time_text(exposed_s)} of communication; "
            f"{time_text(context.causes.parts.hidden_communication_s())} is hidden",
        ],
        settings=[
            "DistributedDataParallel(model), which reduces each bucket as soon as it is full; or, without it, "
            "all_reduce(…, async_op=True) from Tensor.register_post_accumulate_grad_hook",
            "find_unused_parameters=False, static_graph=True where the graph is the same every time",
        ],
        replayed="each all-reduce may begin when the last gradient of its bucket is final",
        sightings=context.sightings(np.array(sorted(waits), np.int64)),
    )


def _buckets(context: DiagnosisContext) -> list[Finding]:
    """Find the bucket sizes with the shortest replay at the present costs."""
    ratio = ratios(context)
    sent = [
        (op, transfer, size / ratio[transfer] if transfer >= 0 else size)
        for op, transfer, size in context.joined.gradients
    ]
    try:
        joined = changes.with_network(dataclasses.replace(context.joined, gradients=sent))
        present = gradients(joined)
    except (GraphError, ConfigError):
        return []  # no gradients that could be rebucketed
    if not np.all(np.bincount(np.unique(present.bucket, return_inverse=True)[1], present.bytes) > 0):
        return []  # sizes are unknown
    network = networks.network_of(joined)
    transfer = network.transfer(networks.world_size(joined))
    ratio_of_all = float(ratio[present.bucket].mean())
    order = np.concatenate([[0], np.cumsum(np.diff(present.bucket) != 0)])
    present_s = context.makespan_s(in_buckets(joined, caps_of(present.bytes, order)))
    if present_s == np.inf:
        return []

    def with_caps(caps: tuple[int, ...]) -> float:
        return context.makespan_s(in_buckets(joined, [cap / ratio_of_all for cap in caps]))

    candidates: dict[tuple[int, ...], float] = {(cap * MIB,): with_caps((cap * MIB,)) for cap in CAPS_MIB}
    caps: tuple[int, ...] = min(candidates, key=lambda caps: (round(candidates[caps], 9), caps))
    # A different first bucket is an additional setting: only if it gains enough by itself.
    two: dict[tuple[int, ...], float] = {
        (first * MIB, *caps): with_caps((first * MIB, *caps)) for first in CAPS_MIB if first * MIB < caps[0]
    }
    candidates |= two
    if two and min(two.values()) < candidates[caps] - context.least_share * present_s:
        caps = min(two, key=lambda caps: two[caps])
    gain_s = present_s - candidates[caps]
    if not context.is_worth_it(gain_s):
        return []
    sizes = np.bincount(order, present.bytes)
    makes_fewer = caps[-1] > np.median(sizes) and sizes.sum() / caps[-1] < len(sizes)
    start_s, end_s, first_s, reduced_s = _backward(context, present)
    late = (first_s - start_s) / (end_s - start_s) if end_s > start_s else 0.0
    mib = ", ".join(f"{size / MIB:.3g}" for size in sizes[:12]) + (", …" if len(sizes) > 12 else "")
    evidence = [
        f"{len(sizes)} bucket{'s' * (len(sizes) > 1)} of {mib} MiB; an all-reduce takes {transfer}",
        f"after the last gradient, {time_text(max(reduced_s - end_s, 0.0))} until all are reduced",
    ]
    if late > LATE:
        evidence.append(
            f"the first bucket is full only after {late:.0%} of the backward pass; until then nothing moves"
        )
    evidence += [
        f"replayed with {_caps_text(each)}: {time_text(candidates[each])}"
        for each in sorted(candidates, key=candidates.__getitem__)[:3]
    ]
    evidence += network.assumptions[:-1] if network.assumptions else []
    name = "small buckets" if makes_fewer else "late first bucket" if late > LATE and len(caps) > 1 else "large buckets"
    title = {
        "small buckets": f"{len(sizes)} buckets are too many: latency is paid for each",
        "late first bucket": "the first bucket is full too late",
        "large buckets": "buckets are too large to overlap with the backward pass",
    }[name]
    return context.report(
        name,
        title,
        gain_s=gain_s,
        evidence=evidence,
        settings=_settings(caps),
        replayed=f"{_caps_text(caps)}, against the present ones at the same costs ({time_text(present_s)})",
        sightings=context.sightings(np.flatnonzero(np.isin(context.graph.ops.transfer, present.transfers))),
    )


def _settings(caps: tuple[int, ...]) -> list[str]:
    cap = f"bucket_cap_mb={caps[-1] // MIB}"
    if len(caps) == 1:
        return [f"DistributedDataParallel(…, {cap})"]
    numbers = ", ".join(str(cap // MIB) for cap in caps)
    return [
        f"DistributedDataParallel(…, bucket_cap_mb_list=[{numbers}]) where torch has it; else {cap} and "
        f"torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = {caps[0]}"
    ]


def _caps_text(caps: tuple[int, ...]) -> str:
    if len(caps) == 1:
        return f"buckets of {caps[0] // MIB} MiB"
    return f"a first bucket of {caps[0] // MIB} MiB, then {caps[1] // MIB} MiB"


def _backward(context: DiagnosisContext, present: Gradients) -> tuple[float, float, float, float]:
    """Return, for the slowest rank, start and end of backward, the time at which its first bucket was full, and that at
    which all were reduced."""
    ends_s = context.played.end_s[present.op]
    row = int(np.argmax(ends_s.max(axis=1)))
    first = present.bucket == present.bucket[0]
    members = np.isin(context.graph.ops.transfer, present.transfers)
    began_s = float(context.played.start_s[present.op[row]].min())
    return (
        began_s,
        float(ends_s[row].max()),
        float(ends_s[row, first].max()),
        float(context.played.end_s[members].max()),
    )


def _first_of_chain(context: DiagnosisContext, op: int) -> int:
    """Return the first codec op that precedes a bucket's op, else the op itself."""
    while True:
        codecs = [int(before) for before in context.graph.ops.before(op) if context.kind[before] == Kind.CODEC]
        if not codecs:
            return op
        op = codecs[0]
