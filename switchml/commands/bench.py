"""`switchml bench`: how fast all-reduces are here, beside Gloo's. Each measurement is a subcommand of its own."""

from __future__ import annotations

import click

from switchml.__main__ import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "allreduce": ("switchml.commands.bench_allreduce:allreduce", "Several ranks on this machine's cores."),
    "network": ("switchml.commands.bench_network:network", "Hosts on slow links, in network namespaces (root)."),
    "codecs": ("switchml.commands.bench_codecs:codecs", "Gradient codecs, beside SZ3, ZFP and torch's."),
    "switch": ("switchml.commands.bench_switch:switch", "The P4 switch: packets a second on one core."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Measure all-reduces, beside Gloo's in the same run, and the P4 switch."""
