"""The page's timeline: for each rank one lane of compute and one of communication, cut into columns. A column has the
color of the phase that fills most of it; its opacity is the busy share.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emulator.jobs.replay.engine import Replayed
from emulator.jobs.workload.graph import NO_TRANSFER, Kind

PHASES = ("forward", "backward", "recompute", "optimizer", "communication", "waiting", "loading", "compression",
          "compute", "host", "other")  # fmt: skip
SHADES = 4
COLUMNS = 1000

_OF_KIND = {Kind.LOAD: "loading", Kind.CODEC: "compression", Kind.CHECKPOINT: "other", Kind.DELAY: "other"}
"""Phases of all kinds but COMPUTE; the kinds not listed are communication."""
_COMPUTES = ("forward", "backward", "recompute", "optimizer", "compression", "compute", "host")


@dataclass(frozen=True)
class Run:
    """`columns` adjacent equal columns from column `first` on: their phase, and a shade from 1 (pale) to SHADES."""

    first: int
    columns: int
    phase: str
    shade: int


@dataclass(frozen=True)
class Lane:
    """One row of the timeline."""

    rank: int
    name: str
    runs: list[Run]
    top: int
    """Vertical position, in pixels from the top."""


def phase_of(name: str, kind: Kind) -> str:
    """Return the one of PHASES that an op type belongs to, by its kind and name."""
    if kind != Kind.COMPUTE:
        return _OF_KIND.get(kind, "communication")
    words = name.lower()
    for phase, signs in (
        ("recompute", ("recomp",)),
        ("backward", ("backward", "bwd", "gradient")),
        ("optimizer", ("optimizer", "adam", "sgd", "update")),
    ):
        if any(sign in words for sign in signs):
            return phase
    return "forward"


def cause_of(name: str, kind: Kind) -> str:
    """Like `phase_of`, for a traced op type, whose name does not indicate its phase."""
    return {Kind.COMPUTE: "compute", Kind.DELAY: "host"}.get(kind) or phase_of(name, kind)


def is_above(phase: str) -> bool:
    """Whether a rank's upper lane shows this phase."""
    return phase in _COMPUTES


def lanes(
    played: Replayed, ranks: np.ndarray, columns: int = COLUMNS, phase_of: Callable[[str, Kind], str] = phase_of
) -> list[Lane]:
    """Up to two lanes for each of `ranks`; the second is left out if it is empty."""
    graph = played.graph
    edges_s = np.linspace(0.0, played.makespan_s, columns + 1)
    phase = np.array(
        [
            PHASES.index(phase_of(name, Kind(kind)))
            for name, kind in zip(graph.op_types.name, graph.op_types.kind, strict=True)
        ]
    )
    rows: list[Lane] = []
    op_rank = graph.op_rank()
    for rank in np.asarray(ranks).tolist():
        ops = np.flatnonzero(op_rank == rank)
        op_phase = phase[graph.ops.op_type[ops]] if len(graph.op_types) else np.empty(0, int)
        start_s, end_s = played.start_s[ops], played.end_s[ops]
        transfer = graph.ops.transfer[ops]
        moves_s = start_s.copy()
        meets = transfer != NO_TRANSFER
        moves_s[meets] = np.maximum(start_s[meets], played.transfer_start_s[transfer[meets]])
        filled = np.zeros((len(PHASES), columns))
        for number in range(len(PHASES)):
            chosen = op_phase == number
            filled[number] = _filled(graph.ops.stream[ops][chosen], moves_s[chosen], end_s[chosen], edges_s)
        # A receive is posted long before its send; its stream's waiting is not meaningful.
        chosen = graph.op_types.kind[graph.ops.op_type[ops]] == Kind.COLLECTIVE
        filled[PHASES.index("waiting")] = _filled(
            graph.ops.stream[ops][chosen], start_s[chosen], moves_s[chosen], edges_s
        )
        computes = np.isin(PHASES, _COMPUTES)
        host = PHASES.index("host")  # Host work that overlaps a kernel does not count as busy time of the rank
        busy = filled[computes].sum(axis=0) - filled[host]
        filled[host] = np.minimum(filled[host], np.maximum(1.0 - busy, 0.0))
        name = f"rank {graph.ranks.device[rank]}"
        if graph.stages() > 1:
            name = f"stage {graph.ranks.stage[rank]}, {name}"
        top = rows[-1].top + 20 if rows else 0
        rows.append(Lane(rank, name, _runs(np.where(computes[:, None], filled, 0.0)), top))
        others = np.where(computes[:, None], 0.0, filled)
        if others.any():
            rows.append(Lane(rank, "", _runs(others), top + 15))
    return rows


def _filled(stream: np.ndarray, from_s: np.ndarray, until_s: np.ndarray, edges_s: np.ndarray) -> np.ndarray:
    """Share of each column that is covered by intervals, float64 (columns,). Intervals of one stream don't overlap;
    streams add up."""
    covered_s = np.zeros(len(edges_s) - 1)
    for number in np.unique(stream):
        mine = stream == number
        order = np.argsort(from_s[mine], kind="stable")
        begin_s, end_s = from_s[mine][order], until_s[mine][order]
        # Seconds covered up to a moment: increases during each interval, constant between them.
        risen_s = np.cumsum(end_s - begin_s)
        moments = np.stack([begin_s, end_s], axis=1).ravel()
        levels = np.stack([risen_s - (end_s - begin_s), risen_s], axis=1).ravel()
        covered_s += np.diff(np.interp(edges_s, moments, levels))
    width_s = edges_s[1] - edges_s[0]
    return np.minimum(covered_s / width_s, 1.0) if width_s > 0 else covered_s


def _runs(filled: np.ndarray) -> list[Run]:
    """Merge adjacent columns of equal phase and shade into runs."""
    top = np.argmax(filled, axis=0)
    shade = np.ceil(np.minimum(filled.sum(axis=0), 1.0) * SHADES - 1e-9).astype(int)
    look = np.where(shade > 0, top * (SHADES + 1) + shade, -1)
    firsts = np.flatnonzero(np.diff(look, prepend=-2))
    lasts = np.append(firsts[1:], len(look))
    return [
        Run(int(first), int(last - first), PHASES[look[first] // (SHADES + 1)], int(look[first] % (SHADES + 1)))
        for first, last in zip(firsts, lasts, strict=True)
        if look[first] >= 0
    ]
