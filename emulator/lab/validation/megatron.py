"""Megatron-LM's published tables: times and memory of Korthikanti et al., MLSys 2023 (table 5, figures 1 and 7), and
the scaling table of Narayanan et al., SC 2021 (table 1). All on DGX A100 80 GB.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from emulator.cluster.cluster import Cluster
from emulator.jobs.costed import closed_form_s
from emulator.jobs.costing import plan
from emulator.jobs.emulate import replayed_s
from emulator.jobs.interval import factor
from emulator.jobs.workload import memory
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer
from emulator.lab.validation import predicted
from emulator.lab.validation.rows import Row, job_fields, published
from switchml.errors import ConfigError

GIB = 2.0**30


def _gpt(row: dict[str, str]) -> Transformer:
    return Transformer(
        name=row["model"],
        title=f"GPT {row['model']}",
        source="Korthikanti et al. 2023; Narayanan et al. 2021",
        layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        heads=int(row["heads"]),
        vocabulary=51200,
        sequence=2048,
    )


def _job(row: dict[str, str], **fields: Any) -> Job:
    """Parallelism and options of a row's job."""
    return Job(
        **job_fields(row, "micro_batch", "tp", "pp", "virtual_stages"),
        recompute=row["recompute"],
        sequence_parallel=row["sequence_parallel"] == "1",
        **fields,
    )


def table5() -> list[tuple[str, Transformer, Job, float]]:
    """Name, model, job and measured iteration seconds of each row of table 5."""
    rows = []
    for row in published("table5.csv"):
        job = _job(row, gpus=int(row["gpus"]), batch=int(row["batch"]), overlap=False)
        rows.append((f"{row['model']} {row['recompute']}", _gpt(row), job, float(row["measured_s"])))
    return rows


def times(cluster: Cluster) -> list[Row]:
    """Table 5: iteration times."""
    return [predicted.iteration(name, model, job, cluster, measured) for name, model, job, measured in table5()]


def memories() -> list[Row]:
    """Figures 1 and 7: bytes of the layers on the first stage, in GiB. Weights and optimizer: 18 bytes per parameter,
    as Megatron-LM stores gradients in fp32."""
    rows = []
    for row in published("memory.csv"):
        model, pp = _gpt(row), int(row["pp"])
        job = _job(row, gpus=int(row["tp"]) * pp, batch=int(row["micro_batch"]) * 4 * pp, gradient_bytes=4)
        if row["quantity"] == "activations":
            mine = memory.layer_activations(model, job) * model.layers / pp * memory.in_flight(job, 0)
        else:
            parts = memory.memory(model, job)
            mine = (parts.weights + parts.gradients + parts.optimizer) * _layers_share(model, job)
        rows.append(
            Row(f"{row['model']} {row['quantity']}, {row['recompute']}", float(row["measured_gib"]), mine / GIB, "GiB")
        )
    return rows


def _layers_share(model: Transformer, job: Job) -> float:
    """Share of the fullest rank's parameters that are in its layers' matrices, which the paper's figure counts."""
    matrices = 12.0 * model.layers * model.hidden**2 / (job.tp * job.pp)
    return matrices / max(job.stage_parameters(model, stage) for stage in (0, job.pp - 1))


MICRO_BATCHES = (1, 2, 4, 8)


def scaling(cluster: Cluster) -> list[Row]:
    """Narayanan's table 1: TFLOP/s per accelerator."""
    return [row for _, _, row in scaled(cluster)]


def scaled(cluster: Cluster) -> list[tuple[Transformer, Job, Row]]:
    """Narayanan's table 1 with model and job of each row. The paper states neither micro-batch nor virtual stages; the
    fastest of micro-batches 1, 2, 4 and 8 with one or two virtual stages that fits in memory is assumed, as its authors
    tuned for speed."""
    rows = []
    for row in published("narayanan.csv"):
        model, gpus, batch = _gpt(row), int(row["gpus"]), int(row["batch"])
        jobs = [
            job for job in _candidates(row, model) if memory.memory(model, job).total <= cluster.device.memory_bytes
        ]
        if not jobs:
            raise ConfigError(f"{cluster.name}: no layout of {row['model']} (Narayanan's table 1) fits in its memory")
        fastest = min((plan(model, job, cluster) for job in jobs), key=closed_form_s)
        flops = model.flops_per_sample(2048) * batch * 4 / 3 - 2.0 * 2048 * model.hidden * model.vocabulary * batch
        reached = flops / gpus / replayed_s(fastest) / 1e12
        stated = factor(model, fastest.job, cluster)
        named = Row(row["model"], float(row["tflops_per_gpu"]), reached, "TFLOP/s", stated)
        rows.append((model, fastest.job, named))
    return rows


def _candidates(row: dict[str, str], model: Transformer) -> Iterator[Job]:
    """Possible jobs of a row; Megatron-LM supports virtual stages only where they divide the layers."""
    pp = int(row["pp"])
    pieces = (1, 2) if pp > 1 and model.layers % (2 * pp) == 0 else (1,)
    for micro, virtual in itertools.product(MICRO_BATCHES, pieces):
        chosen = {**row, "micro_batch": str(micro), "virtual_stages": str(virtual)}
        with contextlib.suppress(ConfigError):
            fields = job_fields(chosen, "gpus", "batch", "tp", "pp", "micro_batch", "virtual_stages")
            job = Job(**fields, recompute="full", overlap=False)
            job.fit(model)
            yield job
