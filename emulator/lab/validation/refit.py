"""Refit of the fitted constants from their rows: `emulator/cluster/data/fits.toml` names the rows, their weights, the
start values and the location of each constant. The same file and rows give the same constants, to `DIGITS` digits.
"""

import contextlib
import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.cluster import accelerator
from emulator.cluster import cluster as clusters
from emulator.jobs.costed import closed_form_s
from emulator.jobs.costing import plan
from emulator.jobs.description import load_model
from emulator.jobs.emulate import replayed_s
from emulator.jobs.workload import implementations
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Model
from emulator.lab.validation import bridge, iterations, megatron, throughput
from switchml.cli.extras import require
from switchml.errors import ConfigError
from switchml.output_files import whole_file
from switchml.tables import Table, number, text

ROOT = Path(__file__).resolve().parents[2]
"""Base of paths in fits.toml; paths of measured rows are relative to this module's folder."""
FILE = ROOT / "cluster" / "data" / "fits.toml"
DIGITS = 3
"""Significant digits of fitted constants; weakly determined ones are less precise."""
STEP = 0.01
"""Step of a numerical derivative, in logarithms. Predictions are piecewise constant where kernels change tiles, so
smaller steps would be noisy."""
_BUILT = (
    accelerator.accelerators,
    accelerator.notes,
    accelerator.constants,
    implementations.implementations,
    implementations.attention_kernels,
    clusters.load,
)
"""Caches of values from the files with fitted constants."""


Measured = tuple[Model, Job, str, float]
"""Model, job, cluster, iteration seconds."""


@dataclass(frozen=True)
class Rows:
    """Rows of one file."""

    reader: str
    """Format of `file`: one of READERS."""
    file: str
    weight: float
    cluster: str = ""
    """Cluster of the iterations; throughput rows name their own."""
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Column → allowed values."""
    every: int = 1


@dataclass(frozen=True)
class Constant:
    """A fitted constant. The value is read from the first of `places`; the others are copies."""

    name: str
    places: tuple[str, ...]
    """File and key: "cluster/data/constants.toml kernel_s.value"."""
    start: float

    def shipped(self) -> float:
        """Value in its file."""
        path, keys = _place(self.places[0])
        found: Any = datafile.load(path)
        for key in keys:
            found = found[key]
        return float(found)


@dataclass(frozen=True)
class Fit:
    """A set of constants and the rows they are fitted to."""

    title: str
    prediction: str
    outlier: float
    hold: float
    rows: tuple[Rows, ...]
    constants: tuple[Constant, ...]


@dataclass(frozen=True)
class Sample:
    """A measured job."""

    model: Model
    job: Job
    cluster: str
    measured_s: float
    weight: float


@dataclass(frozen=True)
class Refitted:
    """A constant before and after the fit."""

    constant: Constant
    fitted: float
    shipped: float

    @property
    def change(self) -> float:
        """Relative change from the shipped value."""
        return self.fitted / self.shipped - 1.0


@cache
def fits() -> dict[str, Fit]:
    """All fits, by name."""
    return datafile.build_all(Fit, FILE)


def samples(fit: Fit) -> list[Sample]:
    """The rows of a fit."""
    return [sample for rows in fit.rows for sample in _samples(rows)]


def _samples(rows: Rows) -> Iterator[Sample]:
    path = Path(__file__).parent / rows.file
    with path.open(newline="", encoding="utf-8-sig") as file:
        columns = list(csv.DictReader(file))
    chosen = [
        one
        for one, row in zip(READERS[rows.reader](path, rows.cluster), columns, strict=True)
        if all(row[column] in values for column, values in rows.only.items())
    ]
    if not chosen:
        raise ConfigError(f"{FILE.name}: no row of {rows.file} has {rows.only}")
    for one in chosen[:: rows.every]:
        yield Sample(*one, rows.weight)


def _iterations(path: Path, cluster: str) -> list[Measured]:
    return [(model, job, cluster, seconds) for model, job, seconds in iterations.read(path)]


def _table5(_: Path, cluster: str) -> list[Measured]:
    return [(model, job, cluster, seconds) for _, model, job, seconds in megatron.table5()]


def _throughput(path: Path, _: str) -> list[Measured]:
    return [_of_throughput(row) for row in throughput.read(path)]


def _of_throughput(row: throughput.Measured) -> Measured:
    job = row.request.job
    return load_model(row.request), job, row.request.cluster, job.global_batch * job.sequence / row.tokens_per_s


def _bridge(_: Path, cluster: str) -> list[Measured]:
    return [
        (load_model(own), own.job, own.cluster, own.job.global_batch * own.job.sequence / rate / own.job.gpus)
        for _, own, rate in bridge.published_rows()
    ]


READERS = {"iterations": _iterations, "table5": _table5, "throughput": _throughput, "bridge": _bridge}


def predicted_s(fit: Fit, sample: Sample) -> float:
    """Predicted seconds of an iteration, with the current constants."""
    costed = plan(sample.model, sample.job, clusters.load(sample.cluster))
    return closed_form_s(costed) if fit.prediction == "formula" else replayed_s(costed)


@contextlib.contextmanager
def trying(values: Mapping[Constant, float]) -> Iterator[None]:
    """Context with other values of constants than their files have."""
    changes: dict[Path, dict[str, Any]] = {}
    for constant, value in values.items():
        for place in constant.places:
            path, keys = _place(place)
            table: Any = value
            for key in reversed(keys):
                table = {key: table}
            changes[path] = datafile.merge(changes.get(path, {}), table)
    try:
        with datafile.trying(changes):
            _build_again()
            yield
    finally:
        _build_again()


def _build_again() -> None:
    for built in _BUILT:
        built.cache_clear()


def refit(
    fit: Fit,
    progress: Callable[[str], None] = lambda line: None,
    *,
    rows: Sequence[Sample] | None = None,
    free: Sequence[str] = (),
    start: Mapping[str, float] | None = None,
    rounds: int = 40,
) -> list[Refitted]:
    """Fit the constants to a fit's rows. `rows`: instead of its own; `free`: names of the constants that may change
    (default: all); `start`: start values, by name (default: as recorded); `rounds`: maximum number of least-squares
    evaluations. Raises ImportError without scipy."""
    require("scipy")
    from scipy.optimize import least_squares

    rows = samples(fit) if rows is None else rows
    constants = [one for one in fit.constants if not free or one.name in free]
    first = [math.log((start or {}).get(one.name, one.start)) for one in constants]
    calls = 0

    def errors(logs: Any) -> list[float]:
        nonlocal calls
        calls += 1
        progress(f"{calls} predictions of {len(rows)} rows")
        with trying({one: math.exp(x) for one, x in zip(constants, logs, strict=True)}):
            found = [row.weight * math.log(predicted_s(fit, row) / row.measured_s) for row in rows]
        held = [fit.hold * (x - math.log(one.start)) for one, x in zip(constants, logs, strict=True)]
        return [*found, *held]

    shipped = [one.shipped() for one in constants]
    result = least_squares(
        errors, first, loss="soft_l1", f_scale=fit.outlier, diff_step=STEP, x_scale=1.0, max_nfev=rounds
    )
    return [
        Refitted(one, float(f"{math.exp(x):.{DIGITS}g}"), was)
        for one, x, was in zip(constants, result.x, shipped, strict=True)
    ]


def files(fit: Fit) -> list[Path]:
    """Files with the fit's constants."""
    return list(dict.fromkeys(_place(place)[0] for one in fit.constants for place in one.places))


