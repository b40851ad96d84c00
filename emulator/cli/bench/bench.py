"""`switchml bench`: how fast all-reduces are here, beside Gloo's. Each measurement is a subcommand of its own."""

from __future__ import annotations

import click

from switchml.cli.main import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "allreduce": ("emulator.cli.bench.allreduce:allreduce", "Several ranks on this machine's cores."),
    "aggregators": (
        "emulator.cli.bench.aggregators:aggregators",
        "P4 switch, simple_switch, software and Gloo side by side.",
    ),
    "network": ("emulator.cli.bench.network:network", "Hosts on slow links, in network namespaces (root)."),
    "codecs": ("emulator.cli.bench.codecs:codecs", "Gradient codecs, beside SZ3, ZFP and torch's."),
    "switch": ("emulator.cli.bench.switch:switch", "The P4 switch: packets a second on one core."),
    "optimizer": ("emulator.cli.bench.optimizer:optimizer", "Searches for settings: settings tried a minute."),
    "replay": ("emulator.cli.bench.replay:replay", "Whole training jobs: replayed ops a second on one core."),
    "trace": ("emulator.cli.bench.trace:trace", "Reading profiler traces: megabytes a second, peak memory."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Measure all-reduces, beside Gloo's in the same run, and the P4 switch."""
