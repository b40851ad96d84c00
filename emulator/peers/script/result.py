"""Result of a script: iteration time by part, and memory at its peak."""

import dataclasses
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from emulator.peers.script.clock import Collective, Span
from emulator.peers.script.session import Session
from emulator.peers.script.stages import WAITING
from switchml.errors import EmulationError
from switchml.units import memory_text


@dataclass(frozen=True)
class ScriptResult:
    """Result of one rank. Times in seconds, sizes in bytes."""

    script: str
    accelerator: str
    cluster: str
    gpus: int
    rank: int
    iteration_s: float
    parts: dict[str, float]
    """Seconds of the iteration by activity of the device; their sum is the iteration time."""
    communication_s: float
    """Duration of all collectives, hidden or not."""
    collectives: dict[str, dict[str, float]]
    """Calls, bytes and seconds of an iteration, by operation."""
    operators: int
    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: float
    memory: dict[str, int]
    """Allocated bytes at the peak, by use."""
    modules: dict[str, dict[str, float]]
    """By module, equal layers together ("h.*.mlp"), "" for operators outside modules: seconds of its kernels, forward
    and backward, and bytes of its activations at the peak."""
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def result_of(session: Session, script: str) -> ScriptResult:
    """Return the result of a run. Raises EmulationError if it contains no iteration."""
    if not session.device.operators:
        raise EmulationError(f'{script} put nothing on a GPU: tensors have to be moved to "cuda"')
    if not session.boundaries:
        raise EmulationError(
            f"{script} ended without an optimizer's step (or an update of parameters and another forward pass), so "
            "there is no iteration to report"
        )
    _check_memory(session, script)
    notes = []
    start_s, first = session.boundaries[-2] if len(session.boundaries) > 1 else (0.0, 0)
    end_s, last = session.boundaries[-1]
    if end_s <= start_s:
        raise EmulationError(f'{script} put nothing on a GPU in its last iteration: expected training on "cuda"')
    if len(session.boundaries) < 2:
        notes.append("the script ran one iteration: its time includes setup")
    if session.rounds.idle:
        notes.append(f"optimizers that made no step in the iteration: {session.rounds.idle}")
    if session.compiled.is_used and (session.replayer.has_diverged or not session.replayer.is_ready):
        why = "iterations differ" if session.replayer.has_diverged else "the script ran fewer than four iterations"
        notes.append(f"torch.compile is ignored, as {why}: operators are those of eager mode")
    inductor = sys.modules.get("torch._inductor.config")
    if session.compiled.is_used and getattr(inductor, "_micro_pipeline_tp", False):
        notes.append(
            "asynchronous tensor parallelism (_micro_pipeline_tp) is not emulated: its exchanges are not hidden"
        )
    if session.device.known.assumed_reads:
        notes.append(
            "unknown values that the script read (a loss, a norm), assumed plausible: "
            f"{session.device.known.assumed_reads}"
        )
    if session.device.known.assumed_masks:
        notes.append(f"masks assumed to select half of the elements: {session.device.known.assumed_masks}")
    if session.device.known.even_counts:
        notes.append(f"counts (tokens of experts, classes) assumed even: {session.device.known.even_counts}")
    if session.device.known.assumed_lengths:
        notes.append(
            "kernels of attention over packed sequences of unknown lengths, assumed equal: "
            f"{session.device.known.assumed_lengths}"
        )
    if packages := _of_packages(session, session.clock.spans[first:last]):
        notes.append(f"operators of packages, taken to be bound by memory: {', '.join(packages)}")
    if session.host_steps:
        notes.append(f"optimizer steps on the host, whose computation takes no time here: {session.host_steps}")
    if session.checkpoints.skipped:
        notes.append(f"distributed checkpoints neither written nor read: {session.checkpoints.skipped}")
    spans = session.clock.spans[first:last]
    busy, gaps = _busy(session, spans, start_s, end_s)
    parts = dict(sorted(busy.items(), key=lambda entry: -entry[1]))
    exposed_s, waited_s = _stalls(session, spans, gaps)
    if exposed_s:
        parts["exposed communication"] = exposed_s
    if waited_s:
        parts[WAITING] = waited_s
    parts["waiting for the host"] = max(0.0, end_s - start_s - sum(parts.values()))
    collectives: dict[str, dict[str, float]] = {}
    for one in spans:
        if isinstance(one, Collective):
            entry = collectives.setdefault(one.operation, {"calls": 0, "bytes": 0.0, "seconds": 0.0})
            entry["calls"] += 1
            entry["bytes"] += one.size_bytes
            entry["seconds"] += one.duration_s
    return ScriptResult(
        script,
        session.cluster.device.title,
        session.cluster.name,
        session.world,
        session.ranks.rank,
        end_s - start_s,
        parts,
        sum(entry["seconds"] for entry in collectives.values()),
        collectives,
        sum(not isinstance(one, Collective) for one in spans),
        session.memory.peak_allocated_bytes,
        session.memory.peak_reserved_bytes,
        session.cluster.device.memory_bytes,
        session.ledger.at_peak(),
        _modules(session, spans),
        notes,
    )


