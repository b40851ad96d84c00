"""Tensors whose sums are known without the code under test: whole numbers times a power of two, few enough bits that any
order of adding, and any block exponent that fits the block, gives the exact sum.

Narrow lanes round by design; there the sum is known up to their rounding.
"""

from __future__ import annotations

import zlib

import numpy as np

from emulator.faults.plan import Call, JobPlan
from switchml.worker import WIRES, FORMATS, headroom

_ELEMENTS = 32
"""Elements that share a scale; a chunk has several."""


def source(job: JobPlan, call: Call, seed: tuple, rank: int) -> np.ndarray:
    """What `rank` contributes. `seed` makes every all-reduce of every incarnation of a job another one."""
    generator = np.random.default_rng((*seed, rank))
    if call.dtype.startswith("int"):
        reach = 1000
        x = generator.integers(-reach, reach, call.numel, call.dtype)
        if call.special == "overflow":
            x[int(seed[-1]) % call.numel] = np.iinfo(call.dtype).max
        return x
    reach = 60 if call.dtype == "float16" else 1000
    x = generator.integers(-reach, reach + 1, call.numel).astype(np.float64)
    if call.special == "zeros":
        x[:] = 0
    if call.dtype != "float16":
        groups = -(-call.numel // _ELEMENTS)
        x *= np.repeat(2.0 ** generator.integers(0, 9, groups), _ELEMENTS)[: call.numel] * 2.0**call.exponent
    place = int(seed[-1]) % call.numel
    if call.special == "nan" and rank == 0:
        x[place] = np.nan
    elif call.special == "inf" and rank == job.workers - 1:
        x[place] = np.inf
    elif call.special == "infs":
        x[place] = np.inf if rank % 2 else -np.inf
    return x.astype(call.dtype)


def overflows(job: JobPlan, call: Call, seed: tuple) -> bool:
    """Whether an integer sum does not fit its type."""
    if not call.dtype.startswith("int"):
        return False
    total = sum(source(job, call, seed, rank).astype(object) for rank in range(job.workers))
    limits = np.iinfo(call.dtype)
    return bool(((total > limits.max) | (total < limits.min)).any())


def expected(job: JobPlan, call: Call, seed: tuple) -> tuple[np.ndarray, float]:
    """(the exact result, how far from it an element may be)."""
    parts = [source(job, call, seed, rank) for rank in range(job.workers)]
    if call.dtype.startswith("int"):
        total = sum(part.astype(object) for part in parts)
        if call.op == "mean":
            total = np.array([abs(v) // job.workers * (1 if v >= 0 else -1) for v in total], object)
        return total.astype(call.dtype), 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduce([part.astype(np.float64) for part in parts])
        result = (total / job.workers if call.op == "mean" else total).astype(call.dtype)
    if job.wire == "int32" or call.dtype == "float64":
        return result, 0.0
    largest = max((float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) for part in parts), default=0.0)
    levels = headroom(job.workers)[WIRES[FORMATS[f"float32/{job.wire}"]]]
    # A rank's value is off by half a step, and a step is the block's power of two over the levels.
    return result, job.workers * 2 * largest / levels + np.spacing(np.float32(largest)) + 1e-2 * (call.dtype == "float16")


def is_right(got: np.ndarray, result: np.ndarray, off: float) -> bool:
    """Whether an element-wise comparison holds, infinities and NaN included."""
    if not off:
        return np.array_equal(got, result, equal_nan=got.dtype.kind == "f")
    finite = np.isfinite(result.astype(np.float64))
    if not np.array_equal(np.isfinite(got.astype(np.float64)), finite):
        return False
    return bool(np.all(np.abs(got[finite].astype(np.float64) - result[finite].astype(np.float64)) <= off))


def checksum(x: np.ndarray) -> int:
    """For the trace."""
    return zlib.crc32(x.tobytes())
