"""`switchml trace`: what a real job did. Each thing that one can do with a trace is a subcommand of its own."""

from __future__ import annotations

import click

from switchml.__main__ import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "capture": ("switchml.commands.trace_capture:capture", "Run a script and profile every rank of it."),
    "info": ("switchml.commands.trace_info:info", "Show what is in a trace: ranks, lanes, collectives, iterations."),
    "emulate": ("switchml.commands.trace_emulate:emulate", "Play a workload of Chakra's or SimAI's on a cluster."),
    "convert": ("switchml.commands.trace_convert:convert", "Write a trace as Chakra, Chrome JSON or our own format."),
    "replay": ("switchml.commands.trace_replay:replay", "Predicted against traced, and with something changed."),
    "diagnose": ("switchml.commands.trace_diagnose:diagnose", "Say why a job is slow and what to change."),
    "diff": ("switchml.commands.trace_diff:diff", "Compare two runs: what takes longer, what is new."),
    "optimize": ("switchml.commands.trace_optimize:optimize", "Find settings with which the job takes less time."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def trace() -> None:
    """Capture, read, replay, diagnose and optimize a real job."""
