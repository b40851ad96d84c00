"""What building and replaying a job's graph may take. Each number of a description is within its range, but their
products are not: layers times micro-batches times ranks. So whatever makes ops asks its budget before.
"""

import math
import time

import psutil

from emulator.jobs.workload.job import Job
from switchml.errors import BudgetSpent, ConfigError

BYTES_PER_OP = 100
"""Of graph, costs and replay together, at their highest point: 81 measured on 29.5 million operations (GPT-3 175B on
16,384 accelerators, `--fold tensor`), and some to spare."""
MOST_OPS = 2**31 - 1
"""What int32 numbers."""
STEP_S = 2e-9
RANK_STEPS = 30_000
"""Of a rank's place in the graph, which is made in Python: 60 us."""
OPS_PER_RANK = 40
"""A rank's streams, groups and place in the graph take the memory of so many ops."""


class Budget:
    """Memory and seconds from now on; by default what is free on this machine, and no limit of time."""

    def __init__(self, memory_bytes: float | None = None, seconds: float | None = None) -> None:
        available = psutil.virtual_memory().available
        self.memory_bytes = min(available, memory_bytes or math.inf)
        self.seconds = math.inf if seconds is None else seconds
        self.began_s = time.perf_counter()

    @property
    def left_s(self) -> float:
        """Infinity where there is no limit."""
        return self.seconds - (time.perf_counter() - self.began_s)

    def check_time(self) -> None:
        """Raise BudgetSpent once it is over."""
        if self.left_s < 0:
            raise BudgetSpent(f"the job was not built after {self.seconds:g} s of wall-clock time; {_ADVICE}")

    def check_steps(self, steps: float, what: str) -> None:
        """Raise BudgetSpent where `what`, so many simple steps of a compiled loop, would take longer."""
        if steps * STEP_S > self.left_s:
            raise BudgetSpent(f"{what} takes about {steps * STEP_S:.0f} s; {self.seconds:g} s are allowed in all")

    def check_bytes(self, size_bytes: float, what: str) -> None:
        """Raise ConfigError where `what` needs more memory than there is."""
        if size_bytes > self.memory_bytes:
            raise ConfigError(f"{what} need about {_size(size_bytes)}, but {_size(self.memory_bytes)} are free")

    def check_ops(self, ops: float) -> None:
        """Raise ConfigError or BudgetSpent where a pipeline's graph, so far, is too large."""
        if ops > MOST_OPS or ops * BYTES_PER_OP > self.memory_bytes:
            raise ConfigError(
                f"a pipeline of this job has more than {int(ops):,} operations; playing them needs more than "
                f"{_size(ops * BYTES_PER_OP)}, but {_size(self.memory_bytes)} are free. {_ADVICE.capitalize()}"
            )
        self.check_time()

    def check_ranks(self, job: Job, ops: int, data: int, tensor: int) -> None:
        """Raise ConfigError unless the graph of `ops` operations a pipeline, played `data` times `tensor` times, fits
        into memory."""
        count = ops * data * tensor
        self.check_steps(RANK_STEPS * job.pp * data * tensor, f"a graph of {job.pp * data * tensor:,} ranks")
        if count <= MOST_OPS and _needed(job, ops, data * tensor) <= self.memory_bytes:
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
