"""Common parts of subcommands: `--verbose`, `--quiet`, two examples at the end of the help, completion of names. Each
package has its examples in `cli/examples.toml`, by subcommand, and its completions in `cli/__init__.py`.
"""

import contextlib
import functools
import importlib
import io
import logging
import sys
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

import click
from click.shell_completion import CompletionItem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOGGERS = ("switchml", "host_agent", "emulator")
STDERR = "switchml.stderr"
"""Key in `ctx.meta` of the original stderr while `--quiet` has replaced it: errors are still written there."""


def equipped(command: click.Command, name: str) -> click.Command:
    """Add these parts to the subcommand named "group subcommand" and return it. Idempotent."""
    if isinstance(command, click.Group) or any(parameter.name == "is_quiet" for parameter in command.params):
        return command
    taken = {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)}
    for texts, function, text in (
        (("-v", "--verbose"), _be_verbose, "Log to stderr what happens inside."),
        (("-q", "--quiet"), _be_quiet, "No progress and no notes: only results and errors."),
    ):
        if texts[1] not in taken:
            names = [*(each for each in texts if each not in taken), f"is_{texts[1][2:]}"]
            command.params.append(
                click.Option(names, is_flag=True, expose_value=False, is_eager=True, callback=function, help=text)
            )
    if name in examples():
        lines = "\n".join(f"  {line}" for line in examples()[name])
        command.epilog = f"\b\nExamples:\n{lines}"
    for parameter in command.params:
        for text in set(parameter.opts) & completions().keys():
            parameter.shell_complete = functools.partial(_complete, completions()[text])  # type: ignore[method-assign]  # replaced
    return command


@functools.cache
def examples() -> dict[str, list[str]]:
    """Return subcommand → two examples, from all packages."""
    found: dict[str, list[str]] = {}
    for entry in entry_points(group="switchml.commands"):
        file = files(entry.module).joinpath("examples.toml")
        if file.is_file():
            found |= {
                name: table["examples"] for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items()
            }
    return found


@functools.cache
def completions() -> dict[str, str]:
    """Return option → "module:attribute" of its names, or of a function that returns them, from all packages."""
    found: dict[str, str] = {}
    for entry in entry_points(group="switchml.commands"):
        found |= getattr(importlib.import_module(entry.module), "COMPLETIONS", {})
    return found


def _complete(where: str, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    module, attribute = where.split(":")
    names = getattr(importlib.import_module(module), attribute)
    return [CompletionItem(name) for name in (names() if callable(names) else names) if name.startswith(incomplete)]


def _be_verbose(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        logging.basicConfig(format="%(name)s: %(message)s")
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.DEBUG)


def _be_quiet(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        root = ctx.find_root()
        root.meta[STDERR] = sys.stderr
        root.with_resource(contextlib.redirect_stderr(io.StringIO()))