def targets(fit: Fit, path: Path, is_replacing: bool = False) -> dict[Path, Path]:
    """File of constants → output file: the first is written to `path`, the others next to it under their own names.
    Raises ConfigError if one exists and may not be replaced."""
    first, *others = files(fit)
    found = {first: path, **{one: path.parent / one.name for one in others}}
    for one in found.values():
        if one.exists() and not is_replacing:
            raise ConfigError(f"{one} exists: give --overwrite to replace it, or another file with --write")
    return found


def write(fit: Fit, found: Sequence[Refitted], out: Mapping[Path, Path]) -> None:
    """Write copies of the files with the fitted constants; all other content, including comments, is preserved."""
    require("tomlkit")
    import tomlkit

    for source, target in out.items():
        document = tomlkit.parse(source.read_text(encoding="utf-8"))
        for one in found:
            for path, keys in map(_place, one.constant.places):
                if path == source:
                    table: Any = reduce(lambda inner, key: inner[key], keys[:-1], document)
                    is_same = math.isclose(table[keys[-1]], one.fitted, rel_tol=1e-9)
                    table[keys[-1]] = table[keys[-1]] if is_same else tomlkit.parse(f"x = {_toml(one.fitted)}")["x"]
        with whole_file(target) as part:
            part.write_text(tomlkit.dumps(document), encoding="utf-8")


def _toml(value: float) -> str:
    """A number formatted as in the data files: with powers of ten that are multiples of three."""
    power = 3 * math.floor(math.log10(value) / 3)
    return f"{value:.6g}" if -3 <= power < 6 else f"{value / 10.0**power:.6g}e{power}"


def _place(place: str) -> tuple[Path, tuple[str, ...]]:
    file, key = place.split(" ")
    return ROOT / file, tuple(key.split("."))


def to_json(found: Sequence[Refitted]) -> dict[str, Any]:
    """JSON object of the constants, by name."""
    return {
        one.constant.name: {
            **asdict(one.constant), "fitted": one.fitted, "shipped": one.shipped, "change": one.change
        }
        for one in found
    }  # fmt: skip


def table(fit: Fit, found: Sequence[Refitted], rows: int) -> Table:
    """Table of the constants."""
    columns = [text("constant"), number("start"), number("fitted"), number("shipped"), number("change", "%")]
    shown = Table(columns, title=f"{fit.title}: {rows} rows")
    for one in found:
        figures = (f"{value:.4g}" for value in (one.constant.start, one.fitted, one.shipped))
        shown.add(one.constant.name, *figures, f"{100 * one.change:+.1f}")
    return shown
