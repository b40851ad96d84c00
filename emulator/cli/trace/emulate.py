"""`switchml trace emulate`: what a workload of Chakra's or SimAI's would take on a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import click

from emulator.cluster.algorithms import ALGORITHMS_HELP, HIERARCHY_HELP


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--cluster", "cluster_name", required=True, help="Built-in cluster or .toml file.")
@click.option("--precision", default="fp16", show_default=True, help="Of what is costed by its FLOPs.")
@click.option("--allreduce", default="auto", show_default=True, help=ALGORITHMS_HELP)
@click.option("--hierarchy", default="auto", show_default=True, help=HIERARCHY_HELP)
@click.option("--timeline", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write a timeline for Perfetto (.json or .json.gz).")  # fmt: skip
@click.option("--time-budget-s", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
              help="Time limit of the replay.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def emulate(
    path: Path,
    cluster_name: str,
    precision: str,
    allreduce: str,
    hierarchy: str,
    timeline: Path | None,
    time_budget_s: float,
    as_json: bool,
) -> None:
    """Play what there is to do on machines that one does not have: Chakra execution traces (a file, or a directory
    with one a rank) or SimAI's workload text. Compute without a duration is costed by FLOPs and bytes, communication
    always by its bytes on the cluster's links."""
    from emulator.cluster import cluster as clusters
    from emulator.cluster.kernels import ELEMENT_BYTES
    from emulator.datafile import unknown
    from emulator.jobs import imported
    from emulator.replay.engine import replay
    from emulator.replay.parts import parts
    from emulator.traces.readers.read import read_workload
    from emulator.workload.checks import check
    from switchml.errors import ConfigError

    if precision not in ELEMENT_BYTES:
        raise ConfigError(unknown("precision", precision, ELEMENT_BYTES))
    cluster = clusters.load(cluster_name)
    workload = read_workload(path)
    graph = workload.graph
    check(graph)
    options = {"precision": precision, "allreduce": allreduce, "hierarchy": hierarchy}
    played = replay(graph, imported.costs(graph, cluster, workload.strides, **options), time_budget_s=time_budget_s)
    shares = parts(played)
    if timeline is not None:
        from emulator.report.perfetto import write_timeline

        write_timeline(played, timeline)
    if as_json:
        answer = {
            "iteration_s": played.makespan_s,
            "ranks": workload.world_size,
            "ops": len(graph.ops),
            "parts_s": shares.mean(),
            "hidden_communication_s": shares.hidden_communication_s(),
            "cluster": cluster_name,
            "assumptions": workload.assumptions,
        }
        click.echo(json.dumps(answer))
        return
    from rich.console import Console

    from emulator.report.tables import parts_table, time_text

    console = Console()
    console.print(
        f"{workload.world_size:,} ranks, {len(graph.ops):,} ops on {cluster_name}: {time_text(played.makespan_s)}\n"
    )
    console.print(parts_table(shares, played.makespan_s))
    for assumption in workload.assumptions:
        console.print(f"- {assumption}", highlight=False)
