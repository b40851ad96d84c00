"""Resource limits for building and replaying a job's graph. Each number of a description is within its range, but their
product (layers times micro-batches times ranks) may be too large, so code that creates ops checks its budget first.
"""

import math
import time

import psutil

from emulator.jobs.workload.job import Job
from switchml.errors import BudgetSpent, ConfigError

BYTES_PER_OP = 100
"""Peak memory per op of graph, costs and replay together: 81 measured on 29.5 million operations (GPT-3 175B on 16,384
accelerators, `--fold tensor`), plus a margin."""
MAX_OPS = 2**31 - 1
"""Largest int32."""
STEP_S = 2e-9
RANK_STEPS = 30_000
"""Cost of adding a rank to the graph, in steps of STEP_S: 60 us of Python."""
OPS_PER_RANK = 40
"""Memory of a rank's streams, groups and graph entries, in ops."""


class Budget:
    """Memory and time limits from now on; default: free memory of this machine, unlimited time."""

    def __init__(self, memory_bytes: float | None = None, seconds: float | None = None) -> None:
        available = psutil.virtual_memory().available
        self.memory_bytes = min(available, memory_bytes or math.inf)
        self.seconds = math.inf if seconds is None else seconds
        self.began_s = time.perf_counter()

    @property
    def left_s(self) -> float:
        """Remaining seconds; infinity if unlimited."""
        return self.seconds - (time.perf_counter() - self.began_s)

    def check_time(self) -> None:
        """Raise BudgetSpent once the time is over."""
        if self.left_s < 0:
            raise BudgetSpent(f"the job was not built after {self.seconds:g} s of wall-clock time; {_ADVICE}")

    def check_steps(self, steps: float, what: str) -> None:
        """Raise BudgetSpent where `what`, a compiled loop of `steps` simple steps, would exceed the remaining time."""
        if steps * STEP_S > self.left_s:
            raise BudgetSpent(f"{what} takes about {steps * STEP_S:.0f} s; {self.seconds:g} s are allowed in all")

    def check_bytes(self, size_bytes: float, what: str) -> None:
        """Raise ConfigError where `what` needs more memory than is free."""
        if size_bytes > self.memory_bytes:
            raise ConfigError(f"{what} need about {_size(size_bytes)}, but {_size(self.memory_bytes)} are free")

    def check_ops(self, ops: float) -> None:
        """Raise ConfigError or BudgetSpent where a pipeline's graph is already too large."""
        if ops > MAX_OPS or ops * BYTES_PER_OP > self.memory_bytes:
            raise ConfigError(
                f"a pipeline of this job has more than {int(ops):,} operations; playing them needs more than "
                f"{_size(ops * BYTES_PER_OP)}, but {_size(self.memory_bytes)} are free. {_ADVICE.capitalize()}"
            )
        self.check_time()

    def check_ranks(self, job: Job, ops: int, data: int, tensor: int) -> None:
        """Raise ConfigError unless the graph of `ops` operations per pipeline, replicated `data` times `tensor` times,
        fits into memory."""
        count = ops * data * tensor
        self.check_steps(RANK_STEPS * job.pp * data * tensor, f"a graph of {job.pp * data * tensor:,} ranks")
        if count <= MAX_OPS and _needed(job, ops, data * tensor) <= self.memory_bytes:
            return
        folded = [("tensor-parallel ranks (--fold tensor)", job.dp)] if tensor > 1 else []
        folded += [("data-parallel ranks, too (--fold all)", 1)] if data > 1 else []
        smaller = "; ".join(f"with {name} {_size(_needed(job, ops, few))}" for name, few in folded)
        advice = f"Fold ranks that do the same: {smaller}" if folded else _ADVICE.capitalize()
        raise ConfigError(
            f"{job.pp * data * tensor:,} ranks have {count:,} operations; playing them needs about "
            f"{_size(_needed(job, ops, data * tensor))}, but {_size(self.memory_bytes)} are free. {advice}"
        )


_ADVICE = "take fewer micro-batches, or larger buckets and units"


def _needed(job: Job, ops: int, pipelines: int) -> float:
    return (ops + OPS_PER_RANK * job.pp) * pipelines * BYTES_PER_OP


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{max(size_bytes / 1e6, 1):,.0f} MB"
