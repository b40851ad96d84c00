"""Sums that don't wait for late ranks: a model of the calling program (host_agent/stragglers.py and
pytorch/stragglers.py), and an audit of the results.

Each bucket has an error memory. A rank's contribution to a call is either in its sum, or returned to the memory; so
after the call each chunk of the memory equals the contribution or is zero, and the sum is that of the ranks whose chunk
is zero. (Infinities and NaN may be in the sum and the remainder in the memory: docs/protocol.md, section 13.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from emulator.networks.faults.plan import JobPlan, PlannedCall
from emulator.networks.faults.tensors import put_special
from emulator.networks.netsim.config import LinkConfig
from host_agent.calls import LateContributions, Request
from host_agent.core import format_of
from switchml.protocol.fixedpoint import FORMATS, headroom, spreads
from switchml.protocol.sizes import WIRES
from switchml.protocol.worker import elements_per_chunk
from switchml.protocol.worker_state import QUEUES

Share = tuple[np.ndarray | float, int]
"""A rank's part of a chunk's sum: its values, and 1 if the rank is counted as contributing."""
_NOTHING: Share = (0.0, 0)
_ROUNDED = 2.0**-22
"""Relative rounding error: a scaled sum is rounded twice, to at least 24 bits."""
_FRAMING_BYTES = 80
"""Upper bound of a packet's header bytes, from Ethernet to protocol 2."""
_REACH = 100
_SCALES = (0, 0, 1, 2, 7)


def gradient(job: JobPlan, call: PlannedCall, seed: tuple[int, ...], rank: int) -> np.ndarray:
    """A rank's computed gradient for a call. All sums over all steps are exact in float32."""
    generator = np.random.default_rng((*seed, rank, 1))
    x = generator.integers(-_REACH, _REACH + 1, call.numel).astype(call.dtype)
    if call.special == "zeros":
        x[:] = 0
    x *= 2.0 ** float(generator.choice(_SCALES) + call.exponent)
    put_special(x, call, int(seed[-1]) % call.numel, rank, job.workers)
    return x


