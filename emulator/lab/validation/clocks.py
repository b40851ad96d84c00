"""Accuracy of clock alignment: traces of one machine, whose clocks agree, are treated as those of several machines with
shifted clocks.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.traces.align import align
from emulator.traces.events import RankTrace
from switchml.errors import ConfigError
from switchml.tables import Table, number, text

SHIFT_S = 0.05


@dataclass(frozen=True)
class Recovered:
    """Result for one set of traces. `told_by`: the best evidence available in the traces. `error_s`: of the clock with
    the largest error."""

    name: str
    told_by: str
    shift_s: float
    error_s: float


def recovered(name: str, traces: Sequence[RankTrace], shift_s: float = SHIFT_S) -> list[Recovered]:
    """Results with all evidence in the traces, then without each kind, from best to worst. Raises ConfigError for
    traces of several machines, as their true clock offsets are unknown."""
    if len({trace.host for trace in traces}) > 1 or len(traces) < 2:
        raise ConfigError(f"{name}: expected traces of two or more ranks on one machine, whose clocks agree")
    remaining = list(traces)
    rows = []
    if any(trace.pings is not None for trace in remaining):
        rows.append(Recovered(name, "pings", shift_s, _error_s(remaining, shift_s)))
        remaining = [dataclasses.replace(trace, pings=None) for trace in remaining]
    if any(trace.wire is not None for trace in remaining):
        rows.append(Recovered(name, "packets", shift_s, _error_s(remaining, shift_s)))
        remaining = [dataclasses.replace(trace, wire=None) for trace in remaining]
    return [*rows, Recovered(name, "collectives", shift_s, _error_s(remaining, shift_s))]


def _error_s(traces: Sequence[RankTrace], shift_s: float) -> float:
    """Largest alignment error with clocks alternately ahead and behind, except the first."""
    ahead_s = shift_s * np.array([0.0 if i == 0 else (-1.0) ** i for i in range(len(traces))])
    moved = [
        dataclasses.replace(trace, host=f"machine {i}", epoch_s=trace.epoch_s + ahead)
        for i, (trace, ahead) in enumerate(zip(traces, ahead_s.tolist(), strict=True))
    ]
    return float(np.abs(align(moved).offset_s + ahead_s).max())


def table(rows: Sequence[Recovered]) -> Table:
    """Table of the results."""
    shown = Table(
        [text("traces"), text("recovered from"), number("off by", "µs")],
        title=f"Clocks shifted by {rows[0].shift_s * 1e3:g} ms, and recovered" if rows else "No clocks were shifted",
    )
    for row in rows:
        shown.add(row.name, row.told_by, f"{row.error_s * 1e6:,.0f}")
    return shown
