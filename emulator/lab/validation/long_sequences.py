"""Published rates of NeMo's long sequences in fp8, Llama 2 7B on H100 and Llama 3 8B on B200, up to a million tokens in
32 context-parallel parts (NVIDIA/NeMo, docs/source/performance/performance_long_sequence.md, containers 24.03.01 and
25.04). Neither constants nor intervals are fitted to them.

Model FLOP/s count all pairs of tokens. Attention is FlashAttention-2 on H100: half as fast as cuDNN's, with which the
longest would be 80 % faster. B200's accelerators are those of its split, as the table names four times as many.
"""

from emulator.jobs.description import Request
from emulator.jobs.workload import models
from emulator.jobs.workload.job import Job
from emulator.lab.validation.bridge import TITLES, Published
from emulator.lab.validation.rows import grouped, job_fields, published


def groups() -> list[tuple[str, list[Published]]]:
    """Rows by accelerator: name, and (name, job, tokens/s per accelerator)."""
    rows = published("long_sequences.csv")
    return grouped((f"NeMo, long sequences, {TITLES[row['cluster']]}", _published(row)) for row in rows)


def _published(row: dict[str, str]) -> Published:
    fields = job_fields(row, "gpus", "batch", "sequence", "tp", "pp", "cp")
    job = Job(
        **fields,
        micro_batch=1,
        sequence_parallel=fields["tp"] > 1,
        async_tp=fields["tp"] > 1,
        zero=1,
        precision="fp8",
        implementation="megatron-core",
        attention="fa2" if row["cluster"] == "h100-dgx" else "flash",
    )
    name = f"{row['release']}, {row['model']} x {job.gpus} {row['cluster']}, {job.sequence} tokens, "
    name += f"tp {job.tp} pp {job.pp} cp {job.cp}"
    model = models.load(row["model"])
    assert isinstance(model, models.Transformer)
    products = 6 * (model.parameters - model.embedding_parameters)
    token_flops = products + 12 * model.layers * model.hidden * job.sequence
    request = Request(model=row["model"], cluster=row["cluster"], job=job, ignore_memory=True)
    return name, request, float(row["tflops_per_gpu"]) * 1e12 / token_flops
