"""Tensors whose sums are known independently of the code under test: integers times a power of two, of so few bits that
any order of addition and any sufficient block exponent give the exact sum.

Narrow lanes round by design; there the sum is known up to their rounding.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np

from emulator.networks.faults.plan import JobPlan, PlannedCall
from switchml.protocol.fixedpoint import headroom, spreads
from switchml.protocol.sizes import EXACT, WIRES

_ELEMENTS = 32
"""Elements that share a scale; a chunk has several scales."""
_APART = 2.0**-50
"""Ratio of scales with exact sums: large enough that a chunk needs further rounds."""


def source(job: JobPlan, call: PlannedCall, seed: tuple[int, ...], rank: int) -> np.ndarray:
    """Contribution of `rank`. `seed` differs for every collective of every incarnation of a job."""
    generator = np.random.default_rng((*seed, rank))
    numel = call.numel * (job.workers if call.kind == "reduce_scatter" else 1)
    if call.dtype.startswith("int"):
        x = generator.integers(-1000, 1000, numel, call.dtype)
        if call.special == "overflow":
            x[int(seed[-1]) % numel] = np.iinfo(call.dtype).max
        return x
    reach = 60 if call.dtype == "float16" else 1000
    x = generator.integers(-reach, reach + 1, numel).astype(np.float64)
    if call.special == "zeros":
        x[:] = 0
    if call.dtype != "float16":
        groups = -(-numel // _ELEMENTS)
        scales = 2.0 ** generator.integers(0, 9, groups)
        if job.wire == EXACT:
            scales *= _APART ** (np.arange(groups) % 3)
        x *= np.repeat(scales, _ELEMENTS)[:numel] * 2.0**call.exponent
    put_special(x, call, int(seed[-1]) % numel, rank, job.workers)
    return x.astype(call.dtype)


def put_special(x: np.ndarray, call: PlannedCall, place: int, rank: int, workers: int) -> None:
    """Write non-finite values into the tensor of a rank at `place`, if the call requires it."""
    if call.special == "nan" and rank == 0:
        x[place] = np.nan
    elif call.special == "inf" and rank == workers - 1:
        x[place] = np.inf
    elif call.special == "infs":
        x[place] = np.inf if rank % 2 else -np.inf


@dataclass(frozen=True)
class Exact:
    """A collective's expected result: `values`, each within `off`; or an error, if it `overflows`."""

    values: np.ndarray
    off: float = 0.0
    overflows: bool = False

    def at(self, call: PlannedCall, rank: int) -> Exact:
        """The part that one rank receives."""
        if call.kind == "reduce_scatter":
            return replace(self, values=self.values[rank * call.numel : (rank + 1) * call.numel])
        if call.kind == "reduce" and rank != call.root:
            return Exact(np.full_like(self.values, UNTOUCHED))
        return self

    def wrong(self, result: np.ndarray) -> np.ndarray:
        """Indices of the elements that are wrong."""
        if result.dtype.kind != "f":
            return np.flatnonzero(result != self.values)
        expected, actual = self.values.astype(np.float64), result.astype(np.float64)
        with np.errstate(invalid="ignore"):
            both_nan = np.isnan(actual) & np.isnan(expected)
            is_near = (actual == expected) | both_nan | (np.abs(actual - expected) <= self.off)
        return np.flatnonzero(~is_near)


UNTOUCHED = 99
"""Content of result tensors before the call."""


def target(job: JobPlan, call: PlannedCall, dtype: np.dtype) -> np.ndarray:
    """A rank's result tensor."""
    numel = {"all_gather": call.numel * job.workers, "barrier": 0}.get(call.kind, call.numel)
    return np.full(numel, UNTOUCHED, dtype)


def expected(job: JobPlan, call: PlannedCall, seed: tuple[int, ...]) -> Exact:
    """Expected result of the ranks' collective; for a reduce-scatter, of all ranks together."""
    parts = [source(job, call, seed, rank) for rank in range(job.workers)]
    if call.kind == "all_gather":
        return Exact(np.concatenate(parts))
    if call.kind in ("broadcast", "barrier"):
        return Exact(parts[call.root] if call.kind == "broadcast" else parts[0][:0])
    if call.dtype.startswith("int"):
        total = np.add.reduce([part.astype(object) for part in parts])
        limits = np.iinfo(call.dtype)
        if call.special == "overflow" and any(value > limits.max or value < limits.min for value in total):
            return Exact(np.zeros(0, call.dtype), overflows=True)
        if call.op == "mean":
            total = np.array([abs(v) // job.workers * (1 if v >= 0 else -1) for v in total], object)
        return Exact(total.astype(call.dtype))
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduce([part.astype(np.float64) for part in parts])
        values = (total / job.workers if call.op == "mean" else total).astype(call.dtype)
    if job.wire in ("int32", EXACT) or call.dtype == "float64":
        return Exact(values)
    largest = max(float(np.abs(part[np.isfinite(part)], dtype=np.float64).max(initial=0.0)) for part in parts)
    wire = WIRES[job.wire]
    half_step = largest * (1 << spreads(job.workers)[wire]) / headroom(job.workers)[wire]
    values[~np.isfinite(values)] = np.nan  # docs/protocol.md, section 5: narrow lanes don't distinguish infinities
    # Each rank's value is off by up to half a step, and a step is a power of two over the levels: the block's, or that
    # of a larger guess; plus the rounding to half precision.
    return Exact(values, job.workers * half_step + (1.0 if call.dtype == "float16" else 0.0))


def checksum(x: np.ndarray) -> int:
    """CRC-32 of the bytes, for the trace."""
    return zlib.crc32(x.tobytes())
