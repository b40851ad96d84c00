"""The command line: `switchml SUBCOMMAND …`. Each package of this project, or any other, registers a table of its
subcommands as an entry point of the group `switchml.commands` (pyproject.toml). A subcommand's module is imported only
when it is called, so that `switchml --help` is fast and a missing optional package affects only the subcommands that
need it.

Exit codes: 0 success, 1 the subcommand failed (one line on stderr gives the reason), 2 wrong usage, 130 interrupted,
128 + N ended by signal N.
"""

import difflib
import errno
import functools
import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, NoReturn

import click

from switchml import __version__
from switchml.cli import common, interrupts
from switchml.errors import SwitchMLError
from switchml.text import plain

Commands = Mapping[str, tuple[str, str]]
"""Subcommand, or "group subcommand" → ("module:attribute" of its click command, help line)."""

LACKING: dict[int, str] = {
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.EROFS: "choose a place that can be written",
    errno.EMFILE: "this needs more file descriptors than `ulimit -n` allows",
    errno.ENFILE: "the system has no more file descriptors",
    errno.ENOMEM: "this needs more memory than the machine, or `ulimit -v`, has left",
}
"""Advice for lack of resources, by errno."""


@functools.cache
def commands() -> dict[str, tuple[str, str]]:
    """Return the combined tables of all installed packages, sorted by name."""
    tables: list[Commands] = [entry.load() for entry in entry_points(group="switchml.commands")]
    return dict(sorted(row for table in tables for row in table.items()))


class LazyGroup(click.Group):
    """A click group whose subcommands are the rows of `commands()` under its own name; those of the top level are the
    rows of one word. A subcommand's module is imported to run it or to show its own help."""

    def __init__(self, *args: Any, within: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.within = f"{within} " if within else ""

    @property
    def table(self) -> dict[str, tuple[str, str]]:
        rows = {name.removeprefix(self.within): row for name, row in commands().items() if name.startswith(self.within)}
        return {name: row for name, row in rows.items() if " " not in name}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module_name, attribute = self.table[cmd_name][0].split(":")
        return common.equipped(getattr(importlib.import_module(module_name), attribute), f"{self.within}{cmd_name}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], self.table, 3, 0.6) if args[0] not in self.table else []
        if near and not ctx.resilient_parsing:
            ctx.fail(f"no command {args[0]!r}; did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own version would import every subcommand for its help line.
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in self.table.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SwitchMLError as error:
            _fail(ctx, str(error) or type(error).__name__)
        except ImportError as error:
            missing = (error.name or "").partition(".")[0]
            from switchml.cli.extras import extra_of, offer

            extra = extra_of(missing)
            if extra is None:
                raise
            offer(extra, missing)
            _fail(ctx, f"this needs {missing} ({error}); install it with: pip install 'switchml[{extra}]'")
        except OSError as error:
            if error.errno not in LACKING:
                raise
            where = f"{error.filename}: " if error.filename else ""
            _fail(ctx, f"{where}{error.strerror}: {LACKING[error.errno]}")
        except MemoryError as error:
            _fail(ctx, f"{LACKING[errno.ENOMEM]} {error}")
        except KeyboardInterrupt:
            ctx.exit(130)


def _fail(ctx: click.Context, message: str) -> NoReturn:
    click.echo(plain("switchml: error: " + " ".join(message.split())), ctx.meta.get(common.STDERR), err=True)
    ctx.exit(1)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="switchml")
def cli() -> None:
    """In-network aggregation for machine learning.

    `switchml SUBCOMMAND --help` explains a subcommand; `switchml docs` opens the documentation.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `args` (default: the process's own) and exit."""
    with interrupts.in_order():
        cli.main(args=args, prog_name="switchml")
    raise SystemExit(0)  # not reached: click exits by itself
