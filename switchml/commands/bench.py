"""`switchml bench`: how fast all-reduces are here, beside Gloo's. Each measurement is a subcommand of its own."""

from __future__ import annotations

import click

from switchml.__main__ import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "allreduce": ("switchml.commands.bench_allreduce:allreduce", "Several ranks on this machine's cores."),
    "aggregators": (
        "switchml.commands.bench_aggregators:aggregators",
        "P4 switch, simple_switch, software and Gloo side by side.",
    ),
    "network": ("switchml.commands.bench_network:network", "Hosts on slow links, in network namespaces (root)."),
    "codecs": ("switchml.commands.bench_codecs:codecs", "Gradient codecs, beside SZ3, ZFP and torch's."),
    "switch": ("switchml.commands.bench_switch:switch", "The P4 switch: packets a second on one core."),
    "optimizer": ("switchml.commands.bench_optimizer:optimizer", "Searches for settings: settings tried a minute."),
    "replay": ("switchml.commands.bench_replay:replay", "Whole training jobs: replayed ops a second on one core."),
    "trace": ("switchml.commands.bench_trace:trace", "Reading profiler traces: megabytes a second, peak memory."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Measure all-reduces, beside Gloo's in the same run, and the P4 switch."""
