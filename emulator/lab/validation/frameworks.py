"""Published tokens/s of frameworks that no constant was fitted to: torchtitan's Llama 3.1 (the same file as its memory,
`memory/published.py`) and NVIDIA's NeMo 24.09 on DGX H100, pre-training in fp8
(docs.nvidia.com/nemo-framework/user-guide/24.09/performance/performance_summary.html). Options that NeMo's page doesn't
state are taken from its recipes: Megatron-Core, sharded optimizer states, sequence parallelism and overlapped
collectives wherever there is tensor parallelism, fused attention, no recomputation.
"""

from emulator.jobs.description import Request
from emulator.jobs.workload.job import Job
from emulator.lab.validation import (
    bridge,
    dgx_cloud,
    finetuning,
    flagperf,
    long_sequences,
    mlperf,
    moe_zoo,
    predicted,
    torch_fsdp,
)
from emulator.lab.validation.bridge import Published
from emulator.lab.validation.memory import published as torchtitan_memory
from emulator.lab.validation.rows import Row, job_fields
from emulator.lab.validation.rows import published as read

TORCHTITAN, NEMO = "h100-grand-teton", "h100-dgx"
"""Clusters of the publications."""
SOURCES = (bridge, dgx_cloud, finetuning, flagperf, long_sequences, mlperf, moe_zoo)
"""Publications with groups of their own."""


def torchtitan() -> list[Published]:
    """Tables 1 to 6. Float8 applies to linear layers; attention is torch's SDPA."""
    result = []
    rates = [float(row["tokens_per_s_per_gpu"]) for row in read("torchtitan.csv")]
    for (name, model, job, _), rate in zip(torchtitan_memory.torchtitan(), rates, strict=True):
        changes = {"implementation": model.implementation, "attention": "sdpa"}
        job = job.replace(**changes, precision="fp8" if "Float8" in name else "bf16")
        result.append((name, Request(model=model.name, cluster=TORCHTITAN, job=job, ignore_memory=True), rate))
    return result


def nemo() -> list[Published]:
    """Rows of NeMo 24.09."""
    return [_nemo(row) for row in read("nemo.csv")]


def _nemo(row: dict[str, str]) -> Published:
    fields = job_fields(row, "gpus", "batch", "micro_batch", "sequence", "tp", "pp", "cp", "virtual_stages")
    fields |= {"zero": 1, "precision": "fp8", "implementation": "megatron-core", "attention": "cudnn"}
    job = Job(**fields, sequence_parallel=fields["tp"] > 1, async_tp=fields["tp"] > 1)
    batches = f"{job.batch} of {job.sequence} in {job.micro_batch}"
    name = f"{row['model']} x {job.gpus}, {batches}, tp {job.tp} pp {job.pp} cp {job.cp}"
    request = Request(model=row["model"], cluster=NEMO, job=job, ignore_memory=True)
    return name, request, float(row["tokens_per_s_per_gpu"])


def rows(published: list[Published]) -> list[Row]:
    """Tokens/s summed over all accelerators."""
    return [predicted.throughput(name, request, rate * request.job.gpus)[0] for name, request, rate in published]


def groups() -> list[tuple[str, list[Row]]]:
    """Rows by publication, NVIDIA's also by kind of model and accelerator; torchtitan's context-parallel rows are a
    separate group."""
    titan = torchtitan()
    shared = [one for one in titan if one[1].job.cp > 1]
    return [
        ("torchtitan, Llama 3.1 on H100", rows([one for one in titan if one not in shared])),
        ("torchtitan, context-parallel", rows(shared)),
        ("FSDP in torch.compile", rows(torch_fsdp.rows())),
        ("torchtitan of 2024, Llama on A100 and H100", rows(torch_fsdp.early())),
        ("NeMo 24.09, fp8 on H100", rows(nemo())),
        *((name, rows(published)) for source in SOURCES for name, published in source.groups()),
    ]
