"""`switchml trace emulate`: predicted time of a Chakra or SimAI workload on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emulator.cluster.algorithms import ALGORITHMS_HELP, HIERARCHY_HELP
from emulator.surface.cli.options import ANY_PATH, json_option, output, time_limit_option, timeline_option
from switchml import tables
from switchml.cli.options import Count
from switchml.terminal import progress, say

if TYPE_CHECKING:
    from emulator.jobs.replay.parts import Parts


@click.command()
@click.argument("path", type=ANY_PATH)
@click.option("--cluster", "cluster_name", required=True, help="Built-in cluster or .toml file.")
@click.option("--precision", default="fp16", show_default=True, help="Precision of operators costed by FLOPs.")
@click.option("--allreduce", default="auto", show_default=True, help=ALGORITHMS_HELP)
@click.option("--hierarchy", default="auto", show_default=True, help=HIERARCHY_HELP)
@click.option("--gpus", type=Count(1), help="Accelerators of a SimAI workload that has no all_gpus.")
@timeline_option
@time_limit_option
@json_option
def emulate(
    path: Path,
    cluster_name: str,
    gpus: int | None,
    timeline: Path | None,
    time_budget_s: float,
    as_json: bool,
    **options: str,
) -> None:
    """Emulate a workload on machines that you don't have: Chakra execution traces (a file, or a directory with one per
    rank) or SimAI's workload text. Compute without a duration is costed by FLOPs and bytes, communication always by its
    bytes on the cluster's links."""
    from emulator.cluster import cluster as clusters
    from emulator.cluster.kernels import ELEMENT_BYTES
    from emulator.datafile import unknown
    from emulator.jobs import imported
    from emulator.jobs.replay.engine import replay
    from emulator.jobs.replay.parts import parts
    from emulator.jobs.workload.checks import check
    from emulator.traces.readers.read import read_workload
    from switchml.errors import ConfigError

    if options["precision"] not in ELEMENT_BYTES:
        raise ConfigError(unknown("precision", options["precision"], ELEMENT_BYTES))
    cluster = clusters.load(cluster_name)
    workload = read_workload(path, gpus)
    graph = workload.graph
    check(graph)
    costs = imported.costs(graph, cluster, workload.strides, **options)
    with progress("replaying") as task:
        played = replay(graph, costs, time_budget_s=time_budget_s, progress=task.ops)
    shares = parts(played)
    if timeline is not None:
        from emulator.jobs.replay.perfetto import write_timeline

        write_timeline(played, timeline)
    answer = {
        "iteration_s": played.makespan_s,
        "ranks": workload.world_size,
        "ops": len(graph.ops),
        "parts_s": shares.mean(),
        "hidden_communication_s": shares.hidden_communication_s(),
        "cluster": cluster_name,
        "assumptions": workload.assumptions,
    }

    output(as_json, lambda: answer, lambda: show(answer, shares))


def show(answer: dict[str, Any], shares: Parts) -> None:
    """Print `answer`, the object of --json."""
    from emulator.jobs.replay.report import parts_table
    from switchml.units import time_text

    size = f"{answer['ranks']:,} ranks, {answer['ops']:,} ops on {answer['cluster']}"
    say(f"{size}: {time_text(answer['iteration_s'])}\n")
    tables.show(parts_table(shares, answer["iteration_s"]))
    say()
    for assumption in answer["assumptions"]:
        say(f"- {assumption}")
