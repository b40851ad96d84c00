"""`switchml trace`: the group of subcommands for traces of real jobs."""

import contextlib
import sys
from pathlib import Path

import click

from switchml.cli.main import LazyGroup
from switchml.terminal import Task, progress

_LONG_BYTES = 8 << 20


@click.group(cls=LazyGroup, within="trace")
def trace() -> None:
    """Capture, read, replay, diagnose and optimize a real job."""
    if sys.stderr.isatty():
        from emulator.traces.readers.progress import WATCHER

        reading = _Reading()
        WATCHER.set(reading)
        click.get_current_context().call_on_close(reading.close)


class _Reading:
    """Shows a progress bar while a long file is read."""

    def __init__(self) -> None:
        self._shown = contextlib.ExitStack()
        self._task: Task | None = None

    def __call__(self, path: Path, read_bytes: int, all_bytes: int) -> None:
        if all_bytes <= _LONG_BYTES:
            return
        if self._task is None:
            self._task = self._shown.enter_context(progress(path.name, all_bytes))
        self._task.update(read_bytes, f"{read_bytes / 1e6:,.0f} of {all_bytes / 1e6:,.0f} MB")
        if read_bytes >= all_bytes:
            self.close()

    def close(self) -> None:
        """Remove the progress bar."""
        self._shown.close()
        self._task = None
