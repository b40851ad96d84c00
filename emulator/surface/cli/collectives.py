"""`switchml collectives`: when aggregation in the network pays, over clusters, numbers of ranks and sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from emulator.lab.bench.sizes import DTYPES, text_of
from emulator.surface.cli.options import TENSOR_SIZES, WIRE, Many, json_option, output, plot_option
from switchml.cli.options import RATE, Count, option

if TYPE_CHECKING:
    from emulator.cluster.breakeven import Comparison
    from emulator.cluster.cluster import Cluster
    from switchml.tables import Table


@click.command()
@option(
    "--cluster",
    "clusters",
    type=Many(click.STRING, "cluster", "p100-100g,h100-dgx"),
    default="h100-dgx",
    help="Built-in clusters or .toml files.",
)
@option("--gpus", type=Many(Count(2, 10**6), "N", "8,64,512"), default="8,64,512", help="Ranks, one a GPU.")
@option(
    "--sizes", type=TENSOR_SIZES, default="64K:1G:16", help="Bytes of the tensor: from, to, factor; or a list (25M,1G)."
)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", help="Dtype of the elements.")
@click.option(
    "--wire", type=WIRE, default="int32", help="Lane type of packets to the switch; a lane holds one element."
)
@option("--rate", "port_bps", type=RATE, show_default="the cluster's", help="Rate of each port of a node.")
@option(
    "--oversubscription",
    type=click.FloatRange(1),
    show_default="the cluster's",
    help="Oversubscription of the leaves: ports down to ports up.",
)
@option("--slots", type=Count(1), show_default="the cluster's", help="Slots of the switch.")
@option("--loss", type=click.FloatRange(0, 0.5), default=0.0, help="Share of packets lost on each link to the switch.")
@plot_option
@json_option
def collectives(
    clusters: tuple[str, ...],
    gpus: tuple[int, ...],
    sizes: list[int],
    dtype: str,
    wire: str,
    port_bps: float | None,
    oversubscription: float | None,
    slots: int | None,
    loss: float,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Predict all-reduces by switches, and by the best algorithm of hosts alone: when does aggregation in the network
    pay?

    Hosts: rings, trees, halving-doubling, a ring in each node before rings between nodes, NVLink SHARP where the nodes
    have it. Switches: each rank sends, or each node after its ranks reduced among themselves, whichever is faster.
    Nothing is run; docs/when.md has the map.
    """
    from emulator.cluster import breakeven
    from emulator.cluster import cluster as library
    from emulator.cluster.innetwork import Streaming
    from switchml.protocol.sizes import LANE_BYTES
    from switchml.tables import show

    known = [breakeven.changed(library.load(name), port_bps, oversubscription, slots) for name in clusters]
    streaming = Streaming(loss=loss, wire_bytes=float(LANE_BYTES[wire]))
    rows = breakeven.table(known, gpus, sizes, streaming, dtype)
    if plot_file is not None:
        _draw(rows, known, plot_file)
    output(
        as_json,
        lambda: {
            "dtype": dtype,
            "wire": wire,
            "rows": [{**dataclasses.asdict(row), "best": row.best, "speedup": row.speedup} for row in rows],
        },
        lambda: show(_table(rows, known, dtype, wire)),
    )


def _table(rows: Sequence[Comparison], clusters: Sequence[Cluster], dtype: str, wire: str) -> Table:
    from switchml.tables import Table, number, text

    by_hosts = list(dict.fromkeys(name for row in rows for name in row.by_hosts_s))
    columns = [
        number("GPUs"),
        number("size", "B"),
        number("switches", "µs"),
        text("hierarchy", drop=2),
        *(number(name, "µs", drop=1 if name in ("ring", "tree", "nvls") else 3) for name in by_hosts),
        text("best of hosts"),
        number("speed-up"),
    ]
    table = Table(columns, title=f"All-reduces of {dtype}, {wire} lanes to the switches: predicted times")
    for cluster in clusters:
        table.add(f"{cluster.name}: {cluster.title}")
        for row in rows:
            if row.cluster != cluster.name:
                continue
            table.add(
                f"{row.gpus:,}",
                text_of(row.size_bytes),
                _us(row.by_switches_s),
                row.hierarchy,
                *(_us(row.by_hosts_s[name]) if name in row.by_hosts_s else "–" for name in by_hosts),
                row.best,
                f"{row.speedup:.2f}",
            )
    table.notes = [
        "speed-up: the best time of hosts over that of switches. hierarchy: node: ranks of a node reduce before the "
        "switches do; none: each sends for itself."
    ]
    return table


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"


def _title(cluster: Cluster) -> str:
    between, each = cluster.between, cluster.accelerators_per_node
    rate = f"{between.ports_per_node * between.port_bps / 1e9:,g} Gb/s a node"
    return f"{cluster.name}: {each} GPU{'s' if each > 1 else ''}, {rate}"


def _draw(rows: Sequence[Comparison], clusters: Sequence[Cluster], path: Path) -> None:
    """A panel for each cluster, a line for each number of ranks: speed-up against size."""
    from switchml import plotting
    from switchml.pages.charts import Line
    from switchml.pages.panels import Curves

    panels = []
    for cluster in clusters:
        mine = [row for row in rows if row.cluster == cluster.name]
        sizes = sorted({row.size_bytes for row in mine})
        lines = [
            Line(f"{count:,} GPUs", sizes, [row.speedup for row in mine if row.gpus == count])
            for count in sorted({row.gpus for row in mine})
        ]
        lines.append(Line("as fast as hosts", sizes, [1.0 for _ in sizes], is_dashed=True))
        names = {float(size): text_of(size) for size in sizes}
        panels.append(
            Curves(_title(cluster), "bytes of the tensor", "speed-up", lines, x_log=2, y_log=True, x_names=names)
        )
    plotting.draw(path, "All-reduce by switches: speed-up over the best that hosts do by themselves", panels)
