"""`switchml trace`: what a real job did. Each thing that one can do with a trace is a subcommand of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from switchml.cli.main import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "capture": ("host_agent.cli.trace_capture:capture", "Run a script and profile every rank of it."),
    "info": ("emulator.cli.trace.info:info", "Show what is in a trace: ranks, lanes, collectives, iterations."),
    "emulate": ("emulator.cli.trace.emulate:emulate", "Play a workload of Chakra's or SimAI's on a cluster."),
    "convert": ("emulator.cli.trace.convert:convert", "Write a trace as Chakra, Chrome JSON or our own format."),
    "replay": ("emulator.cli.trace.replay:replay", "Predicted against traced, and with something changed."),
    "diagnose": ("emulator.cli.trace.diagnose:diagnose", "Say why a job is slow and what to change."),
    "diff": ("emulator.cli.trace.diff:diff", "Compare two runs: what takes longer, what is new."),
    "optimize": ("emulator.cli.trace.optimize:optimize", "Find settings with which the job takes less time."),
}


_LONG_BYTES = 8 << 20


@click.group(cls=LazyGroup, table=COMMANDS)
def trace() -> None:
    """Capture, read, replay, diagnose and optimize a real job."""
    if sys.stderr.isatty():
        from emulator.traces.readers.progress import WATCHER

        WATCHER.set(_say)


def _say(path: Path, read_bytes: int, all_bytes: int) -> None:
    """On one line that is gone when the file is read; short files have none."""
    if all_bytes > _LONG_BYTES:
        told = f"\r{path.name}: {read_bytes / all_bytes:.0%}\033[K" if read_bytes < all_bytes else "\r\033[K"
        click.echo(told, nl=False, err=True)
