"""`switchml bench allreduce`: time all-reduces of several ranks on this machine, beside Gloo's."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from emulator.cli.bench.network import sparsity_options

PLOT_ENDINGS = (".png", ".html")


class Checked(click.ParamType):
    """A value that a function of emulator.bench.sizes reads."""

    def __init__(self, name: str, function: str):
        self.name = name
        self.function = function

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from emulator.bench import sizes
        from switchml.errors import ConfigError

        if not isinstance(value, str):
            return value
        try:
            return getattr(sizes, self.function)(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option("--workers", type=click.IntRange(1, 256), default=4, show_default=True, help="Ranks, one process each.")
@click.option("--size", type=Checked("size", "parse_size"), help="Bytes of the tensor, like 64M.  [default: 64M]")
@click.option(
    "--sizes",
    type=Checked("from:to:factor", "parse_sweep"),
    help="Measure several sizes: 1K:256M:4, or a list (4K,64K).",
)
@click.option(
    "--buckets",
    type=click.Choice(["ddp"]),
    help="Measure what DDP makes of a model of --size bytes: its buckets at once, each alone, and small ones.",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "udp", "shm", "zmq", "frames", "raw"]),
    default="auto",
    show_default=True,
    help="What carries packets.",
)
@click.option(
    "--wire",
    type=click.Choice(["int32", "int16", "int8"]),
    default="int32",
    show_default=True,
    help="Lanes of a packet.",
)
@click.option(
    "--against",
    type=click.Choice(["gloo", "none"]),
    default="gloo",
    show_default=True,
    help="What takes turns with it.",
)
@sparsity_options
@click.option(
    "--aggregator",
    default="software",
    show_default=True,
    metavar="KIND|HOST:PORT",
    help="What to start: software, p4 (our P4 switch), bmv2 (simple_switch, root), p4-lanes, bmv2-lanes (a register a "
    "lane); or a running one.",
)
@click.option("--repeats", type=click.IntRange(1), help="Pairs at each size.  [default: 5 to 15, 3 if slow]")
@click.option("--warmup", type=click.IntRange(0), default=2, show_default=True, help="Pairs before those, not counted.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE",
              help="Draw time and bandwidth against size (.png needs matplotlib, .html nothing).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def allreduce(
    workers: int,
    size: int | None,
    sizes: list[int] | None,
    buckets: str | None,
    transport: str,
    wire: str,
    against: str,
    density: tuple[float, ...] | None,
    block: int,
    overlap: str,
    sparse: str,
    aggregator: str,
    repeats: int | None,
    warmup: int,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Time all-reduces of float32 tensors between processes on this machine, and Gloo's in turn with them.

    Every result is checked against the exact sum. A time is that of the slowest rank; small tensors are reduced several
    times in a row. The bound below the table is what this machine's cores could do at most, from the measured cost of
    each step.
    """
    import json

    from emulator.bench import allreduce as measuring
    from emulator.bench import limits, plot, report
    from emulator.bench import sizes as cases_of
    from emulator.bench.sparsity import Sparsity
    from switchml.errors import ConfigError

    if sizes and (size or buckets):
        raise click.UsageError("--sizes goes with neither --size nor --buckets")
    if density and buckets:
        raise click.UsageError("--density does not go with --buckets")
    if density and len(density) > 1 and (sizes or plot_file):
        raise click.UsageError("several densities go with neither --sizes nor --plot")
    try:
        measuring.check_choice(transport, wire)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    if aggregator not in measuring.AGGREGATORS and not aggregator.rpartition(":")[2].isdecimal():
        kinds = ", ".join(measuring.AGGREGATORS)
        raise click.BadParameter(f"{aggregator!r}: expected HOST:PORT or one of {kinds}", param_hint="--aggregator")
    if plot_file is not None:
        if plot_file.suffix not in PLOT_ENDINGS:
            raise click.BadParameter(f"{plot_file}: expected a name that ends in .png or .html", param_hint="--plot")
        if not plot_file.resolve().parent.is_dir():
            raise click.BadParameter(f"{plot_file}: there is no such folder", param_hint="--plot")
        plot.require(plot_file)

    if buckets:
        cases = cases_of.ddp_buckets(size or 64 << 20, repeats, warmup)
    else:
        cases = [cases_of.single(each, repeats, warmup) for each in sizes or [size or 64 << 20]]
    other = None if against == "none" else against
    grid = [Sparsity(share, block, overlap, sparse) for share in density] if density else [None]
    cores = len(os.sched_getaffinity(0))
    longest = max(case.elements for case in cases)
    results = []
    with _progress(len(cases) * len(grid), as_json) as show:
        for sparsity in grid:
            backends = measuring.backends_of(sparsity, other)

            def header(chosen: str, backends=backends, first=not results) -> None:
                show(report.header(workers, chosen, wire, backends, cores) if first else [], 0)

            def line(measurement, backends=backends, sparsity=sparsity) -> None:
                union = measuring.union_of_case(sparsity, workers, longest, measurement.case)
                show([report.line(measurement, workers, backends, union)], 1)

            results.append(
                measuring.measure(
                    cases,
                    workers=workers,
                    transport=transport,
                    wire=wire,
                    against=other,
                    aggregator=aggregator,
                    sparsity=sparsity,
                    on_start=header,
                    on_result=line,
                )
            )
    result = results[-1]
    limit = None
    if aggregator not in measuring.AGGREGATORS[1:]:  # the bound is that of the software aggregator's loop
        limit = limits.measure(workers=workers, transport=result.transport, wire=wire, cores=cores)
    if plot_file is not None:
        plot.draw(result, limit, plot_file)
    if as_json:
        objects = [report.as_json(each, limit, is_sweep=bool(sizes or buckets)) for each in results]
        click.echo(json.dumps(objects[0] if len(objects) == 1 else {"results": objects}))
    else:
        click.echo("\n".join(report.footer(result, limit)))


@contextlib.contextmanager
def _progress(total: int, as_json: bool):
    """A function (lines, cases done): prints the table as it grows, or, if there is none, counts on a terminal."""
    if not as_json:
        yield lambda lines, done: click.echo("\n".join(lines))
        return
    from rich.console import Console

    finished = 0
    with Console(stderr=True).status("all-reduce: starting") as status:

        def show(lines: list[str], done: int) -> None:
            nonlocal finished
            finished += done
            status.update(f"all-reduce: {finished} of {total} sizes measured")

        yield show
