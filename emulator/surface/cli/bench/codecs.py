"""`switchml bench codecs`: every codec's ratio, speed and error on one tensor, compared with SZ3, ZFP
and torch's own."""

from pathlib import Path
from typing import Any

import click

from emulator.surface.cli.options import json_option, output, plot_option
from switchml.cli.options import Count, option

SHARE = click.FloatRange(0, 1, min_open=True)


@click.command()
@click.option(
    "--tensor",
    default="gradient",
    metavar="gradient|activation|smooth|FILE.npy",
    help="Real gradients or activations of the digits model, a synthetic smooth field, or a file.",
)
@click.option("--elements", type=Count(1000), default=1 << 20, help="Length of the tensor, unless it is a file.")
@option(
    "--codec",
    "specs",
    multiple=True,
    metavar="NAME[:KEY=VALUE,…]",
    show_default="all",
    help="Measure this codec; may be repeated.",
)
@click.option("--ratio", type=SHARE, default=0.01, help="Share of the elements that sparsifiers send.")
@click.option(
    "--bound", type=SHARE, default=1e-3, help="Error bound of SZx, SZ3 and ZFP, as a share of the tensor's range."
)
@click.option("--rank", type=click.IntRange(1), default=2, help="Rank of PowerSGD, ours and torch's.")
@option("--ranks", "workers", type=Count(1, 256), default=4, help="Ranks of the all-reduce, for its traffic.")
@option("--repeats", "rounds", type=Count(1), default=7, help="Repeats, of which the best counts.")
@plot_option
@json_option
def codecs(
    tensor: str, elements: int, specs: tuple[str, ...], plot_file: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure codecs on one core: ratio, speed in both directions, error, and the bytes that an all-reduce sends.

    "pays below" is the link rate below which compressing, sending and decompressing is faster than sending the tensor
    uncompressed.
    """
    from emulator.lab.bench.codecs import measure as bench
    from emulator.lab.bench.codecs import report
    from emulator.lab.bench.codecs.tensors import load
    from switchml.terminal import progress

    chosen = bench.choose(list(specs), **{name: options[name] for name in ("ratio", "bound", "rank")})
    with progress("codecs") as task:
        task.step("making the tensor")
        result = bench.measure(load(tensor, elements), chosen, on_step=task.step, **options)
    if plot_file is not None:
        report.draw(result, plot_file)
    output(as_json, lambda: report.as_json(result), lambda: report.print_table(result))
