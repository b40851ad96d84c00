"""Published tokens/s of whole jobs: the tables of mosaicml/llm-foundry (MPT under FSDP), and other tables with the same
columns. Each row becomes a job on the cluster of its accelerators, emulated as by `switchml emulate`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from emulator.jobs.description import Request
from emulator.jobs.emulation import Emulation
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.sharding import Sharding
from emulator.lab.validation import predicted
from emulator.lab.validation.rows import Row, measured_table
from switchml.errors import ConfigError, SwitchMLError
from switchml.units import memory_text

COLUMNS = (
    "model",
    "gpu",
    "gpus",
    "sequence",
    "global_batch",
    "micro_batch",
    "precision",
    "fsdp_mixed_precision",
    "sharding",
    "activation_checkpointing",
    "tokens_per_s",
)
CLUSTERS = {"a100_40gb": "a100-40g-roce1600", "a100_80gb": "a100-roce1600", "h100_80gb": "h100-dgx"}
"""From the README of the published tables: 1600 Gb/s of RoCE between nodes of A100; it doesn't state H100's network."""
PRECISIONS = {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp16": "fp16", "fp16": "fp16", "amp_fp8": "fp8", "fp8": "fp8"}
REDUCED_BYTES = {"PURE": 2, "DEFAULT": 4}
"""Bytes of a gradient element on the wire, by Composer's names for torch's MixedPrecision
(composer/trainer/mosaic_fsdp_utils.py)."""

RESHARDS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}
FIRST = ("bf16", "fp16")
"""Precision names in the first tables, of May 2023, which ran on torch 1.13."""


Value = TypeVar("Value")


@dataclass(frozen=True)
class Measured:
    """One row: a job and its measured throughput."""

    name: str
    group: str
    """Accelerator and precision, by which rows are averaged."""
    request: Request
    tokens_per_s: float


@dataclass(frozen=True)
class Predicted:
    """A row with its prediction. `refused`: the reason why the emulator considers the job infeasible; with insufficient
    memory the job is predicted anyway, with other reasons `row` is None."""

    measured: Measured
    row: Row | None
    refused: str = ""


def read(path: Path, cluster: str | None = None) -> list[Measured]:
    """The rows of a file, all of them on `cluster` if given. Raises ConfigError."""
    return [_measured(row, where, cluster) for where, row in measured_table(path, COLUMNS)]


def _measured(row: dict[str, str], where: str, cluster: str | None) -> Measured:
    def chosen(column: str, known: Mapping[str, Value]) -> Value:
        if row[column] not in known:
            raise ConfigError(f"{where}: expected {column} to be one of {', '.join(known)}, not {row[column]!r}")
        return known[row[column]]

    try:
        gpus, sequence, batch, micro = (int(row[name]) for name in COLUMNS[2:6])
        tokens_per_s = float(row["tokens_per_s"])
    except ValueError:
        raise ConfigError(f"{where}: expected numbers in {', '.join((*COLUMNS[2:6], 'tokens_per_s'))}") from None
    if min(gpus, sequence, batch, micro) < 1 or not 0 < tokens_per_s < float("inf"):
        raise ConfigError(f"{where}: expected numbers above 0")
    precision, flags = chosen("precision", PRECISIONS), {"True": True, "False": False}
    # Composer accepts micro-batches that don't divide the batch; a whole number of them has the same tokens/s.
    each = gpus * micro
    job = Job(
        gpus=gpus,
        batch=each * max(1, round(batch / each)),
        micro_batch=micro,
        sequence=sequence,
        zero=3,
        precision=precision,
        recompute="full" if chosen("activation_checkpointing", flags) else "none",
        gradient_bytes=chosen("fsdp_mixed_precision", REDUCED_BYTES),
        implementation="composer-1" if row["precision"] in FIRST else "",
        fsdp=Sharding(reshard_after_forward=chosen("sharding", RESHARDS)),
    )
    return Measured(
        name=f"{row['model']} {row['gpu']} x {gpus}, {precision}, {batch} of {sequence} in {micro}",
        group=f"{row['gpu']} {precision}",
        request=Request(
            model=f"mpt-{row['model']}", cluster=cluster or chosen("gpu", CLUSTERS), job=job, ignore_memory=True
        ),
        tokens_per_s=tokens_per_s,
    )


def predict(rows: Sequence[Measured]) -> list[Predicted]:
    """Emulate each row's job."""
    return [_predicted(row) for row in rows]


def _predicted(measured: Measured) -> Predicted:
    try:
        row, emulation = predicted.throughput(measured.name, measured.request, measured.tokens_per_s)
    except SwitchMLError as error:
        return Predicted(measured, None, str(error))
    return Predicted(measured, row, _does_not_fit(emulation))


def _does_not_fit(emulation: Emulation) -> str:
    """Required and available memory as text, or "" if the job fits."""
    needed, available = emulation.memory.total, emulation.plan.cluster.device.memory_bytes
    return f"{memory_text(needed)} of {memory_text(available)}" if needed > available else ""
