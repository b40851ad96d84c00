"""Measured all-reduces from nccl-tests tables: a curve is fitted to every other size of a table and predicts the sizes
between, or a cluster's closed form predicts all of them. `between_nodes` are published tables of several nodes."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from emulator.cluster import cluster as clusters
from emulator.cluster import collectives, tables
from emulator.cluster.cluster import Cluster
from emulator.cluster.topology import GroupLayout
from emulator.lab.validation.rows import Row, published


def held_out(table: tables.Table) -> list[Row]:
    """Every second size, predicted by a curve fitted to the others."""
    curve = tables.fit(table.size_bytes[::2], table.seconds[::2])
    size, measured = table.size_bytes[1::2], table.seconds[1::2]
    return _rows(table, size, measured, curve.seconds(size))


def by_formula(table: tables.Table, cluster: Cluster) -> list[Row]:
    """All sizes, predicted by the closed form of a cluster's file, without a fit to this table."""
    where = table.layout(cluster.accelerators_per_node)
    predicted = [collectives.cost(cluster, "all_reduce", size, where).seconds for size in table.size_bytes]
    return _rows(table, table.size_bytes, table.seconds, np.array(predicted))


def between_nodes(use: str) -> list[Row]:
    """Published all-reduces on several nodes, predicted by closed forms. `use`: "chosen", tables with a look at which
    the form was chosen, or "held out"."""
    rows = []
    for row in published("nccl_nodes.csv"):
        if row["use"] != use:
            continue
        cluster = clusters.load(row["cluster"])
        between = dataclasses.replace(
            cluster.between, ports_per_node=int(row["ports"]), port_bps=1e9 * float(row["gbps"])
        )
        nodes, per_node, size = int(row["nodes"]), int(row["per_node"]), int(row["bytes"])
        where = GroupLayout(nodes * per_node, nodes, per_node, nodes)
        costed = collectives.cost(dataclasses.replace(cluster, between=between), "all_reduce", size, where)
        rows.append(Row(f"{row['table']} {size}", float(row["us"]) * 1e-6, costed.seconds, "s"))
    return rows


def _rows(table: tables.Table, size: np.ndarray, measured: np.ndarray, predicted: np.ndarray) -> list[Row]:
    return [
        Row(f"{table.name} {int(s)}", float(m), float(p), "s")
        for s, m, p in zip(size, measured, predicted, strict=True)
    ]


def size_of(row: Row) -> int:
    """Size in bytes."""
    return int(row.name.rsplit(" ", 1)[1])


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows below 16 MB, and the others."""
    small = [row for row in rows if size_of(row) < tables.SMALL_BYTES]
    return small, [row for row in rows if size_of(row) >= tables.SMALL_BYTES]
