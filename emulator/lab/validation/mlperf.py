"""Rates of MLPerf Training's runs in fp8: pre-training of GPT-3 175B, Llama 3.1 405B and 8B, and LoRA on Llama 2 70B
(mlcommons/training_results_v4.0, v4.1, v5.0 and v5.1: logs, and configurations beside them), one run of those that are
alike. Neither constants nor intervals are fitted to them.

Excluded: FP4, A100, L40S, H200 NVL, MI350X, runs like others of the same round, and GB200's and GB300's runs of 5.1,
whose configurations mix precisions. Memory is not checked: B200's runs store the MLP's activations in fp8. LoRA adapts
attention's output projection, too, and drops out a tenth of the adapters' inputs; neither is costed.
"""

from emulator.jobs.description import Request
from emulator.jobs.workload.job import Job
from emulator.lab.validation.bridge import Published
from emulator.lab.validation.rows import grouped, job_fields, published

INTEGERS = ["gpus", "batch", "micro_batch", "sequence", "tp", "pp", "cp", "virtual_stages", "lora"]
"""Columns named as the job's fields."""


def groups() -> list[tuple[str, list[Published]]]:
    """Rows by kind and accelerators: name, and (name, job, tokens/s per accelerator)."""
    return grouped((_title(row), _published(row)) for row in published("mlperf.csv"))


def _title(row: dict[str, str]) -> str:
    if row["cluster"].startswith("mi"):
        return "MLPerf, MI300X to MI355X"
    return f"MLPerf, {'LoRA' if row['lora'] != '0' else 'pre-training'}, H100 to GB200"


def _published(row: dict[str, str]) -> Published:
    fields, every = job_fields(row, *INTEGERS), int(row["recompute_every"])
    job = Job(
        **fields,
        sequence_parallel=fields["tp"] > 1,
        async_tp=fields["tp"] > 1,
        zero=1,
        precision="fp8",
        recompute="full" if every else "none",
        recompute_every=every or 1,
        cuda_graphs=row["cuda_graphs"] == "1",
        implementation="megatron-core",
        attention="flash",
    )
    split = f"tp {job.tp} pp {job.pp} cp {job.cp}" + (f" lora {job.lora}" if job.lora else "")
    name = f"{row['submission']}, {row['model']} x {job.gpus} {row['cluster']}, {job.batch}, {split}"
    rate = float(row["samples_per_s"]) * job.sequence / job.gpus
    return name, Request(model=row["model"], cluster=row["cluster"], job=job, ignore_memory=True), rate
