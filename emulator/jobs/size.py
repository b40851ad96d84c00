"""Whether this machine can hold a job's graph while it is played."""

from __future__ import annotations

import psutil

from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError

BYTES_PER_OP = 100
"""Of graph, costs and replay together, at their highest point: 81 measured on 29.5 million operations (GPT-3 175B on
16,384 accelerators, `--fold tensor`), and some to spare."""
MOST_OPS = 2**31 - 1
"""What int32 numbers."""


def check(job: Job, ops: int, data: int, tensor: int) -> None:
    """Raise ConfigError unless the graph of `ops` operations a pipeline, played `data` times `tensor` times, fits into
    the memory that is free now."""
    count = ops * data * tensor
    needed, memory = count * BYTES_PER_OP, psutil.virtual_memory()
    if count <= MOST_OPS and needed <= memory.available:
        return
    folded = [("tensor-parallel ranks (--fold tensor)", ops * job.dp)] if tensor > 1 else []
    folded += [("data-parallel ranks, too (--fold all)", ops)] if data > 1 else []
    smaller = "; ".join(f"with {name} {_size(few * BYTES_PER_OP)}" for name, few in folded)
    advice = f"Fold ranks that do the same: {smaller}" if folded else "Take fewer micro-batches"
    raise ConfigError(
        f"{job.pp * data * tensor:,} ranks have {count:,} operations; playing them needs about {_size(needed)}, and of "
        f"this machine's {_size(memory.total)} {_size(memory.available)} are free. {advice}"
    )


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{max(size_bytes / 1e6, 1):,.0f} MB"
