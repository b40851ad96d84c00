"""Types and options shared by several commands: sizes, rates, times, lists, pictures, `--json`."""

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from switchml import output_files, units
from switchml.cli.options import RATE, TIME, Count, Quantity, note_bare, option
from switchml.cli.output_options import OutputFile, OutputFolder
from switchml.errors import ConfigError
from switchml.tables import wide_option


class Many(click.ParamType):
    """A list of values of another type, "2,4,8"; converts to a tuple. `expected`: description of the values, if the
    other type's message is not sufficient."""

    def __init__(self, item: click.ParamType, name: str, example: str, expected: str = ""):
        self.item, self.name, self.example, self.expected = item, f"{name}[,{name}…]", example, expected

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.item.convert(part, param, ctx) for part in str(value).split(","))
        except click.BadParameter as error:
            if not self.expected:
                raise
            message = f"{value!r}: expected {self.expected} with commas between, as in {self.example}"
            raise click.BadParameter(message, ctx, param) from error


class Parsed(click.ParamType):
    """Text parsed by a "module:function" that raises ConfigError; the module is imported on first use. `kind`: of the
    unit, if the text is a number with a unit."""

    def __init__(self, name: str, function: str, kind: units.Kind | None = None):
        self.name, self.function, self.kind = name, function, kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self.kind is not None and self.kind.is_bare(value):
            note_bare(value, self.kind, param)
        module, function = self.function.split(":")
        try:
            return getattr(importlib.import_module(module), function)(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class OneSize(Quantity):
    """One of a few sizes; converts to whole bytes."""

    def __init__(self, *sizes_bytes: int) -> None:
        super().__init__(units.SIZE)
        self.sizes_bytes = sizes_bytes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = super().convert(value, param, ctx)
        if size not in self.sizes_bytes:
            self.fail(f"{value}: expected {' or '.join(f'{each}B' for each in self.sizes_bytes)}", param, ctx)
        return int(size)


TENSOR_SIZE = Parsed("size", "emulator.lab.bench.sizes:parse_size", units.SIZE)
TENSOR_SIZES = Parsed("from:to:factor", "emulator.lab.bench.sizes:parse_sweep")
RATES = Many(RATE, "rate", "10mbit,20mbit")
COUNTS = Many(Count(1, 256), "N", "2,4,8", "numbers from 1 to 256")
SHARES = Many(click.FloatRange(0, 1), "D", "1,0.4,0.1,0.01", "numbers from 0 to 1")
WIRE = click.Choice(["int32", "int16", "int8"])
AGENT_WIRE = click.Choice(["auto", "int32", "int16", "int8", "exact"])
FILE = click.Path(dir_okay=False, path_type=Path)
OUTPUT_FOLDER = OutputFolder()
ANY_PATH = click.Path(path_type=Path)


def together(*options: Callable) -> Callable:
    """Combine several options into one decorator, in their order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


json_option = together(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table."), wide_option
)
plot_option = click.option(
    "--plot",
    "plot_file",
    type=OutputFile(output_files.PICTURES),
    metavar="FILE",
    help="Draw the result: .png, .svg, .pdf or .html.",
)
REPORT = OutputFile(output_files.PICTURES)
TIMELINE = OutputFile(output_files.TIMELINES)
ROWS_FILE = OutputFile(output_files.ROWS)
SETTINGS_FILE = OutputFile()
ACCELERATOR_FILE = OutputFile({".toml": ""})
timeline_option = click.option(
    "--timeline", type=TIMELINE, metavar="FILE", help="Write a timeline for Perfetto (.json or .json.gz)."
)
time_limit_option = option(
    "--time-limit", "time_budget_s", type=TIME, default="10min", show_default=True, help="Give up after this time."
)
wire_option = click.option("--wire", type=WIRE, default="int32", help="Type of the lanes in a packet.")
authenticate_option = click.option(
    "--authenticate",
    is_flag=True,
    envvar="SWITCHML_AUTHENTICATE",
    show_envvar=True,
    help="Authenticate packets with the job's key (UDP and zmq; not on a P4 switch).",
)
agent_wire_option = click.option(
    "--wire",
    type=AGENT_WIRE,
    default="auto",
    help="Type of the lanes in a packet; auto: half precision as it is, else int32; exact: int32, in as many rounds as "
    "exact sums need.",
)
payload_option = option(
    "--payload", "payload_bytes", type=OneSize(256, 1024), default="1024B", help="Bytes of lanes in a packet."
)
against_option = click.option(
    "--against",
    type=click.Choice(["gloo", "none"]),
    default="gloo",
    callback=lambda context, parameter, value: None if value == "none" else value,
    help="Baseline, measured in turn.",
)


def repeats_options(
    repeats: int | None = 3, warmup: int = 1, text: str = "Measured all-reduces of each kind."
) -> Callable:
    """--repeats and --warmup."""
    return together(
        click.option("--repeats", type=Count(1), default=repeats, help=text),
        click.option("--warmup", type=Count(0), default=warmup, help="Warm-up repeats, not counted."),
    )


sparsity_options = together(
    click.option("--density", type=SHARES, help="Share of non-zero blocks on each rank; zero blocks are skipped."),
    click.option("--block", type=Count(1), default=256, help="Elements of a block, with --density."),
    click.option(
        "--overlap",
        type=click.Choice(["random", "full", "none"]),
        default="random",
        help="Overlap of the ranks' blocks, with --density.",
    ),
    click.option(
        "--sparse",
        "mode",
        type=click.Choice(["on", "auto"]),
        default="on",
        help="Skip zero blocks always, or only where it is faster, with --density.",
    ),
)
"""Options for tensors with blocks of zeros."""


salvage_option = click.option("--salvage", is_flag=True, help="Read the intact part of truncated or broken files.")

trace_options = together(
    click.option("--rank", type=click.IntRange(min=0), help="Rank of the trace, for a file without it."), salvage_option
)
"""Options for reading traces."""


def link_options(rate: str | None, shown: str = "") -> Callable:
    """--rate, --delay, --loss and --seed of a testbed's links. `shown`: displayed default if `rate` is None."""
    return together(
        click.option(
            "--rate",
            "rate_bps",
            type=RATE,
            default=rate,
            show_default=shown or True,
            help="Rate of each link, both ways.",
        ),
        click.option("--delay", "delay_s", type=TIME, default="0us", help="Delay of each link, each way."),
        option(
            "--loss",
            type=click.FloatRange(0.0, 1.0, max_open=True),
            show_default="0",
            help="Share of frames that each link loses, each way.",
        ),
        click.option("--seed", type=click.IntRange(0), default=1, help="Seed of the frame losses."),
    )


def output(as_json: bool, to_json: Callable[[], Any], print_table: Callable[[], None]) -> None:
    """Print one JSON object on stdout, or call `print_table`."""
    if as_json:
        click.echo(json.dumps(to_json()))
    else:
        print_table()
