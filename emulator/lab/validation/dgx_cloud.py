"""Published step times of NVIDIA's DGX Cloud benchmarks, NeMo on H100 and GB200 (NVIDIA/dgxc-benchmarking, READMEs of
releases 25.02.01, 25.04 and 25.05.04): pre-training of dense models and of mixtures of experts, fine-tuning and LoRA.
Neither constants nor intervals are fitted to them.

Excluded: models with fewer layers than published, Nemotron-H (state-space layers), and rows of JAX. Options that the
tables don't state are taken from the recipes beside them: as in `bridge.py`, sharded optimizer states and gradients in
bf16, besides adapters of rank 8 on query, key and value projections. Fine-tuning packs SQuAD into samples of 4096
tokens: a question with its context is some 200.
"""

from emulator.jobs.description import Request
from emulator.lab.validation.bridge import TITLES, Published, recipe
from emulator.lab.validation.rows import grouped, job_fields, published

INTEGERS = ["gpus", "batch", "micro_batch", "sequence", "document"]
INTEGERS += ["tp", "pp", "cp", "virtual_stages", "ep", "etp", "lora"]
"""Columns named as the job's fields."""


def groups() -> list[tuple[str, list[Published]]]:
    """Rows by kind and cluster: name, and (name, job, tokens/s per accelerator)."""
    return grouped((_title(row), _published(row)) for row in published("dgx_cloud.csv"))


def _title(row: dict[str, str]) -> str:
    kind = "fine-tuning" if row["document"] != "0" else "dense" if row["ep"] == "1" else "experts"
    return f"DGX Cloud, {kind}, {TITLES[row['cluster']]}"


def _published(row: dict[str, str]) -> Published:
    fields = job_fields(row, *INTEGERS)
    job = recipe(
        row["cluster"],
        **fields,
        zero=1,
        precision=row["precision"],
        implementation="megatron-core",
        dispatcher="all-to-all" if fields["ep"] > 1 else "",
    )
    split = f"tp {job.tp} pp {job.pp} cp {job.cp} ep {job.ep}" + (f" lora {job.lora}" if job.lora else "")
    name = f"{row['release']}, {row['model']} x {job.gpus} {row['cluster']}, {job.precision}, {job.batch}, {split}"
    rate = job.batch * job.sequence / float(row["step_s"]) / job.gpus
    return name, Request(model=row["model"], cluster=row["cluster"], job=job, ignore_memory=True), rate
