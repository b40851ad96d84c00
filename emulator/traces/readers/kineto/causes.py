"""What had to come before what in a Kineto trace, beyond the order on a lane: launches before their kernels, forward
operators before their backward ones, a collective's call before its work, backward's thread within `backward()`, and
what streams and threads of an accelerator wait for (`kineto/waits.py`).
"""

from __future__ import annotations

import numpy as np

from emulator.traces.events import NONE, LaneKind
from emulator.traces.readers.kineto.communication import Communication
from emulator.traces.readers.kineto.reading import Reading
from emulator.traces.readers.kineto.waits import Waits


def find(reading: Reading, communication: Communication, more: list[tuple[int, int]]) -> tuple[np.ndarray, int]:
    """int32 (causes, 2), as `RankTrace.causes`, each pair once; and how many of them are inferred: the order between
    streams in traces without CUDA's own records of it. `more`: (effect, cause) that others know of."""
    waits = Waits(reading, communication)
    inferred = waits.inferred()
    called = [
        (event, call) for event, call in communication.launch.items() if reading.lane[event] != reading.lane[call]
    ]
    pairs = [*called, *_backward_calls(reading), *waits.recorded(), *more, *inferred]
    launched = np.flatnonzero(reading.launch_of() != NONE)
    causes = np.concatenate(
        [
            np.stack([reading.launch_of()[launched], launched], axis=1),
            _forward_backward(reading),
            np.array(pairs, np.int64).reshape(-1, 2)[:, ::-1],
        ]
    )
    return np.unique(causes[causes[:, 0] != causes[:, 1]], axis=0).astype(np.int32), len(inferred)


def _forward_backward(reading: Reading) -> np.ndarray:
    """int64 (pairs, 2): forward operator, backward operator; from the profiler's arrows, in traces without them from
    autograd's sequence numbers."""
    ends = reading.table.arrows.arrays()
    if not len(ends["id"]):
        return _by_sequence(reading)
    # An arrow's end is where an operator begins: of several the innermost, not what is wrapped around it.
    place = {}
    starts_s = (ends["ts"] - reading.first_ts) * 1e-6
    lanes = reading.lane_of_table[ends["lane"]]
    for event in np.flatnonzero(np.isin(reading.start_s, starts_s)).tolist():
        place[int(reading.lane[event]), float(reading.start_s[event])] = event
    both: dict[int, list[int]] = {}
    for id, is_head, lane, at_s in zip(
        ends["id"].tolist(), ends["is_head"].tolist(), lanes.tolist(), starts_s.tolist(), strict=True
    ):
        event = place.get((lane, at_s))
        if event is not None:
            both.setdefault(id, [NONE, NONE])[is_head] = event
    pairs = np.array([pair for pair in both.values() if NONE not in pair], np.int64).reshape(-1, 2)
    return pairs


def _by_sequence(reading: Reading) -> np.ndarray:
    """Operators that put nothing on the tape carry the number that the next one will get, so of forward operators with
    the same number the last one counts (as in torch/csrc/profiler/kineto_shim)."""
    rows = reading.table.autograd.arrays()
    events = reading.row_to_event[rows["row"]]
    order = np.lexsort((reading.start_s[events], rows["sequence"]))
    last: dict[tuple[bool, int], int] = {}
    for backward, sequence, event in zip(
        rows["is_backward"][order].tolist(), rows["sequence"][order].tolist(), events[order].tolist(), strict=True
    ):
        last[bool(backward), sequence] = event
    both = [(last[False, at], event) for (backward, at), event in last.items() if backward and (False, at) in last]
    pairs = np.array(both, np.int64).reshape(-1, 2)
    end_s = reading.start_s + reading.duration_s
    return pairs[end_s[pairs[:, 0]] <= reading.start_s[pairs[:, 1]] + 1e-6]


def _backward_calls(reading: Reading) -> list[tuple[int, int]]:
    """On a machine with an accelerator, `backward()` runs on autograd's thread while the caller's waits: what the
    caller did last before comes before it, what it does next comes after it."""
    if not reading.lanes or reading.lanes[0].kind != LaneKind.HOST:
        return []
    nodes = [kind for kind, (_, name) in enumerate(reading.kinds) if str(name).startswith("autograd::engine::evaluate")]
    top = (reading.parent == NONE) & np.isin(reading.kind, nodes) & (reading.lane != 0)
    caller = np.flatnonzero(reading.lane == 0)
    by_end = caller[np.argsort(reading.start_s[caller] + reading.duration_s[caller], kind="stable")]
    ends = reading.start_s[by_end] + reading.duration_s[by_end]
    pairs = []
    for lane in np.unique(reading.lane[top]).tolist():
        worker = np.flatnonzero(top & (reading.lane == lane))
        after = np.searchsorted(reading.start_s[caller], reading.start_s[worker] + reading.duration_s[worker])
        before = np.searchsorted(ends, reading.start_s[worker], side="right") - 1
        bursts = np.flatnonzero(np.diff(after)) + 1
        for first, last in zip([0, *bursts.tolist()], [*bursts.tolist(), len(worker)], strict=True):
            if len(worker) and before[first] >= 0:
                pairs.append((int(worker[first]), int(by_end[before[first]])))
            if len(worker) and after[last - 1] < len(caller):
                pairs.append((int(caller[after[last - 1]]), int(worker[last - 1])))
    return pairs
