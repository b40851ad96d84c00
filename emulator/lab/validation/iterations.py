"""Measured iterations of Megatron-DeepSpeed: the CSV files of VIA-Research/vTrain (MICRO 2024), and others with the
same columns."""

import math
from pathlib import Path

from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer
from emulator.lab.validation.rows import measured_table
from switchml.errors import ConfigError

COLUMNS = (
    "# GPUs",
    "global batch",
    "micro batch",
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "tensor parallelism",
    "data parallelism",
    "pipeline parallelism",
    "iteration time (ms)",
)
VOCABULARY = 51200
"""GPT-2's 50257 tokens, padded for tensor parallelism (Megatron-LM's default of a multiple of 128 times the
tensor-parallel size, at most 8)."""


def read(path: Path, recompute: str = "auto") -> list[tuple[Transformer, Job, float]]:
    """Model, job and measured seconds of each row. `recompute`: as in a job, or "auto": jobs on more than one node of 8
    recompute all activations, as the publication states, and smaller ones don't recompute."""
    return [_row(row, where, recompute) for where, row in measured_table(path, COLUMNS)]


def _row(row: dict[str, str], where: str, recompute: str) -> tuple[Transformer, Job, float]:
    try:
        sizes = [int(row[name]) for name in COLUMNS[:-1]]
        measured = float(row[COLUMNS[-1]]) * 1e-3
    except ValueError:
        raise ConfigError(f"{where}: expected numbers in all columns, not {list(row.values())}") from None
    if min(sizes) < 1 or not 0 < measured < math.inf:
        raise ConfigError(f"{where}: expected numbers above 0, not {list(row.values())}")
    gpus, batch, micro, hidden, heads, layers, sequence, tp, dp, pp = sizes
    if tp * dp * pp != gpus:
        raise ConfigError(f"{where}: {gpus} GPUs are not {tp} x {dp} x {pp} (tensor x data x pipeline)")
    try:
        model = Transformer(
            name=f"gpt-{layers}x{hidden}",
            title=f"GPT, {layers} layers of {hidden}",
            source=where,
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=VOCABULARY,
            sequence=sequence,
        )
        job = Job(
            gpus=gpus,
            batch=batch,
            micro_batch=micro,
            tp=tp,
            pp=pp,
            recompute=recompute if recompute != "auto" else "full" if gpus > 8 else "none",
            overlap=False,
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return model, job, measured
