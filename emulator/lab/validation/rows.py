"""Rows of a validation and what they come to; and the tables of published figures that come along."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Protocol, TypeVar

DATA = Path(__file__).parent / "data"


def published(name: str) -> list[dict[str, str]]:
    """The rows of a table in `data/`, by column."""
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Row:
    """One measurement and its prediction, both in `unit`."""

    name: str
    measured: float
    predicted: float
    unit: str
    factor: float | None = None
    """By which the interval stated for it reaches up and down (`emulator/jobs/interval.py`); None: none is stated."""

    @property
    def error(self) -> float:
        """Relative; positive: predicted too much."""
        return self.predicted / self.measured - 1.0


class HasError(Protocol):
    """A prediction beside a measurement, with a relative error."""

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
    """Share of the rows."""
    return mean(abs(row.error) <= 0.05 for row in rows)


def inside(rows: Sequence[Row]) -> float | None:
    """Share of the rows that lie in the interval stated for them; None where none is."""
    stated = [1 / row.factor <= row.predicted / row.measured <= row.factor for row in rows if row.factor is not None]
    return mean(stated) if stated else None


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """For --json."""
    far = worst(rows)
    return {
        "rows": [asdict(row) | {"error": row.error} for row in rows],
        "mape": mape(rows),
        "worst": {"name": far.name, "error": far.error},
        "within_5_percent": within_5_percent(rows),
    }
