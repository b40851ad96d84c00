"""Costs of a graph on a cluster, as plain arrays: the replay engine's only view of the hardware. Ops without a transfer
have a duration by op type. A transfer takes a fixed time and then moves bytes over the links of its route, which it
shares with other transfers; without a route, its bytes have their own rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from emulator.cluster.cost import Cost
from emulator.jobs.workload.graph import NO_TRANSFER, Graph
from switchml.errors import GraphError


@dataclass(frozen=True)
class Links:
    """Links and routes over them. Route r loads the links `link[start[r]:start[r + 1]]`; the i-th of these entries
    carries `share[i]` bytes per byte of the transfer."""

    link_name: list[str] = field(default_factory=list)
    link_bytes_per_s: np.ndarray = field(default_factory=lambda: np.empty(0))
    """float64 (links,)."""
    start: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    """int64 (routes + 1,)."""
    link: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """int32."""
    share: np.ndarray = field(default_factory=lambda: np.empty(0))
    """float64."""


NO_ROUTE = -1
TRANSFER_COLUMNS = ("transfer_fixed_s", "transfer_bytes", "transfer_bytes_per_s", "transfer_route")
"""The fields of `Costs` with one entry per transfer."""


@dataclass(frozen=True)
class Costs:
    """Costs of one graph."""

    op_type_s: np.ndarray
    """float64 (op types,): duration of an op without a transfer, in seconds; NaN where no such op exists."""
    transfer_fixed_s: np.ndarray
    """float64 (transfers,): fixed part of the duration: latencies, set-up."""
    transfer_bytes: np.ndarray
    """float64 (transfers,): bytes moved."""
    transfer_bytes_per_s: np.ndarray
    """float64 (transfers,): rate limit of the transfer itself; inf where only its route limits it."""
    transfer_route: np.ndarray
    """int32 (transfers,), NO_ROUTE where it shares no link."""
    links: Links = field(default_factory=Links)

    @classmethod
    def of(cls, graph: Graph, op_type_s: np.ndarray, transfer_s: np.ndarray | None = None) -> Costs:
        """Return costs without links: transfers take `transfer_s` (default: the `op_type_s` of their op type),
        regardless of others."""
        op_type_s = np.asarray(op_type_s, np.float64)
        if transfer_s is None:
            transfer_s = op_type_s[graph.transfers.op_type]
        fixed_s = np.asarray(transfer_s, np.float64)
        return cls(op_type_s, fixed_s, np.zeros(len(fixed_s)), np.full(len(fixed_s), np.inf), no_routes(len(fixed_s)))

    @classmethod
    def of_kinds(cls, op_type_s: np.ndarray, kinds: Sequence[Cost], kind: np.ndarray) -> Costs:
        """Return costs without links: transfer i, of `len(kind)`, costs `kinds[kind[i]]`."""
        table = np.array([(one.fixed_s, one.bytes, one.bytes_per_s) for one in kinds], np.float64).reshape(-1, 3)
        fixed_s, moved, rate = (column[kind] for column in table.T)
        return cls(op_type_s, fixed_s, moved, rate, no_routes(len(kind)))

    def check(self, graph: Graph) -> None:
        """Raise GraphError unless every op and transfer of `graph` has a cost."""
        if len(self.op_type_s) != len(graph.op_types):
            raise GraphError(f"costs are for {len(self.op_type_s)} op types, the graph has {len(graph.op_types)}")
        is_costed = (self.op_type_s >= 0) & np.isfinite(self.op_type_s)
        lacking = np.flatnonzero(~is_costed[graph.ops.op_type] & (graph.ops.transfer == NO_TRANSFER))
        for op_type in np.sort(graph.ops.op_type[lacking])[:1]:
            raise GraphError(f"op type {graph.op_types.name[op_type]!r} has no cost ({self.op_type_s[op_type]} s)")
        for name in TRANSFER_COLUMNS:
            if len(getattr(self, name)) != len(graph.transfers):
                raise GraphError(f"{name} has {len(getattr(self, name))} entries for {len(graph.transfers)} transfers")
        is_costed = (self.transfer_fixed_s >= 0) & (self.transfer_bytes >= 0) & (self.transfer_bytes_per_s > 0)
        is_costed &= np.isfinite(self.transfer_fixed_s) & np.isfinite(self.transfer_bytes)
        is_costed &= (self.transfer_route >= NO_ROUTE) & (self.transfer_route < len(self.links.start) - 1)
        for transfer in np.flatnonzero(~is_costed)[:1]:
            name = graph.op_types.name[graph.transfers.op_type[transfer]]
            raise GraphError(f"{name!r} (transfer {transfer}) has no cost: fixed {self.transfer_fixed_s[transfer]} s")
        if np.any(~(self.links.link_bytes_per_s > 0)) or np.any(~(self.links.share >= 0)):
            raise GraphError("a link has no rate, or a route has a negative load")


def no_routes(count: int) -> np.ndarray:
    """Return NO_ROUTE for `count` transfers, as a read-only array without storage per entry."""
    return np.broadcast_to(np.int32(NO_ROUTE), count)
