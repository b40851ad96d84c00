"""Published tokens/s of Llama under FSDP in torch.compile: torchtitan's comparison of tensor parallelism with async TP
(pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md, without the rowwise scales that it calls
slow), Trainy's on H200 (llama3-8b_h200_202506_trainy-whitefiber.md there), and IBM's with hybrid or full sharding
(foundation-model-stack/fms-fsdp, README.md; rows whose MFU and HFU say that no layer is recomputed, or all). One
constant, `async_share`, was chosen by hand for rows with async TP, these and torchtitan's earlier ones.

Nothing is fitted to those of `torch_2024.csv`: torchtitan's docs/performance.md of June 2024, without torch.compile,
and October 2024 ("selective layer" checkpoints every second layer).
"""

from emulator.jobs.description import Request
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.sharding import Sharding
from emulator.lab.validation.bridge import Published
from emulator.lab.validation.rows import job_fields, published


def rows() -> list[Published]:
    """Name, job and tokens/s per accelerator of each row."""
    return [_published(row) for row in published("torch.csv")]


def early() -> list[Published]:
    """As `rows`, of 2024."""
    return [_published(row) for row in published("torch_2024.csv")]


def _published(row: dict[str, str]) -> Published:
    fields = job_fields(row, "gpus", "batch", "micro_batch", "sequence", "tp")
    job = Job(
        **fields,
        sequence_parallel=fields["tp"] > 1,
        async_tp=row["overlaps"] == "1",
        zero=3,
        fsdp=Sharding(group=int(row["group"])),
        precision=row["precision"],
        recompute=row["recompute"],
        recompute_every=int(row.get("recompute_every", 1)),
        implementation=row["implementation"],
        attention="sdpa",
    )
    recompute = f", recompute {job.recomputation}"
    split = f"FSDP {job.fsdp.group or job.dp}" + (f" + {'async ' * job.async_tp}TP {job.tp}" if job.tp > 1 else "")
    name = f"{row['source']}, {row['model']} x {job.gpus} {row['cluster']}, {job.precision}, {split}{recompute}"
    request = Request(model=row["model"], cluster=row["cluster"], job=job, ignore_memory=True)
    return name, request, float(row["tokens_per_s_per_gpu"])
