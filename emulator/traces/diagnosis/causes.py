"""Attributes each rank's time (`replay.parts`), and its waiting to the rank waited for: the last to arrive, or to
end."""

from dataclasses import dataclass

import numpy as np

from emulator.jobs.replay.engine import Replayed
from emulator.jobs.replay.parts import IDLE, OFFLOAD, PART_OF_KIND, PART_OF_WAIT, PARTS, WAITING, Parts, parts
from emulator.jobs.workload.graph import NO_TRANSFER, Kind

_ACTIVE = np.array([PART_OF_KIND[kind] for kind in Kind])
_WAITS_AS = np.array([PART_OF_WAIT.get(kind, IDLE) for kind in Kind])
"""By `Kind`: part of an active op, and of one that waits for its transfer."""


@dataclass(frozen=True)
class Causes:
    """Attribution of time; all in seconds."""

    parts: Parts
    waiting_s: np.ndarray
    """float64 (ranks, ranks): time that one rank only waited for another. A row sums to waiting for peers and bubble.
    """

    def by_rank(self) -> list[dict[str, float]]:
        """Return part → seconds for each rank, without parts that are 0 on all ranks."""
        used = np.any(self.parts.by_rank, axis=0)
        return [
            {name: float(s) for name, s, is_used in zip(PARTS, row, used, strict=True) if is_used}
            for row in self.parts.by_rank
        ]


def causes(played: Replayed) -> Causes:
    """Attribute the time of every rank."""
    shares = parts(played)
    graph = played.graph
    ranks = len(graph.ranks)
    waiting_s = np.zeros((ranks, ranks))
    op_rank = graph.op_rank()
    last_rank = int(op_rank[np.argmax(played.end_s)]) if len(graph.ops) else 0
    order = np.argsort(op_rank, kind="stable")
    first = np.searchsorted(op_rank[order], np.arange(ranks + 1))
    for rank in range(ranks):
        if shares.by_rank[rank, WAITING] + shares.by_rank[rank, IDLE] > 0:
            _blame(played, op_rank, order[first[rank] : first[rank + 1]], rank, last_rank, waiting_s[rank])
    return Causes(shares, waiting_s)


def _blame(
    played: Replayed, op_rank: np.ndarray, ops: np.ndarray, rank: int, last_rank: int, waiting_s: np.ndarray
) -> None:
    """Add the time that `rank`, whose ops are `ops`, waited for each rank to `waiting_s` (ranks,)."""
    graph = played.graph
    kind = graph.op_types.kind[graph.ops.op_type[ops]]
    active, waits_as = _ACTIVE[kind], _WAITS_AS[kind]
    transfer = graph.ops.transfer[ops]
    start_s, end_s = played.start_s[ops], played.end_s[ops]
    meets = transfer != NO_TRANSFER
    moves_s, peer = start_s.copy(), np.full(len(ops), rank)
    moves_s[meets] = np.maximum(start_s[meets], played.transfer_start_s[transfer[meets]])
    peer[meets] = op_rank[played.transfer_last[transfer[meets]]]
    edges_s = np.unique(np.concatenate([[0.0, played.makespan_s], start_s, moves_s, end_s]))
    at_start, at_move, at_end = (np.searchsorted(edges_s, moments) for moments in (start_s, moves_s, end_s))

    def covered(from_edge: np.ndarray, until_edge: np.ndarray) -> np.ndarray:
        """Return which intervals are covered, bool (intervals,)."""
        steps = np.bincount(from_edge, minlength=len(edges_s)) - np.bincount(until_edge, minlength=len(edges_s))
        return np.cumsum(steps)[:-1] > 0

    works = active <= OFFLOAD
    is_busy = covered(at_move[works], at_end[works])
    waits_for_peers = waits_as == WAITING
    is_held = covered(at_start[waits_for_peers], at_move[waits_for_peers]) & ~is_busy
    charged_else = waits_as < IDLE
    is_idle = ~covered(at_move, at_end) & ~covered(at_start[charged_else], at_move[charged_else])
    blamed = np.full(len(edges_s) - 1, -1)
    for op in np.flatnonzero(moves_s > start_s)[::-1]:  # of several at once, the first in the graph
        blamed[at_start[op] : at_move[op]] = peer[op]
    # Waiting without holding a stream: attributed to the last to arrive at the next transfer that begins.
    unknown = np.flatnonzero(is_idle & (blamed < 0))
    coming = np.flatnonzero(meets)[np.argsort(moves_s[meets], kind="stable")]
    following = np.searchsorted(moves_s[coming], edges_s[unknown + 1])
    some = following < len(coming)
    blamed[unknown[some]] = peer[coming[following[some]]]
    blamed[unknown[~some]] = last_rank
    waited = is_held | is_idle
    waiting_s += np.bincount(blamed[waited], np.diff(edges_s)[waited], minlength=len(waiting_s))
