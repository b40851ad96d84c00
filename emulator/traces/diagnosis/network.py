"""Finds iterations that wait for the network: the amount of exposed communication, its transport, and the gain from
another all-reduce, a codec, a faster network, fewer bytes, larger buckets or more overlap.
"""

import re
from typing import NamedTuple

import numpy as np

from emulator.jobs.replay.parts import COMMUNICATION
from emulator.jobs.workload.graph import NO_TRANSFER, Kind
from emulator.traces.diagnosis.compression import ratios
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from emulator.traces.events import LaneKind
from emulator.traces.joined import Joined
from emulator.traces.network import Network
from emulator.traces.whatif import changes
from emulator.traces.whatif.buckets import MIB, caps_of, in_buckets
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.network import network_of, world_size
from emulator.traces.whatif.transfers import all_reduces
from switchml.errors import ConfigError, GraphError
from switchml.units import bytes_text, time_text

MIN_EXPOSED = 0.03
"""Minimum share of exposed communication in the iteration."""


LARGER_MIB = (50, 100, 200)
"""Candidate bucket sizes."""


ON_DEVICES = re.compile(r"[nrxh]ccl|nvshmem|deepep|symmetric|all-reduce|userbuffers")
"""Backends whose tensors stay on accelerators."""
HALVES = r"all_?reduce\w*_(half|f16|bf16|bfloat16|__half|__nv_bfloat16|f8\w*)(\W|_|$)"
"""All-reduces with elements of two bytes or fewer."""


