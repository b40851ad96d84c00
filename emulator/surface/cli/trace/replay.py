"""`switchml trace replay`: replay a traced job, as traced and with changes."""

import re
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from emulator.cluster.algorithms import ALGORITHMS_HELP, HIERARCHIES, HIERARCHY_HELP
from emulator.surface.cli.options import ANY_PATH, json_option, output, timeline_option, trace_options
from switchml import tables
from switchml.cli.options import BUCKET, RATE, TIME, Count, Quantity, option
from switchml.tables import Table, number, text
from switchml.terminal import progress, say


class Change(click.ParamType):
    """A new value with its unit, or a factor of the traced value, such as "x0.5". Converts to ("factor" or "value",
    number)."""

    def __init__(self, quantity: Quantity) -> None:
        self.name = f"{quantity.name}|xF"
        self._quantity = quantity

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        if re.fullmatch(r"x[0-9.]+", str(value).strip()):
            return "factor", float(str(value).strip()[1:])
        return "value", self._quantity.convert(value, param, ctx)


class Slow(click.ParamType):
    """A rank and its slowdown: RANK=FACTOR."""

    name = "rank=factor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)=([0-9.]+)", str(value).strip())
        if not match:
            self.fail(f"{value!r}: expected a rank and a factor, as in 1=1.5", param, ctx)
        return int(match[1]), float(match[2])


@click.command()
@click.argument("path", type=ANY_PATH)
@click.option(
    "--iteration", type=click.IntRange(0), help="Replay only this iteration.  [default: all, one after the other]"
)
@option("--rate", "link", type=RATE, help="Rate of each host's link in the traced run, if known.")
@click.option("--ranks-per-host", type=Count(1), help="Ranks that share a link.  [default: as traced]")
@click.option("--bandwidth", type=Change(RATE), help="Change the rate of links.")
@click.option("--latency", type=Change(TIME), help="Change the latency of each step of a collective.")
@option("--allreduce", show_default="as traced", help=ALGORITHMS_HELP)
@option("--hierarchy", type=click.Choice(list(HIERARCHIES)), show_default="as traced", help=HIERARCHY_HELP)
@click.option(
    "--cluster", help="Use the network of a built-in cluster or .toml file, with its nodes filled in rank order."
)
@click.option("--ranks", type=Count(1), help="Change the number of data-parallel ranks.")
@click.option(
    "--bucket-cap",
    type=BUCKET,
    multiple=True,
    help="Change the cap of DDP's buckets; twice: of the first, of the others.",
)
@click.option("--codec", help="Compress gradients with a codec of docs/codecs.md, measured here.")
@click.option("--accelerator", help="Change the accelerator: x2 for twice as fast, or a built-in one such as h100.")
@click.option("--without-straggler", type=click.IntRange(0), metavar="RANK", help="Remove a rank's slowness.")
@click.option("--slow", type=Slow(), multiple=True, metavar="RANK=F", help="Slow a rank down by a factor F.")
@timeline_option
@trace_options
@json_option
def replay(
    path: Path,
    as_json: bool,
    timeline: Path | None,
    rank: int | None,
    salvage: bool,
    iteration: int | None,
    **options: Any,
) -> None:
    """Replay the traces in PATH, a directory with one trace per rank: predicted and traced iteration time, in total and
    by part; and, with options that change something, the time that the job would take then. The timeline is that of a
    mean iteration."""
    from emulator.surface.api.replaying import Changes
    from emulator.surface.api.replaying import replay as run
    from emulator.traces.readers.read import read

    options["bandwidth_bps"], options["bandwidth_factor"] = _value_or_factor(options.pop("bandwidth"))
    options["latency_s"], options["latency_factor"] = _value_or_factor(options.pop("latency"))
    given = {name: value for name, value in options.items() if value is not None}
    change = Changes(
        link_bps=given.pop("link", None), bucket_bytes=given.pop("bucket_cap"), slow=dict(given.pop("slow")), **given
    )
    traces = read(path, rank=rank, salvage=salvage)
    with progress("replaying"):
        result = run(traces, iteration, change)
    if timeline is not None:
        result.timeline(timeline)
    output(as_json, result.to_json, lambda: show(result.to_json()))


def _value_or_factor(option: tuple[str, float] | None) -> tuple[float | None, float | None]:
    what, value = option or ("", 0.0)
    return value if what == "value" else None, value if what == "factor" else None


def show(report: dict[str, Any]) -> None:
    """Print `report`, the object that --json prints."""
    from emulator.jobs.replay.parts import PARTS

    names = [name for name in ("traced", "replayed", "changed") if name in report]
    table = Table([text("part of an iteration"), *(number(name, "ms") for name in names)])

    def add(name: str, values: list[float], style: str = "") -> None:
        table.add(Text(name, style), *(Text(f"{value * 1e3:,.2f}" if value else "–", style) for value in values))

    add("in all", [report[name]["iteration_s"] for name in names], "bold")
    for part in PARTS:
        values = [report[name]["parts_s"].get(part, 0.0) for name in names]
        if any(value >= 5e-6 for value in values):
            add(f"  {part}", values)
    if len(report["ranks"]) > 1:
        for place, rank in enumerate(report["ranks"][:16]):
            values = [report[name]["ranks"][place]["parts_s"].get("compute", 0.0) for name in names]
            add(f"  compute of rank {rank}", values, "dim")
    tables.show(table)
    say(
        f"\n{report['iterations']} iterations of {len(report['ranks'])} ranks, {report['ops']} ops an iteration; "
        f"replayed {report['error']:+.2%} off"
    )
    if "changed" in report:
        say((f"With {', '.join(report['changes'])}: {report['speedup']:.3g} times as fast", "bold"))
    for assumption in report["assumptions"]:
        say(f"- {assumption}", style="dim")
