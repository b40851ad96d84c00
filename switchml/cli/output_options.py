"""Types of options that name a file or folder to write: refused before the work starts if it can't be written, and
reported as "wrote FILE" on stderr afterwards."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from switchml import output_files
from switchml.errors import ConfigError


class OutputFile(click.Path):
    """A file of one of `kinds` (a table of `switchml.output_files`); None: any file name."""

    name = "file"

    def __init__(self, kinds: Mapping[str, str] | None = None) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.kinds = {"": ""} if kinds is None else kinds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            output_files.check(path, self.kinds)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        report_when_written(ctx, path)
        return path


class OutputFolder(click.Path):
    """A folder, created if missing."""

    name = "directory"

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        report_when_written(ctx, path)
        return path


def report_when_written(ctx: click.Context | None, path: Path) -> None:
    """Report at the end of the command that `path` was written if it, or its files, changed since now."""
    if ctx is not None and not ctx.resilient_parsing:
        before = _state(path)
        ctx.call_on_close(lambda: _say(path, before))


def _say(path: Path, before: Any) -> None:
    after = _state(path)
    if after and after != before:
        from switchml.terminal import say

        say(f"wrote {path}", err=True)


def _state(path: Path) -> Any:
    """Return a state that changes when something is written; None for pipes and devices."""
    try:
        if path.is_dir():
            return sorted((each.name, _state(each)) for each in path.iterdir() if each.is_file())
        about = path.stat()
    except OSError:
        return None
    return (about.st_ino, about.st_mtime_ns, about.st_size) if path.is_file() else None