class Change(NamedTuple):
    """A change, and the iteration time with it."""

    iteration_s: float
    what: str
    setting: str


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding with all changes that help. Settings count first; if none helps, a faster network."""
    parts = context.causes.parts
    exposed_s = float(np.average(parts.by_rank[:, COMMUNICATION], weights=parts.weight))
    moves = context.communicates()
    if exposed_s < MIN_EXPOSED * context.iteration_s or not moves.any():
        return []
    try:
        joined: Joined | None = changes.with_network(context.joined)
    except (ConfigError, GraphError):
        joined = None  # no all-reduce from which to estimate the network
    evidence = [
        f"nothing hides {time_text(exposed_s)} of communication on an average rank; "
        f"{time_text(parts.hidden_communication_s())} is hidden",
        _carried(context, moves),
    ]
    settable, faster = [], [_twice_as_fast(context, moves)]
    if joined is not None:
        network = network_of(joined)
        evidence.append(
            f"all-reduces ({network.algorithm}) take {time_text(network.latency_s)} a step, as fitted to the trace; "
            f"{network.link_text}"
        )
        settable = _settable(context, joined, network)
        if not context.mentions(HALVES):
            faster.append(_half_the_bytes(context, network))
        faster += _larger_buckets(context, joined)
    faster.append(_more_overlap(context))
    evidence += [f"replayed with {each.what}: {time_text(each.iteration_s)}" for each in sorted(settable + faster)]
    settable, faster = (sorted(one for one in some if _helps(context, one)) for some in (settable, faster))
    if not settable and not faster:
        return []
    best = (settable or faster)[0]
    return context.report(
        "network bound",
        f"{time_text(exposed_s)} of each iteration is communication that nothing hides",
        gain_s=context.iteration_s - best.iteration_s,
        evidence=evidence,
        settings=[each.setting for each in (*settable, *faster)],
        replayed=best.what,
        sightings=context.sightings(np.flatnonzero(np.isin(context.graph.ops.transfer, np.flatnonzero(moves)))),
    )


def _helps(context: DiagnosisContext, change: Change) -> bool:
    return context.is_worth_it(context.iteration_s - change.iteration_s)


def _carried(context: DiagnosisContext, moves: np.ndarray) -> str:
    """Describe the amount of communication, its transport, and whether tensors of accelerators are staged through
    hosts."""
    joined, graph = context.joined, context.graph
    about = {trace.about.get("transport") or trace.backend for trace in joined.traces} - {""}
    moved = float(graph.op_types.bytes[graph.transfers.op_type[moves]].sum())
    carried = f"{np.count_nonzero(moves)} collectives" + (f" of {bytes_text(moved)} in all" if moved else "")
    members = graph.ops.transfer != NO_TRANSFER
    staged = np.isin(context.rank[members & (context.lane_kind != LaneKind.DEVICE)],
                     context.rank[context.lane_kind == LaneKind.DEVICE]).any()  # fmt: skip
    over = f" over {' and '.join(sorted(about))}" if about else ""
    return f"{carried}{over}" + (", copied from accelerators to their hosts and back" if staged else "")


def _settable(context: DiagnosisContext, joined: Joined, network: Network) -> list[Change]:
    """Return the changes that a training script can make."""
    settable = []
    if network.algorithm != "switchml" and len(all_reduces(joined)):
        settable.append(
            Change(
                context.makespan_s(changes.allreduce(joined, "switchml")),
                "all-reduces summed in the network (switchml)",
                'init_process_group("switchml"), or switchml train: gradients are summed on their way',
            )
        )
    if not np.any(context.kind == Kind.CODEC) and not np.any(ratios(context) > 1):
        for name, cost in context.codecs().items():
            setting = f"codec {name}: switchml train --codec {name}, or its communication hook for DDP (docs/codecs.md)"
            settable.append(Change(context.makespan_s(changes.codec(joined, cost, name)), f"codec {name}", setting))
    return settable


def _twice_as_fast(context: DiagnosisContext, moves: np.ndarray) -> Change:
    through_hosts = not any(ON_DEVICES.search(trace.backend) for trace in context.joined.traces)
    has_devices = bool((context.lane_kind == LaneKind.DEVICE).any())
    spared = ", or a backend that spares copies through hosts (nccl, where each rank has an accelerator of its own)"
    return Change(
        context.replayed_s(transfer_s=np.where(moves, context.transfer_s / 2, context.transfer_s)),
        "a network twice as fast",
        "a faster network: more links a host" + (spared if through_hosts and has_devices else ""),
    )


def _half_the_bytes(context: DiagnosisContext, network: Network) -> Change:
    """Replay all-reduces with the network cost of half their bytes."""
    reduces, elapsed_s = all_reduces(context.joined), context.transfer_s.copy()
    size = context.graph.op_types.bytes[context.graph.transfers.op_type[reduces]]
    cost = network.transfer(world_size(context.joined))
    elapsed_s[reduces] *= cost.seconds(size / 2) / np.maximum(cost.seconds(size), 1e-18)
    return Change(
        context.replayed_s(transfer_s=elapsed_s),
        "half the bytes, as bf16 lanes carry of float32",
        "bf16 lanes where gradients are float32: a bfloat16 model, or bf16_compress_hook",
    )


def _larger_buckets(context: DiagnosisContext, joined: Joined) -> list[Change]:
    """Return the best of the larger bucket sizes, with the present costs."""
    try:
        present = gradients(joined)
    except (GraphError, ConfigError):
        return []
    order = np.concatenate([[0], np.cumsum(np.diff(present.bucket) != 0)])
    sizes = np.bincount(order, present.bytes)
    caps = [cap for cap in LARGER_MIB if cap * MIB > np.median(sizes)]
    if not np.all(sizes > 0) or len(sizes) < 2 or not caps:
        return []
    present_s = context.makespan_s(in_buckets(joined, caps_of(present.bytes, order)))
    iteration_s, cap = min((context.makespan_s(in_buckets(joined, [cap * MIB])), cap) for cap in caps)
    if not np.isfinite([present_s, iteration_s]).all():
        return []
    iteration_s = max(iteration_s, context.iteration_s - (present_s - iteration_s))
    what = f"buckets of {cap} MiB in place of {bytes_text(float(np.median(sizes)))}"
    return [Change(iteration_s, what, f"DistributedDataParallel(…, bucket_cap_mb={cap})")]


def _more_overlap(context: DiagnosisContext) -> Change:
    """Return the lower bound of the iteration time if communication overlaps with all other work of a rank."""
    parts = context.causes.parts
    accumulated = ", or gradient accumulation with no_sync()" if len(all_reduces(context.joined)) else ""
    others_s = context.iteration_s - parts.by_rank[:, COMMUNICATION]
    return Change(
        float(np.maximum(others_s, parts.communication_s).max()),
        "as much of it behind other work as there is (a bound)",
        "more to hide behind: larger batches" + accumulated,
    )
