"""Coverage of prediction intervals (`emulator/jobs/interval.py`): how often measured rows lie inside. Residuals come
from rows that no constant was fitted to (`fits.toml` names the fitted ones), and a row is tested with the interval of
other rows: with a tenth of its group left out, all rows of its model, or all of its campaign.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from emulator.cluster import cluster as clusters
from emulator.cluster.accelerator import accelerators
from emulator.cluster.cluster import Cluster
from emulator.jobs import interval
from emulator.jobs.description import Request, load_model
from emulator.jobs.interval import CONTEXT, CORE, EXPERTS, FSDP, NODES, ONE_NODE, OTHERS, TORCH, Group
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model, Transformer
from emulator.lab.validation import bridge, campaigns, fitting, frameworks, iterations, megatron, refit, throughput
from emulator.lab.validation.rows import Row
from switchml.output_files import whole_file
from switchml.tables import Table, number, text

TITLES = {
    ONE_NODE: "Megatron on one node of A100",
    NODES: "Megatron on several nodes of A100",
    FSDP: "MPT under FSDP on A100 and H100",
    TORCH: "torchtitan on H100",
    CORE: "NeMo and Megatron Bridge on H100, B200 and GB200",
    EXPERTS: "mixtures of experts on H100, B200 and GB200",
    CONTEXT: "context-parallel Llama on H100",
    OTHERS: "experts, exchanges and accelerators when they were new",
}
POOLED = (CONTEXT, EXPERTS, OTHERS)
"""Groups whose pooled rows give the interval for jobs that match no group: no constant was fitted to them, and none of
their collectives, experts and accelerators had been measured before."""
UNKNOWN = "Blackwell, before its rows were known"
"""A campaign: rows of two accelerators, predicted with Hopper's share of power."""
FOLDS = 10
LEAST = 4
"""Minimum number of rows for an interval: of fewer, four in five are all."""
ALL = "all"


@dataclass(frozen=True)
class Measured:
    """One row: its group, campaign, model and accelerators, and measured over predicted seconds."""

    group: str
    campaign: str
    model: str
    gpus: int
    ratio: float


@dataclass(frozen=True)
class Held:
    """Held-out coverage: shares of rows inside an interval that comes from other rows."""

    rows: int
    tenths: float
    """With a tenth of the group left out."""
    models: float
    campaigns: float
    """With all rows of a campaign left out; if none of the group remain, the interval of OTHERS is used."""


