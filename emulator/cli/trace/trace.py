"""`switchml trace`: what a real job did. Each thing that one can do with a trace is a subcommand of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from switchml.cli.main import LazyGroup
from switchml.text import plain

_LONG_BYTES = 8 << 20


@click.group(cls=LazyGroup, within="trace")
def trace() -> None:
    """Capture, read, replay, diagnose and optimize a real job."""
    if sys.stderr.isatty():
        from emulator.traces.readers.progress import WATCHER

        WATCHER.set(_say)


def _say(path: Path, read_bytes: int, all_bytes: int) -> None:
    """On one line, cleared when the file is read; not for short files."""
    if all_bytes > _LONG_BYTES:
        line = f"\r{plain(path.name)}: {read_bytes / all_bytes:.0%}\033[K" if read_bytes < all_bytes else "\r\033[K"
        click.echo(line, nl=False, err=True)
