"""torchtitan's published memory: benchmarks/llama3_h100_202412_torchtitan.md in pytorch/torchtitan (commit 31a17bf),
tables 1 to 6, Llama 3.1 on H100 with 96 GB. The values are the peak memory reserved by torch's allocator
(torchtitan/metrics.py). A row's micro-batch is the local batch, in pipelines an eighth of it.
"""

import dataclasses

from emulator.jobs.workload import memory, models
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer
from emulator.lab.validation.rows import Row, job_fields, published

GIB = 2.0**30


def torchtitan() -> list[tuple[str, Transformer, Job, float]]:
    """Name, model, job and measured GiB of each row."""
    return [_row(row) for row in published("torchtitan.csv")]


def _row(row: dict[str, str]) -> tuple[str, Transformer, Job, float]:
    model = models.load(row["model"])
    assert isinstance(model, Transformer)
    fields = job_fields(row, "gpus", "tp", "pp", "cp", "sequence", "micro_batch", "batch", "virtual_stages")
    job = Job(
        **fields,
        async_tp="async" in row["technique"],
        sequence_parallel=fields["tp"] > 1,
        zero=3,
        precision="bf16",
        gradient_bytes=4,
        recompute=row["recompute"],
        cross_entropy="eager",  # train.py compiles layers, not the loss
    )
    name = f"table {row['table']}: {model.title}, {job.gpus} GPUs, {job.sequence} tokens, {row['technique']}"
    model = dataclasses.replace(model, implementation=row["implementation"])
    return name, model, job, float(row["measured_gib"])


def rows() -> list[Row]:
    """Reserved memory in GiB."""
    return [
        Row(name, measured, memory.memory(model, job).reserved / GIB, "GiB")
        for name, model, job, measured in torchtitan()
    ]
