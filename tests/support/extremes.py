"""Descriptions whose numbers go to the ends of their ranges and beyond, drawn from a seed: jobs with everything that
surrounds them, clusters, models, and networks."""

import dataclasses
import math
import random
import typing
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.cluster import cluster as clusters
from emulator.cluster import codecs
from emulator.cluster.algorithms import ALGORITHMS, HIERARCHIES
from emulator.cluster.cluster import Cluster, Switch
from emulator.cluster.innetwork import Streaming
from emulator.jobs.description import Data, Noise
from emulator.jobs.memory_options import MemoryOptions
from emulator.jobs.training import Run
from emulator.jobs.workload import job as jobs
from emulator.jobs.workload import models
from emulator.jobs.workload.loading.loading import LOADERS
from emulator.jobs.workload.models import Transformer
from emulator.jobs.workload.sharding import Sharding
from emulator.ranges import Range

OUTSIDE = (-1, 0, 5e-324, 1e-300, 1e308, 10**9, 10**12, 2**63 - 1)
CHOICES = {
    "schedule": jobs.SCHEDULES, "recompute": jobs.RECOMPUTE, "precision": jobs.PRECISIONS, "optimizer": jobs.OPTIMIZERS,
    "allreduce": tuple(ALGORITHMS), "hierarchy": tuple(HIERARCHIES), "cp_exchange": jobs.CP_EXCHANGES,
    "lora_targets": jobs.LORA_TARGETS,
}  # fmt: skip


def number(rng: random.Random, kind: type, range: Range) -> float:
    """One of `range`, seldom one outside of it."""
    least, most = range.least, range.most
    kinds = {
        "any size": lambda: math.exp(rng.uniform(math.log(max(least, 1 if kind is int else 1e-9)), math.log(most))),
        "end": lambda: rng.choice([least, most]),
        "usual": lambda: 2 ** rng.randrange(12),
        "anywhere": lambda: rng.uniform(least, most),
        "outside": lambda: rng.choice(OUTSIDE),
    }
    (drawn,) = rng.choices(list(kinds), (35, 20, 35, 8, 2))
    return kind(kinds[drawn]())


def table(rng: random.Random, cls: type, chance: float) -> dict[str, Any]:
    """Some numbers and flags of a dataclass."""
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kind, range = hints[item.name], item.metadata.get("range")
        if rng.random() > chance:
            continue
        if kind is bool:
            found[item.name] = rng.random() < 0.5
        elif range is not None and kind in (int, float, float | None):
            found[item.name] = number(rng, int if kind is int else float, range)
    return found


def description(seed: int, folder: Path) -> dict[str, Any]:
    """Tables of a job file; what it names in files of its own goes into `folder`."""
    rng = random.Random(seed)

    def sometimes(chance: float, cls: type, **more: Any) -> dict[str, Any]:
        return table(rng, cls, rng.choice((0.2, 0.5))) | more if rng.random() < chance else {}

    tables = {
        "model": _model(rng, folder), "cluster": _cluster(rng, folder), "job": _job(rng),
        "ignore_memory": rng.random() < 0.8, "fold": rng.choice(("", "", "", "all", "tensor", "none")),
        "codec": rng.choice(list(codecs.codecs())) if rng.random() < 0.1 else "", "noise": sometimes(0.2, Noise),
        "run": sometimes(0.2, Run), "data": sometimes(0.2, Data, loader=rng.choice(list(LOADERS))),
        "memory": sometimes(0.2, MemoryOptions), "network": sometimes(0.2, Streaming),
        "switch": {name: float(value) for name, value in sometimes(0.2, Switch).items()},
    }  # fmt: skip
    if tables["network"]:
        tables["job"]["allreduce"] = "switchml"
    return {name: value for name, value in tables.items() if value not in ("", {})}


def _job(rng: random.Random) -> dict[str, Any]:
    found = table(rng, jobs.Job, rng.choice((0.05, 0.15, 0.4)))
    if rng.random() < 0.8:  # one that can be split
        tp, pp = 2 ** rng.randrange(4), 2 ** rng.randrange(4)
        dp = max(1, int(number(rng, int, jobs.RANKS)) // (tp * pp))
        found |= {"tp": tp, "pp": pp, "gpus": tp * pp * dp, "ep": 1, "cp": 1, "virtual_stages": 1}
        micro = found.get("micro_batch", 1)
        if rng.random() < 0.6:
            found["batch"] = dp * micro * rng.choice((1, 8, 1000, 10**5, max(1, 10**8 // max(1, dp * micro))))
    found |= {name: rng.choice(values) for name, values in CHOICES.items() if rng.random() < 0.15}
    if found.get("zero") == 3:
        found["fsdp"] = table(rng, Sharding, 0.4)
    return found


def _model(rng: random.Random, folder: Path) -> str:
    name = rng.choice(models.models())
    model = models.load(name)
    if rng.random() < 0.8 or not isinstance(model, Transformer):
        return name
    fields = {key: value for key, value in dataclasses.asdict(model).items() if key != "name"}
    return _write(folder / "model.toml", fields | table(rng, Transformer, 0.1))


def _cluster(rng: random.Random, folder: Path) -> str:
    name = rng.choice(clusters.clusters())
    if rng.random() < 0.8:
        return name
    base = clusters.load(name)
    changed = table(rng, Cluster, 0.1)
    for section in ("inside", "between", "storage", "switch"):
        changed[section] = table(rng, type(getattr(base, section)), 0.15)
    return _write(folder / "cluster.toml", {"extends": name} | datafile.merge({}, changed))


def _write(path: Path, tables: dict[str, Any]) -> str:
    """As TOML; tables one level deep."""
    flat = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for section, values in tables.items():
        if isinstance(values, dict):
            flat += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    path.write_text("\n".join(flat))
    return str(path)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