def measured(files: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> list[Measured]:
    """The rows of `files`, iterations or tokens/s, and those of Megatron, Narayanan, torchtitan, NeMo and Megatron
    Bridge, except rows that constants were fitted to."""
    fitted = {_key(row.model, row.job, row.cluster) for fit in refit.fits().values() for row in refit.samples(fit)}
    found: list[Measured] = []
    for path in files:
        kind = campaigns.kind(path)
        progress(f"{path}: {kind or 'passed over'}")
        if kind == "iterations":
            found += _iterations(path, fitted)
        elif kind == "throughput":
            found += _throughput(path, fitted)
    progress("Megatron's, torchtitan's, NeMo's and Megatron Bridge's tables")
    machine = clusters.load(campaigns.MEGATRON_CLUSTER)
    for (_, model, job, _), row in zip(megatron.table5(), megatron.times(machine), strict=True):
        if _key(model, job, machine.name) not in fitted:
            found.append(_measured("Megatron's table 5", model, job, machine, row))
    found += [
        _measured("Narayanan's table 1", model, job, machine, row) for model, job, row in megatron.scaled(machine)
    ]
    for title, part in (
        ("torchtitan", frameworks.torchtitan()),
        ("NeMo", frameworks.nemo()),
        ("Megatron Bridge", [one for one in _bridge() if _of(one[1]) not in fitted]),
    ):
        for (_, request, _), row in zip(part, frameworks.rows(part), strict=True):
            found.append(_of_request(title, request, row))
    return found + _before_its_rows()


def _bridge() -> list[bridge.Published]:
    """Megatron Bridge's rows, one per job: for jobs measured with several containers, the first."""
    first: dict[tuple[object, ...], bridge.Published] = {}
    for one in sorted(bridge.published_rows(), key=lambda one: one[0]):
        first.setdefault(_of(one[1]), one)
    return list(first.values())


def _before_its_rows() -> list[Measured]:
    """Dense models on B200 and GB200, predicted as before any measurement there was known."""
    part = [one for one in _bridge() if one[1].cluster != "h100-dgx" and one[1].job.ep == 1]
    hopper = accelerators()["h100"].power_share
    with refit.trying(dict.fromkeys(refit.fits()["blackwell"].constants, hopper)):
        rows = frameworks.rows(part)
    return [
        Measured(OTHERS, UNKNOWN, own.model, own.job.gpus, row.predicted / row.measured)
        for (_, own, _), row in zip(part, rows, strict=True)
    ]


def _of(request: Request) -> tuple[object, ...]:
    return _key(load_model(request), request.job, request.cluster)


def _key(model: Model, job: Job, cluster: str) -> tuple[object, ...]:
    """Identity of a row: a model's name may differ between sources, and mxfp8 differs from fp8 by one byte in 32."""
    assert isinstance(model, Transformer)
    job = job.replace(precision="fp8") if job.precision == "mxfp8" else job
    return model.layers, model.hidden, model.heads, job, cluster


def _measured(campaign: str, model: Model, job: Job, cluster: Cluster, row: Row, name: str = "") -> Measured:
    """`name`: of the model, if different from its own."""
    assert isinstance(model, Transformer)
    ratio = row.measured / row.predicted if row.unit == "s" else row.predicted / row.measured  # other units are rates
    return Measured(interval.kind(job, model, cluster), campaign, name or model.name, job.gpus, ratio)


def _of_request(campaign: str, request: Request, row: Row) -> Measured:
    model, cluster = load_model(request), clusters.load(request.cluster)
    return _measured(campaign, model, request.job, cluster, row, request.model)


def _iterations(path: Path, fitted: set[tuple[object, ...]]) -> list[Measured]:
    machine = clusters.load(campaigns.ITERATIONS_CLUSTER)
    samples = [one for one in iterations.read(path) if _key(*one[:2], machine.name) not in fitted]
    rows = fitting.predict(machine, samples)
    return [
        _measured(path.stem, model, job, machine, row, fitting.size_name(model))
        for (model, job, _), row in zip(samples, rows, strict=True)
    ]


def _throughput(path: Path, fitted: set[tuple[object, ...]]) -> list[Measured]:
    named = [(row, row.request) for row in throughput.read(path)]
    rows = [row for row, own in named if _of(own) not in fitted]
    return [
        _of_request(path.stem, one.measured.request, one.row) for one in throughput.predict(rows) if one.row is not None
    ]


def _gives(name: str, row: Measured) -> bool:
    """Whether a group's interval includes this row."""
    return row.group == name or (name == OTHERS and row.group in POOLED)


def groups(rows: Sequence[Measured]) -> dict[str, Group]:
    """Spread of each group, and its coverage of held-out rows."""
    judged, result = _judged(rows), {}
    for name, title in TITLES.items():
        basis = [row for row in rows if _gives(name, row)]
        if len(basis) >= LEAST:
            own = [inside for row, inside in zip(rows, judged, strict=True) if row.group == name]
            held = _share(own or [inside for row, inside in zip(rows, judged, strict=True) if _gives(name, row)])
            result[name] = Group(
                title=title,
                rows=len(basis),
                spread=interval.spread([row.ratio for row in basis]),
                most_gpus=max(row.gpus for row in basis),
                held_out=held.tenths,
                held_out_models=held.models,
                held_out_campaigns=held.campaigns,
            )
    return result


def by_campaign(rows: Sequence[Measured]) -> dict[str, Held]:
    """Coverage for the rows of each campaign, and for all rows."""
    parts: dict[str, list[tuple[bool, ...]]] = defaultdict(list)
    for row, inside in zip(rows, _judged(rows), strict=True):
        parts[row.campaign].append(inside)
        parts[ALL].append(inside)
    return {name: _share(parts[name]) for name in [*(name for name in parts if name != ALL), ALL]}


def _share(inside: Sequence[tuple[bool, ...]]) -> Held:
    return Held(len(inside), *(sum(column) / len(inside) for column in zip(*inside, strict=True)))


def _judged(rows: Sequence[Measured]) -> list[tuple[bool, ...]]:
    """Whether each row lies in its interval with its tenth, its model or its campaign left out."""
    of_group: dict[str, int] = defaultdict(int)
    labels = []
    for row in rows:
        labels.append((of_group[row.group] % FOLDS, row.model, row.campaign))
        of_group[row.group] += 1
    labelled = list(zip(rows, labels, strict=True))

    @cache
    def limit(group: str, by: int, label: str | int) -> float:
        """Log spread of a group's rows with other labels, or of OTHERS where there are too few."""
        for name in (group, OTHERS):
            others = [row.ratio for row, own in labelled if own[by] != label and _gives(name, row)]
            if len(others) >= LEAST:
                break
        return math.log(interval.spread(others)) if others else 0.0

    return [
        tuple(abs(math.log(row.ratio)) <= limit(row.group, by, label) for by, label in enumerate(own))
        for row, own in labelled
    ]


def write(found: dict[str, Group], path: Path) -> None:
    """Write `emulator/jobs/data/intervals.toml`."""
    lines = ["# Spread of measured over predicted seconds, by groups of jobs: switchml validate intervals DIR --write"]
    for name, one in found.items():
        lines += ["", f"[{name}]", f'title = "{one.title}"', f"rows = {one.rows}", f"spread = {one.spread:.4f}"]
        lines += [f"most_gpus = {one.most_gpus}", f"held_out = {one.held_out:.3f}"]
        lines += [f"held_out_models = {one.held_out_models:.3f}", f"held_out_campaigns = {one.held_out_campaigns:.3f}"]
    with whole_file(path) as part:
        part.write_text("\n".join(lines) + "\n")


def to_json(found: dict[str, Group], campaigns: dict[str, Held]) -> dict[str, Any]:
    """JSON object by group, by campaign, and for all rows together."""
    return {
        "groups": {name: vars(one) for name, one in found.items()},
        "campaigns": {name: vars(one) for name, one in campaigns.items() if name != ALL},
        "held_out": campaigns[ALL].tenths,
        "held_out_models": campaigns[ALL].models,
        "held_out_campaigns": campaigns[ALL].campaigns,
    }


def tables(found: dict[str, Group], campaigns: dict[str, Held]) -> list[Table]:
    """Tables of groups and of campaigns. Inside: with a tenth, a model, a campaign left out."""
    shares = number("inside", "%"), number("model", "%"), number("campaign", "%")
    first = Table([text("group"), number("rows"), number("interval", "± %"), *shares])
    for one in found.values():
        held = one.held_out, one.held_out_models, one.held_out_campaigns
        first.add(one.title, str(one.rows), f"{100 * (one.spread - 1):.1f}", *map(_percent, held))
    second = Table([text("campaign"), number("rows"), *shares])
    for name, own in campaigns.items():
        second.add(name, str(own.rows), *map(_percent, (own.tenths, own.models, own.campaigns)))
    return [first, second]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"
