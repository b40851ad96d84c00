"""Repeated rounds of the switchml protocol. Floats are sent with an agreed exponent; if a chunk's exponent has not been
announced, ranks guess that of the same position in the previous all-reduce, and if gradients have grown or shrunk too
much the round is repeated (docs/protocol.md, section 4). Traces of the switchml backend show how often; otherwise a
constant is used.

Exponents are announced for chunks that follow others in the same slot. The first chunks of an all-reduce, one for each
slot, are therefore guessed, unless it queued behind another.
"""

from collections.abc import Sequence

import numpy as np

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import LaneKind, RankTrace, WireWhat
from switchml.control.allocation import default_slots
from switchml.protocol.sizes import LANE_BYTES, PAYLOAD_BYTES

REPEAT_SHARE = {"int32": 0.26, "int16": 0.08, "int8": 0.18}
"""Lanes → share of guessed chunks that are repeated, as measured when training on the digits: `switchml train
--aggregator software --transport udp --ranks 4 --steps 200 --wire int32|int16|int8 --json`, packets sent and not
retransmitted over chunks, less 1. Gradients that change less from step to step cause fewer: those of the MLP in
scripts/examples/ddp_models.py 0.01 to 0.02."""
ELEMENTS = {lanes: PAYLOAD_BYTES // size for lanes, size in LANE_BYTES.items()}
"""Elements of a chunk of floats."""


def guessed_bytes(ranks: int) -> int:
    """Return the maximum bytes on the wire of guessed chunks: one for each slot of such a job."""
    return PAYLOAD_BYTES * default_slots(ranks)


def times_usual(traces: Sequence[RankTrace]) -> float | None:
    """Return the factor on `REPEAT_SHARE` in these traces; None without packet records."""
    factors = [one for trace in traces if (one := _of_rank(trace)) is not None]
    return float(np.mean(factors)) if factors else None


def _of_rank(trace: RankTrace) -> float | None:
    wire, events = trace.wire, trace.events
    if wire is None or not (wire.what == WireWhat.SENT).any():
        return None
    sent = wire.what == WireWhat.SENT
    rows, times = np.unique(np.stack([wire.job[sent], wire.tensor[sent], wire.chunk[sent]]), axis=1, return_counts=True)
    _, tensor = np.unique(rows[:2], axis=1, return_inverse=True)
    repeated = np.bincount(tensor.ravel(), weights=times - 1)
    guessed = np.minimum(np.bincount(tensor.ravel()), default_slots(trace.world_size))
    if not repeated.any():
        return 0.0
    transport = [lane.kind == LaneKind.TRANSPORT for lane in trace.lanes]
    ours = np.array(transport)[events.lane] & (events.collective == Collective.ALL_REDUCE)
    elements = float(events.bytes[ours].sum()) / 4 / rows.shape[1]
    lanes = min(ELEMENTS, key=lambda name: abs(np.log(max(elements, 1.0) / ELEMENTS[name])))
    return float(repeated.sum() / guessed[repeated > 0].sum() / REPEAT_SHARE[lanes])