_SHAPED = ("matrix products", "attention")


def _of_packages(session: Session, spans: list[Span]) -> list[str]:
    """Return the names of operators that are not torch's, except products and attention."""
    numbers = {one.operator for one in spans if not isinstance(one, Collective)}
    found = (session.device.operators[one] for one in numbers if session.title_of(one) not in _SHAPED)
    return sorted({one.base for one in found if one.is_of_package})


def _check_memory(session: Session, script: str) -> None:
    """Raise EmulationError if compiled code ran eagerly to the end, without a memory limit, and used too much."""
    capacity, taken = session.cluster.device.memory_bytes, session.memory.peak_reserved_bytes
    if session.compiled.is_used and not session.replayer.is_ready and taken > capacity:
        raise EmulationError(
            f"{script} takes {memory_text(taken)} of {memory_text(capacity)} without torch.compile, whose savings are "
            "known from the fourth iteration on: expected a script that runs at least four"
        )


def _modules(session: Session, spans: list[Span]) -> dict[str, dict[str, float]]:
    found: defaultdict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "activation_bytes": 0})
    for one in spans:
        if not isinstance(one, Collective):
            found[one.module]["seconds"] += one.duration_s
    for name, size in session.ledger.activations_at_peak().items():
        found[name]["activation_bytes"] += size
    return dict(sorted(found.items(), key=lambda entry: -entry[1]["seconds"]))


def _busy(
    session: Session, spans: list[Span], start_s: float, end_s: float
) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Return the device's seconds by kind of kernel, overlaps counted once, and the gaps in which none runs."""
    busy: defaultdict[str, float] = defaultdict(float)
    covered_s = start_s
    gaps: list[tuple[float, float]] = []
    for one in sorted((one for one in spans if not isinstance(one, Collective)), key=lambda span: span.start_s):
        if one.start_s > covered_s:
            gaps.append((covered_s, one.start_s))
        begin_s, until_s = max(one.start_s, covered_s), min(one.start_s + one.duration_s, end_s)
        if until_s > begin_s:
            busy[session.title_of(one.operator)] += until_s - begin_s
            covered_s = until_s
    if end_s > covered_s:
        gaps.append((covered_s, end_s))
    return busy, gaps


def _stalls(session: Session, spans: list[Span], gaps: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the seconds of `gaps` during which data is transferred, and other seconds during which a stream waits for
    a transfer whose other ranks are not ready."""
    transfers = {one.start_s + one.duration_s: one.start_s for one in spans if isinstance(one, Collective)}
    sent = [(start_s, until_s) for until_s, start_s in transfers.items()]
    waited = [
        (wait.idle_s, transfers[wait.until_s])
        for wait in session.clock.waits
        if wait.until_s in transfers and wait.idle_s < transfers[wait.until_s]
    ]
    exposed_s = _overlap(sent, gaps)
    return exposed_s, _overlap(sent + waited, gaps) - exposed_s


def _overlap(intervals: list[tuple[float, float]], gaps: list[tuple[float, float]]) -> float:
    """Return the seconds of `gaps` (in order) that are in at least one of `intervals`."""
    total_s, at_s, place = 0.0, 0.0, 0
    for begin_s, until_s in sorted(intervals):
        begin_s, at_s = max(begin_s, at_s), max(at_s, until_s)
        while place < len(gaps) and gaps[place][1] <= begin_s:
            place += 1
        for left_s, right_s in gaps[place:]:
            if left_s >= until_s:
                break
            total_s += max(0.0, min(until_s, right_s) - max(begin_s, left_s))
    return total_s
