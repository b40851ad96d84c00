"""Rows of a validation and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measurement and its prediction, both in `unit`."""

    name: str
    measured: float
    predicted: float
    unit: str

    @property
    def error(self) -> float:
        """Relative; positive: predicted too much."""
        return self.predicted / self.measured - 1.0


def mape(rows: Sequence[Row]) -> float:
    """Mean absolute percentage error, as a share (0.05: 5 %)."""
    return sum(abs(row.error) for row in rows) / len(rows)


def worst(rows: Sequence[Row]) -> Row:
    """The row that is off most."""
    return max(rows, key=lambda row: abs(row.error))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """For --json."""
    far = worst(rows)
    return {
        "rows": [
            {
                "name": row.name,
                "measured": row.measured,
                "predicted": row.predicted,
                "unit": row.unit,
                "error": row.error,
            }
            for row in rows
        ],
        "mape": mape(rows),
        "worst": {"name": far.name, "error": far.error},
        "within_5_percent": sum(abs(row.error) <= 0.05 for row in rows) / len(rows),
    }
