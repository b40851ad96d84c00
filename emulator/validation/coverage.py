"""How often measured rows lie inside the intervals that predictions are given (`emulator/jobs/interval.py`), by
cross-validation: a row's interval comes from the spread of other rows of its group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.cluster import cluster as clusters
from emulator.jobs import interval
from emulator.jobs.costing import plan
from emulator.jobs.emulate import Request, load_model, replayed_s
from emulator.jobs.interval import CONTEXT, FSDP, NODES, ONE_NODE, OTHERS, Group
from emulator.validation import campaigns, fitting, frameworks, iterations, megatron, throughput
from emulator.workload.models import Transformer
from switchml.output_files import whole_file
from switchml.tables import Table, number, text

TITLES = {
    ONE_NODE: "Megatron on one node of A100",
    NODES: "Megatron on several nodes of A100",
    FSDP: "MPT under FSDP on A100 and H100",
    OTHERS: "torchtitan, NeMo and fp8 on H100, to which nothing was fitted",
    CONTEXT: "context-parallel Llama on H100",
}
FOLDS = 10


@dataclass(frozen=True)
class Measured:
    """One row: its group, model and accelerators, and measured over predicted seconds."""

    group: str
    model: str
    gpus: int
    ratio: float


def measured(files: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> list[Measured]:
    """The rows of `files`, iterations or tokens a second, and those of Megatron, torchtitan and NeMo."""
    found: list[Measured] = []
    for path in files:
        kind = campaigns.kind(path)
        progress(f"{path}: {kind or 'passed over'}")
        if kind == "iterations":
            found += _iterations(path)
        elif kind == "throughput":
            found += _throughput(path)
    progress("Megatron's, torchtitan's and NeMo's tables")
    machine = clusters.load(campaigns.MEGATRON_CLUSTER)
    for _, model, job, seconds in megatron.table5():
        group = interval.kind(job, model, machine)
        found.append(Measured(group, model.name, job.gpus, seconds / replayed_s(plan(model, job, machine))))
    for part in (frameworks.torchtitan(), frameworks.nemo()):
        for (_, request, _), row in zip(part, frameworks.rows(part), strict=True):
            found.append(_of_request(request, row.predicted / row.measured))
    return found


def _of_request(request: Request, ratio: float) -> Measured:
    model = load_model(request)
    assert isinstance(model, Transformer)
    group = interval.kind(request.job, model, clusters.load(request.cluster))
    return Measured(group, request.model, request.job.gpus, ratio)


def _iterations(path: Path) -> list[Measured]:
    samples, machine = iterations.read(path), clusters.load(campaigns.ITERATIONS_CLUSTER)
    return [
        Measured(interval.kind(job, model, machine), fitting.size_name(model), job.gpus, row.measured / row.predicted)
        for (model, job, _), row in zip(samples, fitting.predict(machine, samples), strict=True)
    ]


def _throughput(path: Path) -> list[Measured]:
    rows = throughput.predict(throughput.read(path))
    return [
        _of_request(one.measured.request, one.row.predicted / one.row.measured) for one in rows if one.row is not None
    ]


def groups(rows: Sequence[Measured]) -> dict[str, Group]:
    """The spread of each group, and how often it holds for rows that it was not taken from."""
    result = {}
    for name, title in TITLES.items():
        own = [row for row in rows if row.group == name]
        if len(own) > 1:
            result[name] = Group(
                title=title,
                rows=len(own),
                spread=interval.spread([row.ratio for row in own]),
                most_gpus=max(row.gpus for row in own),
                held_out=_held_out(own, [str(number % FOLDS) for number in range(len(own))]),
                held_out_models=_held_out(own, [row.model for row in own]),
            )
    return result


def _held_out(rows: Sequence[Measured], folds: Sequence[str]) -> float:
    """Share of `rows` that are inside the interval from those of other folds."""
    parts: dict[str, list[float]] = defaultdict(list)
    for row, fold in zip(rows, folds, strict=True):
        parts[fold].append(row.ratio)
    inside = 0
    for fold, ratios in parts.items():
        if others := [ratio for other, part in parts.items() if other != fold for ratio in part]:
            limit = interval.spread(others)
            inside += sum(1 / limit <= ratio <= limit for ratio in ratios)
    return inside / len(rows)


def overall(found: dict[str, Group], of_models: bool = False) -> float:
    """Share of all rows inside."""
    shares = [(one.held_out_models if of_models else one.held_out) * one.rows for one in found.values()]
    return sum(shares) / sum(one.rows for one in found.values())


def write(found: dict[str, Group], path: Path) -> None:
    """As `emulator/jobs/data/intervals.toml`."""
    lines = ["# Spread of measured over predicted seconds, by groups of jobs: switchml validate intervals DIR --write"]
    for name, one in found.items():
        lines += ["", f"[{name}]", f'title = "{one.title}"', f"rows = {one.rows}", f"spread = {one.spread:.4f}"]
        lines += [f"most_gpus = {one.most_gpus}", f"held_out = {one.held_out:.3f}"]
        lines += [f"held_out_models = {one.held_out_models:.3f}"]
    with whole_file(path) as part:
        part.write_text("\n".join(lines) + "\n")


def to_json(found: dict[str, Group]) -> dict[str, Any]:
    """By group, and of all together."""
    return {
        "groups": {name: vars(one) for name, one in found.items()},
        "held_out": overall(found),
        "held_out_models": overall(found, True),
    }


def table(found: dict[str, Group]) -> Table:
    """For people."""
    columns = [
        text("group"),
        number("rows"),
        number("interval", "± %"),
        number("inside", "%"),
        number("of models", "%"),
    ]
    shown = Table(columns)
    for one in found.values():
        shares = (f"{100 * share:.0f}" for share in (one.held_out, one.held_out_models))
        shown.add(one.title, str(one.rows), f"{100 * (one.spread - 1):.1f}", *shares)
    total = str(sum(one.rows for one in found.values()))
    shown.add("all", total, "", f"{100 * overall(found):.0f}", f"{100 * overall(found, True):.0f}")
    return shown
