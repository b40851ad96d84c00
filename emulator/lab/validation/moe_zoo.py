"""Published steps of Qwen3 235B-A22B in bf16 on 256 H100, tokens spread evenly over experts: five splits, and sequences
up to 131,072 tokens (yanring/Megatron-MoE-ModelZoo, best_practice/qwen3/readme.md). Neither constants nor intervals are
fitted to them. Long sequences recompute norms and experts (--recompute-modules layernorm moe), here every second layer.
In pipelines, embedding and loss count as layers, with which the 94 can be divided.
"""

from emulator.jobs.description import Request
from emulator.lab.validation.bridge import Published, recipe
from emulator.lab.validation.rows import job_fields, published

MODEL, CLUSTER, GPUS = "qwen3-235b-a22b", "h100-dgx", 256
INTEGERS = ["sequence", "batch", "micro_batch", "tp", "pp", "cp", "virtual_stages", "ep", "recompute_every"]
"""Columns named as the job's fields."""
SHORT, TOKEN_FLOPS, PAIR_FLOPS = 4096, 147.3e9, 6 * 94 * 8192
"""Model FLOPs of a token in samples of `SHORT` tokens, as the table's seconds and FLOP/s say, and besides for each
further token of longer ones: attention's under a causal mask."""


def groups() -> list[tuple[str, list[Published]]]:
    """All rows: name, and (name, job, tokens/s per accelerator)."""
    return [("Megatron-MoE-ModelZoo, Qwen3 235B on H100", [_published(row) for row in published("moe_zoo.csv")])]


def _published(row: dict[str, str]) -> Published:
    in_pipeline = row["pp"] != "1"
    job = recipe(
        CLUSTER,
        **job_fields(row, *INTEGERS),
        counts_embedding=in_pipeline,
        counts_loss=in_pipeline,
        gpus=GPUS,
        etp=1,
        zero=3 if row["fsdp"] == "1" else 1,
        precision="bf16",
        dispatcher=row["dispatcher"],
        overlap_experts=row["overlaps"] == "1",
        recompute=row["recompute"],
        implementation="megatron-core",
    )
    if row["step_s"]:
        rate = job.batch * job.sequence / float(row["step_s"]) / GPUS
    else:
        rate = float(row["tflops_per_gpu"]) * 1e12 / (TOKEN_FLOPS + PAIR_FLOPS * (job.sequence - SHORT))
    name = f"{job.sequence} tokens, {job.batch} in {job.micro_batch}, tp {job.tp} pp {job.pp} cp {job.cp} ep {job.ep}"
    return name, Request(model=MODEL, cluster=CLUSTER, job=job, ignore_memory=True), rate
