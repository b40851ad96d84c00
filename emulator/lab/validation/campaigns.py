"""All comparisons with published measurements in one run: the figures of docs/accuracy.md. A file's kind is detected
from its content: iterations of Megatron-DeepSpeed, tokens/s under FSDP, tables of nccl-tests. The tables of Megatron,
torchtitan and NeMo and the kernels of two accelerators are part of the package.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.cluster import cluster as clusters
from emulator.cluster import tables
from emulator.lab.validation import experts, fitting, frameworks, iterations, kernels, megatron, nccl, throughput
from emulator.lab.validation.memory import measure as measured_memory
from emulator.lab.validation.memory import published as published_memory
from emulator.lab.validation.rows import Row, inside, mape, worst
from switchml.errors import ConfigError
from switchml.tables import Table, number, text

MEGATRON_CLUSTER, ITERATIONS_CLUSTER = "a100-dgx", "a100-hdr800"
NODES = {"a100": "a100-dgx", "v100": "v100-dgx1"}
"""Word in the name of an nccl-tests table → the cluster whose closed form should predict it."""


@dataclass(frozen=True)
class Campaign:
    """Rows of one measurement campaign."""

    name: str
    rows: Sequence[Row]


def all_of(
    folder: Path | None,
    progress: Callable[[str], None] = lambda line: None,
    *,
    measure: bool = False,
    refit: bool = False,
) -> list[Campaign]:
    """All campaigns from files in `folder` and below whose kind is known, then those that need no file. `measure`: also
    torch's allocations on this machine; `refit`: also predict each model size of the iterations with constants fitted
    to the others. Raises ConfigError if the folder holds no known file."""
    found: list[Campaign] = []
    samples: list[fitting.Sample] = []
    paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder is not None else []
    measured: list[tables.Table] = []
    for path in paths:
        what = kind(path)
        if what:
            progress(f"{path}: {what}")
        if what == "iterations":
            found += _iterations(path)
            samples += iterations.read(path)
        elif what == "throughput":
            found += _throughput(path)
        elif what == "nccl":
            measured.append(tables.read(path))
    if measured:
        found += _nccl(measured)
    if folder is not None and not found:
        raise ConfigError(f"{folder}: no iterations, tokens a second or nccl-tests tables in any file there")
    found += _nccl_between_nodes()
    progress("Megatron's tables")
    found += _megatron()
    progress("torchtitan's and NeMo's tables")
    found += [Campaign(f"tokens a second, {name}", rows) for name, rows in frameworks.groups()]
    found.append(Campaign("products of experts, forward", experts.rows()))
    found.append(Campaign("kernels carried between H100 and MI300X", kernels.rows()))
    found.append(Campaign("torchtitan's memory", published_memory.rows()))
    if measure:
        found.append(Campaign("torch's memory on this machine", measured_memory.rows(progress)))
    if refit and samples:
        found += left_out(samples, progress)
    return found


def left_out(
    samples: Sequence[fitting.Sample], progress: Callable[[str], None] = lambda line: None
) -> Iterator[Campaign]:
    """Iterations of each model size, predicted with constants fitted to the other sizes."""
    for size, rows in fitting.split_by_size(clusters.load(ITERATIONS_CLUSTER), samples, progress):
        yield Campaign(f"iterations, constants fitted without {size}", rows)


def kind(path: Path) -> str:
    """Kind of a file: "iterations", "throughput", "nccl", or "" if unknown; detected from its first line or from rows
    of numbers."""
    if not path.is_file():
        return ""
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = [line.strip() for line in (file.readline(1 << 16) for _ in range(60)) if line.strip()]
    except (OSError, UnicodeDecodeError):
        return ""
    columns = set(next(csv.reader(head[:1]), ()))
    if set(iterations.COLUMNS) <= columns:
        return "iterations"
    if set(throughput.COLUMNS) <= columns:
        return "throughput"
    rows = [line.replace(",", " ").split() for line in head]
    is_table = [len(row) >= 5 and row[0].isdigit() and row[1].isdigit() and row[2] in ("float", "half") for row in rows]
    return "nccl" if sum(is_table) >= 4 else ""


def _iterations(path: Path) -> Iterator[Campaign]:
    samples = iterations.read(path)
    rows = fitting.predict(clusters.load(ITERATIONS_CLUSTER), samples)
    for is_single in (True, False):
        own = [(row, model) for row, (model, job, _) in zip(rows, samples, strict=True) if (job.gpus <= 8) == is_single]
        if is_single and own:
            yield Campaign("iterations on one node", [row for row, _ in own])
        for size in [] if is_single else dict.fromkeys(fitting.size_name(model) for _, model in own):
            part = [row for row, model in own if fitting.size_name(model) == size]
            yield Campaign(f"iterations on several nodes, {size}", part)


def _throughput(path: Path) -> Iterator[Campaign]:
    predicted = throughput.predict(throughput.read(path))
    known = [(number, one) for number, one in enumerate(predicted) if one.row is not None]
    for group in dict.fromkeys(one.measured.group for _, one in known):
        rows = [one.row for _, one in known if one.measured.group == group and one.row is not None]
        yield Campaign(f"tokens a second, {group}", rows)
    halves: dict[str, list[Row]] = {}
    for place, one in known:
        if one.row is not None and one.measured.request.job.precision == "bf16":
            halves.setdefault("to others" if place % 2 else "to these", []).append(one.row)
    for name, rows in halves.items():
        yield Campaign(f"tokens a second, bf16, constants fitted {name}", rows)


def _nccl(measured: Sequence[tables.Table]) -> Iterator[Campaign]:
    small, large = nccl.split([row for table in measured for row in nccl.held_out(table)])
    yield Campaign("all-reduces of 16 MB and more, sizes held out", large)
    yield Campaign("all-reduces below 16 MB, sizes held out", small)
    for word, name in NODES.items():
        own = [row for table in measured if word in table.name for row in nccl.by_formula(table, clusters.load(name))]
        yield Campaign(f"all-reduces of 16 MB and more, closed form of {name}", nccl.split(own)[1])


def _nccl_between_nodes() -> Iterator[Campaign]:
    for use, remark in (("chosen", "looked at"), ("held out", "held out")):
        small, large = nccl.split(nccl.between_nodes(use))
        yield Campaign(f"all-reduces between nodes, 16 MB and more, tables {remark}", large)
        yield Campaign(f"all-reduces between nodes, below 16 MB, tables {remark}", small)


def _megatron() -> Iterator[Campaign]:
    machine = clusters.load(MEGATRON_CLUSTER)
    rows = megatron.times(machine)
    yield Campaign("Megatron's table 5, full recomputation", [row for row in rows if row.name.endswith("full")])
    unseen = [row for row in rows if not row.name.endswith("full")]
    yield Campaign("Megatron's table 5, selective recomputation", unseen)
    yield Campaign("Megatron's memory figures", megatron.memories())
    yield Campaign("Narayanan's table 1", megatron.scaling(machine))


def to_json(campaigns: Sequence[Campaign]) -> dict[str, Any]:
    """By campaign name: rows, MAPE, the worst row's error and the share of rows inside their stated intervals."""
    return {
        one.name: {
            "rows": len(one.rows),
            "mape": mape(one.rows),
            "worst": worst(one.rows).error,
            "inside": inside(one.rows),
        }
        for one in campaigns
        if one.rows
    }


def table(campaigns: Sequence[Campaign]) -> Table:
    """Table of the campaigns. Inside: share of the rows within the interval stated with their prediction."""
    columns = [text("measured"), number("rows"), number("MAPE", "%"), number("worst", "%"), number("inside", "%")]
    shown = Table(columns)
    for one in campaigns:
        if one.rows:
            share = inside(one.rows)
            figures = f"{100 * mape(one.rows):.1f}", f"{100 * worst(one.rows).error:+.1f}"
            shown.add(one.name, str(len(one.rows)), *figures, "" if share is None else f"{100 * share:.0f}")
    return shown
