"""What had to come before what in a Kineto trace, beyond the order on a lane: launches before their kernels, forward
operators before their backward ones, a collective's call before its work, backward's thread within `backward()`, and
what streams and threads of an accelerator wait for (`kineto_waits.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.trace.events import NONE, LaneKind
from emulator.trace.kineto_waits import Waits

if TYPE_CHECKING:
    from emulator.trace.kineto import Reading
    from emulator.trace.kineto_communication import Communication


def find(reading: Reading, communication: Communication) -> tuple[np.ndarray, int]:
    """int32 (causes, 2), as `RankTrace.causes`, each pair once; and how many of them are inferred: the order between
    streams in traces without CUDA's own records of it."""
    waits = Waits(reading, communication)
    known = waits.recorded()
    inferred = waits.inferred()
    pairs = [
        *reading.launch_of().items(),
        *((event, call) for event, call in communication.launch.items() if reading.lane[event] != reading.lane[call]),
        *_forward_backward(reading),
        *_backward_calls(reading),
        *known,
        *inferred,
    ]
    causes = np.array(pairs, np.int64).reshape(-1, 2)[:, ::-1]  # (effect, cause) until here
    causes = np.unique(causes[causes[:, 0] != causes[:, 1]], axis=0)
    return causes.astype(np.int32), len(inferred)


def _forward_backward(reading: Reading) -> list[tuple[int, int]]:
    """(backward operator, forward operator), from the profiler's arrows; in traces without them, from autograd's
    sequence numbers."""
    if not reading.table.arrows:
        return _by_sequence(reading)
    lane_of = {key[:2]: lane for lane, key in enumerate(reading.lane_keys) if not key[2]}
    ends = [end for arrow in reading.table.arrows.values() for end in arrow if end]
    wanted = {(lane_of.get(end[:2]), (end[2] - reading.first_ts) * 1e-6) for end in ends}
    starts = {}
    for event in np.flatnonzero(np.isin(reading.start_s, [at for _, at in wanted])).tolist():
        # The innermost that begins there comes last: the operator, not what is wrapped around it.
        starts[int(reading.lane[event]), float(reading.start_s[event])] = event
    found = []
    for tail, head in reading.table.arrows.values():
        if tail and head:
            forward, backward = (
                starts.get((lane_of.get(end[:2]), (end[2] - reading.first_ts) * 1e-6)) for end in (tail, head)
            )
            if forward is not None and backward is not None:
                found.append((backward, forward))
    return found


def _by_sequence(reading: Reading) -> list[tuple[int, int]]:
    """Operators that put nothing on the tape carry the number that the next one will get, so of forward operators with
    the same number the last one counts (as in torch/csrc/profiler/kineto_shim)."""
    forward: dict[int, int] = {}
    backward: dict[int, int] = {}
    for row, sequence, is_backward in reading.table.autograd:
        event = int(reading.row_to_event[row])
        place = backward if is_backward else forward
        if sequence not in place or reading.start_s[event] >= reading.start_s[place[sequence]]:
            place[sequence] = event
    both = [(event, forward[sequence]) for sequence, event in backward.items() if sequence in forward]
    return [(later, sooner) for later, sooner in both if _end(reading, sooner) <= reading.start_s[later] + 1e-6]


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
    found = []
    for lane in np.unique(reading.lane[top]).tolist():
        worker = np.flatnonzero(top & (reading.lane == lane))
        after = np.searchsorted(reading.start_s[caller], reading.start_s[worker] + reading.duration_s[worker])
        before = np.searchsorted(ends, reading.start_s[worker], side="right") - 1
        bursts = np.flatnonzero(np.diff(after)) + 1
        for first, last in zip([0, *bursts.tolist()], [*bursts.tolist(), len(worker)], strict=True):
            if len(worker) and before[first] >= 0:
                found.append((int(worker[first]), int(by_end[before[first]])))
            if len(worker) and after[last - 1] < len(caller):
                found.append((int(caller[after[last - 1]]), int(worker[last - 1])))
    return found


def _end(reading: Reading, event: int) -> float:
    return float(reading.start_s[event] + reading.duration_s[event])