def usual_s(job: JobPlan, link: LinkConfig) -> float:
    """Upper bound of the time for a step's sums if no rank is late: three rounds for each chunk, in the slots of one of
    two queues."""
    buckets = {call.bucket: call for call in job.calls if call.bucket >= 0}.values()
    chunks = sum(-(-call.numel // _chunk(job, call)) for call in buckets)
    packet_s = 8 * (job.payload_bytes + _FRAMING_BYTES) / link.rate_bps
    return 3 * (chunks / max(job.slots // QUEUES, 1) + 1) * 2 * (link.delay_s + packet_s)


def _chunk(job: JobPlan, call: PlannedCall) -> int:
    """Elements per chunk."""
    return elements_per_chunk(FORMATS[format_of(call.dtype, job.wire)], job.payload_bytes, job.workers)


class ErrorMemories:
    """Error memories of one rank of `job`, from its join. `in_place`: sums overwrite their input, as in the DDP hook,
    or are written elsewhere, as in PartialRounds."""

    def __init__(self, job: JobPlan, in_place: bool):
        self._late = {
            call.bucket: LateContributions(np.zeros(call.numel, call.dtype)) for call in job.calls if call.bucket >= 0
        }
        self._in_place = in_place

    @property
    def is_behind(self) -> bool:
        """Whether all of the last step was late: the others may have gone on, so the next step is not computed."""
        return all(late.is_behind for late in self._late.values())

    def request(
        self,
        job: JobPlan,
        call: PlannedCall,
        own: np.ndarray | None,
        book: CallRecord,
        rank: int,
        on_done: Callable[[BaseException | None, np.ndarray], None],
    ) -> Request:
        """Request of a call that contributes `own` (None: nothing) plus the memory's content; `book` is the call's."""
        late = self._late[call.bucket]
        if own is not None:
            late.values += own
        source = late.values.copy() if self._in_place else late.values
        target = source if self._in_place else np.zeros_like(source)
        book.contributed[rank] = source.copy()

        def done(error: BaseException | None) -> None:
            if error is None:
                book.entries[rank] = Entry(target.copy(), late.values.copy(), late.ranks, late.late_chunks, late.chunks)
            on_done(error, target)

        at = source.ctypes.data, target.ctypes.data
        return Request(*at, call.numel, call.dtype, call.op, done, keep=(source, target), late=late)


@dataclass(frozen=True)
class Entry:
    """One rank's outcome: its result, the memory's content afterwards, and the values of `LateContributions`."""

    result: np.ndarray
    kept: np.ndarray
    ranks: int
    late_chunks: int
    chunks: int


@dataclass
class CallRecord:
    """One call over all ranks: the contribution of each rank, and the outcome of the ranks whose call has ended."""

    contributed: dict[int, np.ndarray] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)


def audit(job: JobPlan, call: PlannedCall, book: CallRecord, is_calm: bool) -> str:
    """Describe what is wrong with a call, or return "". Ranks without an entry may have contributed to any of its
    chunks."""
    if not book.entries:
        return ""
    (first, entry), *others = sorted(book.entries.items())
    for rank, other in others:
        if other.result.tobytes() != entry.result.tobytes():
            return f"bits of rank {rank} differ from those of rank {first}"
        if other.ranks != entry.ranks:
            return f"rank {rank} says that {other.ranks} ranks are in it, rank {first} {entry.ranks}"
    if is_calm and (entry.ranks < job.workers or any(each.late_chunks for each in book.entries.values())):
        return f"nobody was late, but only {entry.ranks} ranks are in it"
    size = _chunk(job, call)
    least, has_least = job.workers, False
    kept_chunks = dict.fromkeys(book.entries, 0)
    for start in range(0, call.numel, size):
        part = slice(start, start + size)
        choices: list[tuple[Share, ...]] = []
        for rank, own in book.contributed.items():
            chunk = own[part].astype(np.float64)
            is_finite = np.isfinite(chunk)
            finite, announced = np.where(is_finite, chunk, 0.0), np.where(is_finite, 0.0, chunk)
            if rank not in book.entries:
                choices.append((_NOTHING, (announced, 0), (chunk, 1)))
                continue
            kept = book.entries[rank].kept[part]
            if not kept.any():  # NaN is not zero
                choices.append(((chunk, 1), (announced, 0)) if not finite.any() else ((chunk, 1),))
            elif kept.tobytes() == own[part].tobytes():
                kept_chunks[rank] += 1
            elif np.array_equal(kept, finite):
                kept_chunks[rank] += 1
                choices.append(((announced, 0),))
            else:
                return f"elements {start} ff.: the memory of rank {rank} is neither what it contributed nor zeros"
        counts = _counts(job, call, book, part, choices, entry.ranks)
        if not counts:
            inside = [rank for rank, each in sorted(book.entries.items()) if not each.kept[part].any()]
            return f"elements {start} ff. are not the sum of ranks {inside}, whose memory is empty"
        has_least |= entry.ranks in counts
        least = min(least, max(counts))
    if entry.ranks > least or not (has_least or entry.ranks == job.workers):
        return f"{entry.ranks} ranks are said to be in it, which fits no chunk"
    for rank, each in book.entries.items():
        if each.late_chunks < kept_chunks[rank]:  # a chunk of zeros may have been late, too
            return f"rank {rank} counts {each.late_chunks} late chunks, but {kept_chunks[rank]} are in its memory"
    return ""


def _counts(
    job: JobPlan, call: PlannedCall, book: CallRecord, part: slice, choices: list[tuple[Share, ...]], least: int
) -> set[int]:
    """Numbers of ranks that the aggregator may have counted in a chunk, given its sum. `choices`: possible parts of
    each rank in it. Ranks that contribute only zeros count, too."""
    result = next(iter(book.entries.values())).result[part].astype(np.float64)
    largest = max(float(np.abs(own[np.isfinite(own)]).max(initial=0.0)) for own in book.contributed.values())
    off, is_narrow = 0.0, format_of(call.dtype, job.wire) != call.dtype
    if is_narrow:
        lanes = WIRES[job.wire]
        off = job.workers * largest * (1 << spreads(job.workers)[lanes]) / headroom(job.workers)[lanes]
        off *= job.workers  # scaled to all ranks
    found = set()
    for shares in product(*choices):
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.zeros(len(result))
            for values, _ in shares:
                total += values
            for count in range(max(least, sum(ranks for _, ranks in shares), 1), job.workers + 1):
                wanted = total * (job.workers / count) / (job.workers if call.op == "mean" else 1)
                if _matches(result, wanted, off, is_narrow):
                    found.add(count)
    return found


def _matches(result: np.ndarray, wanted: np.ndarray, off: float, is_narrow: bool) -> bool:
    """Whether a result matches. `is_narrow`: narrow lanes don't distinguish infinities
    (docs/protocol.md, section 5)."""
    with np.errstate(invalid="ignore"):
        if is_narrow:
            wanted = np.where(np.isfinite(wanted), wanted, np.nan)
        is_near = (result == wanted) | (np.abs(result - wanted) <= np.abs(wanted) * _ROUNDED + off)
        return bool((is_near | (np.isnan(result) & np.isnan(wanted))).all())
