"""Published tokens/s of NVIDIA's fine-tuning, all weights (SFT) and LoRA on query, key and value projections: NeMo
24.07 (NVIDIA/NeMo, docs/source/performance/performance_summary.md), NeMo 24.09 (docs.nvidia.com/nemo-framework/
user-guide/24.12) and Megatron Bridge 26.06 (NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md). Neither
constants nor intervals are fitted to them.

As in `dgx_cloud.py`, samples are packed from questions of some 200 tokens, and options that the tables don't state are
taken from the recipes. NeMo's adapters are assumed to have rank 8, Megatron Bridge's have 16.
"""

from emulator.jobs.description import Request
from emulator.lab.validation.bridge import Published, recipe
from emulator.lab.validation.rows import grouped, job_fields, published

INTEGERS = ["gpus", "batch", "micro_batch", "sequence", "document", "tp", "pp", "virtual_stages", "lora"]
"""Columns named as the job's fields."""


def groups() -> list[tuple[str, list[Published]]]:
    """Rows by software: name, and (name, job, tokens/s per accelerator)."""
    rows = published("finetuning.csv")
    return grouped((f"{row['release'].rpartition(' ')[0]}, fine-tuning", _published(row)) for row in rows)


def _published(row: dict[str, str]) -> Published:
    fields = job_fields(row, *INTEGERS) | {"cp": 1, "ep": 1}
    job = recipe(row["cluster"], **fields, zero=1, precision=row["precision"], implementation="megatron-core")
    split = f"tp {job.tp} pp {job.pp}" + (f" lora {job.lora}" if job.lora else "")
    name = f"{row['release']}, {row['model']} x {job.gpus} {row['cluster']}, {job.precision}, {split}"
    request = Request(model=row["model"], cluster=row["cluster"], job=job, ignore_memory=True)
    return name, request, float(row["tokens_per_s_per_gpu"])
