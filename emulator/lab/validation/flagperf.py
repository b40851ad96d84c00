"""Published tokens/s of Llama 3 in Megatron-LM with few of its options (FlagOpen/FlagPerf, training/nvidia/
llama3_8B-megatron and llama3_70B-megatron, READMEs and scripts of 2024): dropout, an unfused loss, FlashAttention-2
that is recomputed (--recompute-activations), sharded optimizer states, samples of 8192 tokens one at a time. Neither
constants nor intervals are fitted to them. Excluded: A800 and H800, whose NVLink is narrower.
"""

from emulator.jobs.description import Request
from emulator.jobs.workload.job import Job
from emulator.lab.validation.bridge import Published
from emulator.lab.validation.rows import job_fields, published


def groups() -> list[tuple[str, list[Published]]]:
    """All rows: name, and (name, job, tokens/s per accelerator)."""
    return [
        ("FlagPerf, Llama 3 in Megatron-LM on A100 and H100", [_published(row) for row in published("flagperf.csv")])
    ]


def _published(row: dict[str, str]) -> Published:
    fields = job_fields(row, "gpus", "batch", "tp", "pp")
    job = Job(
        **fields,
        micro_batch=1,
        sequence=8192,
        sequence_parallel=fields["tp"] > 1,
        zero=1,
        precision=row["precision"],
        recompute="selective",
        implementation="megatron",
        attention="fa2",
    )
    name = f"{row['model']} x {job.gpus} {row['cluster']}, {job.precision}, {job.batch}, tp {job.tp} pp {job.pp}"
    request = Request(model=row["model"], cluster=row["cluster"], job=job, ignore_memory=True)
    return name, request, float(row["tokens_per_s_per_gpu"])
