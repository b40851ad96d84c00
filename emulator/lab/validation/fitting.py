"""Fit of the software constants: least squares on the logarithm of measured over predicted, with large errors counted
linearly, so that a few outliers don't dominate. `split_by_size` refits without each model size in turn, so that a
size's own rows don't influence its prediction.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from emulator.cluster.cluster import Cluster
from emulator.jobs.costed import closed_form_s
from emulator.jobs.costing import plan
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer
from emulator.lab.validation import predicted
from emulator.lab.validation.rows import Row
from switchml.errors import ConfigError

Sample = tuple[Transformer, Job, float]

FITTED = (
    "gemm_efficiency",
    "tile_fill_steps",
    "attention_traffic",
    "loss_bytes_per_logit",
    "kernel_s",
    "launch_forward_s",
    "launch_backward_s",
    "launch_collective_s",
)
"""Fitted software constants; a cluster's network efficiency and cross-rail efficiency are fitted, too."""
BETWEEN = ("efficiency", "cross_rail_efficiency")
OUTLIER = 0.03
"""Relative error above which an error counts linearly."""


def values(cluster: Cluster) -> dict[str, float]:
    """The cluster's current values of the fitted constants."""
    result = {name: getattr(cluster.software, name) for name in FITTED}
    return result | {name: getattr(cluster.between, name) for name in BETWEEN}


def with_values(cluster: Cluster, fitted: dict[str, float]) -> Cluster:
    """The cluster with other values of the fitted constants."""
    between: dict[str, Any] = {name: fitted[name] for name in BETWEEN}
    return dataclasses.replace(
        cluster,
        constants=cluster.constants | {name: fitted[name] for name in FITTED},
        between=dataclasses.replace(cluster.between, **between),
    )


def fit(
    cluster: Cluster, samples: Sequence[Sample], weights: Sequence[float], progress: Callable[[str], None] | None = None
) -> Cluster:
    """The cluster with the constants that predict `samples` best."""
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise ConfigError("fitting needs scipy; install it with: pip install 'switchml[fit]'") from None
    start = values(cluster)
    calls = 0

    def errors(logs: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if progress is not None:
            progress(f"{calls} evaluations of {len(samples)} rows")
        tried = with_values(
            cluster, {name: value * math.exp(x) for (name, value), x in zip(start.items(), logs, strict=True)}
        )
        return [
            weight * math.log(closed_form_s(plan(model, job, tried)) / measured)
            for (model, job, measured), weight in zip(samples, weights, strict=True)
        ]

    result = least_squares(errors, [0.0] * len(start), loss="soft_l1", f_scale=OUTLIER, diff_step=0.02, max_nfev=30)
    return with_values(
        cluster, {name: value * math.exp(x) for (name, value), x in zip(start.items(), result.x, strict=True)}
    )


def size_name(model: Transformer) -> str:
    """Label of a model size: "hidden 3072"."""
    return f"hidden {model.hidden}"


def split_by_size(
    cluster: Cluster, samples: Sequence[Sample], progress: Callable[[str], None] | None = None
) -> list[tuple[str, list[Row]]]:
    """For each model size, its rows, predicted with constants fitted to all others (at most 150 rows of each, evenly
    sampled)."""
    sizes = list(dict.fromkeys(size_name(model) for model, _, _ in samples))
    if len(sizes) < 2:
        raise ConfigError(f"these rows are all of one model size ({sizes[0]}); leaving it out leaves nothing to fit")
    result = []
    for size in sizes:
        training = []
        for other in sizes:
            if other != size:
                rows = [sample for sample in samples if size_name(sample[0]) == other]
                training += rows[:: max(1, len(rows) // 150)]
        say = None if progress is None else lambda text, size=size: progress(f"without {size}: {text}")
        fitted = fit(cluster, training, [1.0] * len(training), say)
        result.append((size, predict(fitted, [sample for sample in samples if size_name(sample[0]) == size])))
    return result


def predict(cluster: Cluster, samples: Sequence[Sample]) -> list[Row]:
    """Measured seconds of each sample and the prediction from replaying the job."""
    return [predicted.iteration(_name(model, job), model, job, cluster, measured) for model, job, measured in samples]


def _name(model: Transformer, job: Job) -> str:
    return (
        f"{model.layers}x{model.hidden} gpus {job.gpus} tp {job.tp} dp {job.dp} pp {job.pp} "
        f"batch {job.global_batch} micro {job.micro_batch}"
    )
