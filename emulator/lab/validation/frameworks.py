"""Published tokens a second of frameworks that no constant was fitted to: torchtitan's Llama 3.1 (the same file as its
memory, `memory/published.py`) and NVIDIA's NeMo 24.09 on DGX H100, pre-training in fp8
(docs.nvidia.com/nemo-framework/user-guide/24.09/performance/performance_summary.html). What NeMo's page leaves open is
as its recipes have it: Megatron-Core, sharded optimizer states, sequence parallelism and overlapped exchanges wherever
there is tensor parallelism, fused attention, nothing recomputed.
"""

from __future__ import annotations

import csv
from pathlib import Path

from emulator.jobs.description import Request
from emulator.jobs.emulate import emulate
from emulator.jobs.interval import factor
from emulator.jobs.workload.job import Job
from emulator.lab.validation.memory import published as torchtitan_memory
from emulator.lab.validation.rows import Row

DATA = Path(__file__).parent / "data"
TORCHTITAN, NEMO = "h100-grand-teton", "h100-dgx"
"""Clusters of the publications."""
Published = tuple[str, Request, float]
"""Name, job, tokens a second and accelerator."""


def torchtitan() -> list[Published]:
    """Tables 1 to 6. Float8 is of linear layers; attention is torch's SDPA."""
    result = []
    with (DATA / "torchtitan.csv").open(newline="") as file:
        rates = [float(row["tokens_per_s_per_gpu"]) for row in csv.DictReader(file)]
    for (name, model, job, _), rate in zip(torchtitan_memory.torchtitan(), rates, strict=True):
        changes = {"implementation": model.implementation, "attention": "sdpa"}
        job = job.replace(**changes, precision="fp8" if "Float8" in name else "bf16")
        result.append((name, Request(model=model.name, cluster=TORCHTITAN, job=job, ignore_memory=True), rate))
    return result


def nemo() -> list[Published]:
    """Of NeMo 24.09."""
    with (DATA / "nemo.csv").open(newline="") as file:
        return [_nemo(row) for row in csv.DictReader(file)]


def _nemo(row: dict[str, str]) -> Published:
    gpus, batch, micro, sequence, tp, pp, context, virtual = (int(value) for value in list(row.values())[1:9])
    job = Job(
        gpus=gpus,
        batch=batch,
        micro_batch=micro,
        sequence=sequence,
        tp=tp,
        pp=pp,
        cp=context,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        sequence_parallel=tp > 1,
        async_tp=tp > 1,
        zero=1,
        precision="fp8",
        implementation="megatron-core",
        attention="fa3",
    )
    name = f"{row['model']} x {gpus}, {batch} of {sequence} in {micro}, tp {tp} pp {pp} cp {context}"
    return (
        name,
        Request(model=row["model"], cluster=NEMO, job=job, ignore_memory=True),
        float(row["tokens_per_s_per_gpu"]),
    )


def rows(published: list[Published]) -> list[Row]:
    """Tokens a second of all accelerators."""
    return [_row(*one) for one in published]


def _row(name: str, request: Request, rate: float) -> Row:
    found, job = emulate(request), request.job
    stated = factor(found.plan.model, job, found.plan.cluster)
    return Row(name, rate * job.gpus, found.samples_per_s * job.sequence, "tokens/s", stated)


def groups() -> list[tuple[str, list[Row]]]:
    """By publication; torchtitan's rows of context parallelism by themselves."""
    titan = torchtitan()
    shared = [one for one in titan if one[1].job.cp > 1]
    return [
        ("torchtitan, Llama 3.1 on H100", rows([one for one in titan if one not in shared])),
        ("torchtitan, context-parallel", rows(shared)),
        ("NeMo 24.09, fp8 on H100", rows(nemo())),
    ]
