"""Rows of a validation and their error summaries; tables of measured values, from the package and from users."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Protocol, TypeVar

from switchml.errors import ConfigError
from switchml.files import read_text

DATA = Path(__file__).parent / "data"
T = TypeVar("T")


def published(name: str) -> list[dict[str, str]]:
    """The rows of a table in `data/`, by column; lines that begin with # name its sources."""
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def job_fields(row: Mapping[str, str], *names: str) -> dict[str, Any]:
    """Job fields from a row's integer columns, and the schedule that its virtual stages imply."""
    fields: dict[str, Any] = {name: int(row[name]) for name in names}
    return fields | {"schedule": "interleaved" if fields.get("virtual_stages", 1) > 1 else "1f1b"}


def grouped(titled: Iterable[tuple[str, T]]) -> list[tuple[str, list[T]]]:
    """Rows by title, sorted."""
    found: dict[str, list[T]] = {}
    for title, row in titled:
        found.setdefault(title, []).append(row)
    return sorted(found.items())


def measured_table(path: Path, columns: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a user's CSV file: location of each, and its values by column. Raises ConfigError for a file that
    can't be read, lacks a column, has no row, or a row with more or fewer values than columns."""
    reader = csv.DictReader(io.StringIO(read_text(path)))
    try:
        rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error}") from None
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{path}: expected a CSV file with the columns {', '.join(columns)}; missing: {missing}")
    if not rows:
        raise ConfigError(f"{path}: expected at least one row below the columns")
    for where, row in rows:
        if None in row or None in row.values():  # DictReader's markers of excess and missing values
            raise ConfigError(f"{where}: expected {len(reader.fieldnames or ())} values, one for each column")
    return rows


@dataclass(frozen=True)
class Row:
    """One measurement and its prediction, both in `unit`."""

    name: str
    measured: float
    predicted: float
    unit: str
    factor: float | None = None
    """Factor by which the stated interval extends up and down (`emulator/jobs/interval.py`); None: no interval is
    stated."""

    @property
    def error(self) -> float:
        """Relative error; positive if the prediction is too large."""
        return self.predicted / self.measured - 1.0


class HasError(Protocol):
    """A prediction and a measurement, with a relative error."""

    @property
    def error(self) -> float: ...


Compared = TypeVar("Compared", bound=HasError)


def mape(rows: Sequence[HasError]) -> float:
    """Mean absolute percentage error, as a share (0.05: 5 %)."""
    return mean(abs(row.error) for row in rows)


def worst(rows: Sequence[Compared]) -> Compared:
    """The row with the largest error."""
    return max(rows, key=lambda row: abs(row.error))


def within_5_percent(rows: Sequence[HasError]) -> float:
    """Share of the rows with at most 5 % error."""
    return mean(abs(row.error) <= 0.05 for row in rows)


def inside(rows: Sequence[Row]) -> float | None:
    """Share of the rows that lie in the interval stated for them; None if no row has an interval."""
    stated = [1 / row.factor <= row.predicted / row.measured <= row.factor for row in rows if row.factor is not None]
    return mean(stated) if stated else None


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """JSON object of the rows and their errors."""
    far = worst(rows)
    return {
        "rows": [asdict(row) | {"error": row.error} for row in rows],
        "mape": mape(rows),
        "worst": {"name": far.name, "error": far.error},
        "within_5_percent": within_5_percent(rows),
    }
