"""The command line: `switchml SUBCOMMAND …`. Each subcommand lives in its own module, imported only when it is called,
so that `switchml --help` answers at once and a missing optional package disturbs only the subcommand that needs it.

Exit codes: 0 done, 1 the subcommand failed (one line on stderr says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from switchml import __version__
from switchml.errors import SwitchMLError

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("emulator.cli.train:train", "Train a model whose gradients are summed in-network."),
    "aggregate": ("switchml.cli.aggregate:aggregate", "Run the software aggregator."),
    "control": ("switchml.cli.control:control", "Run the control plane of a P4 switch."),
    "status": ("switchml.cli.status:status", "Show a running aggregator's jobs, pools and counters."),
    "bench": ("emulator.cli.bench.bench:bench", "Measure all-reduces beside Gloo's."),
    "simulate": ("emulator.cli.simulate:simulate", "Run jobs through faults in virtual time; check every sum."),
    "trace": ("emulator.cli.trace.trace:trace", "Capture, read, replay, diagnose and optimize a real job."),
    "validate": ("emulator.cli.validate.validate:validate", "Compare the emulator's predictions with measurements."),
    "switch": ("emulator.cli.switch:switch", "Run a P4 program as simple_switch does."),
    "mininet": ("emulator.cli.mininet:mininet", "Run experiments on networks that Mininet builds."),
    "stf": ("emulator.cli.stf:stf", "Run a P4 test (STF) on the P4 switch, in process."),
    "emulate": ("emulator.cli.emulate:emulate", "Emulate a training job on machines one does not have."),
    "peers": ("emulator.cli.peers:peers", "Run a script as one rank of an emulated cluster."),
    "doctor": ("host_agent.cli.doctor:doctor", "Check what this machine can do and what it lacks."),
}
"""Subcommand name → ("module:attribute" of its click command, the line that `switchml --help` shows for it)."""

EXTRA_OF_MODULE: dict[str, str] = {
    "torch": "train",
    "sklearn": "train",
    "jinja2": "report",
    "pyarrow": "parquet",
    "distributed": "dask",
    "optuna": "optimize",
    "scipy": "trace",
    "msgspec": "trace",
}
"""Optional top-level module → the extra that installs it."""


class LazyGroup(click.Group):
    """A click group over a table like `COMMANDS`, importing a subcommand's module only to run it or show its help."""

    def __init__(self, *args: Any, table: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module_name, attribute = self.table[cmd_name][0].split(":")
        return getattr(importlib.import_module(module_name), attribute)

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
            if missing not in EXTRA_OF_MODULE:
                raise
            extra = EXTRA_OF_MODULE[missing]
            _fail(ctx, f"this needs {missing} ({error}); install it with: pip install 'switchml[{extra}]'")
        except KeyboardInterrupt:
            ctx.exit(130)


def _fail(ctx: click.Context, message: str) -> NoReturn:
    click.echo("switchml: error: " + " ".join(message.split()), err=True)
    ctx.exit(1)


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="switchml")
def cli() -> None:
    """In-network aggregation for machine learning.

    `switchml SUBCOMMAND --help` explains a subcommand.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `args` (default: the process's own) and exit."""
    cli.main(args=args, prog_name="switchml")
    raise SystemExit(0)  # not reached: click exits by itself


if __name__ == "__main__":
    main()
