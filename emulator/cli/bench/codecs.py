"""`switchml bench codecs`: every codec's ratio, speed and error on one tensor, beside SZ3, ZFP and torch's own."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--tensor", default="gradient", show_default=True, metavar="gradient|activation|smooth|FILE.npy",
              help="Real gradients or activations of the digits model, a made-up smooth field, or a file.")  # fmt: skip
@click.option("--elements", type=click.IntRange(1000), default=1 << 20, show_default=True,
              help="Length of the tensor (a file has its own).")  # fmt: skip
@click.option("--codec", "specs", multiple=True, metavar="NAME[:KEY=VALUE,…]",
              help="Measure this one; may be repeated.  [default: all]")  # fmt: skip
@click.option("--ratio", type=click.FloatRange(0, 1, min_open=True), default=0.01, show_default=True,
              help="Share of the elements that sparsifiers send.")  # fmt: skip
@click.option("--bound", type=click.FloatRange(0, 1, min_open=True), default=1e-3, show_default=True,
              help="Error bound of SZx, SZ3 and ZFP, as a share of the tensor's range.")  # fmt: skip
@click.option("--rank", type=click.IntRange(1), default=2, show_default=True, help="PowerSGD's, ours and torch's.")
@click.option("--workers", type=click.IntRange(1, 256), default=4, show_default=True,
              help="Ranks of the all-reduce whose traffic is counted.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Times are the best of so many.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, writable=True, path_type=Path), metavar="FILE",
              help="Draw it (.png or .html).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def codecs(
    tensor: str,
    elements: int,
    specs: tuple[str, ...],
    ratio: float,
    bound: float,
    rank: int,
    workers: int,
    rounds: int,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Measure codecs on one core: ratio, speed both ways, error, and the bytes that an all-reduce sends.

    "pays below" is the link rate under which compressing, sending and decompressing beats sending the tensor as it is.
    """
    import json

    from rich.console import Console

    from emulator.bench.codecs import measure as measuring
    from emulator.bench.codecs import report as codecs_report
    from emulator.bench.codecs import tensors as codec_tensors

    chosen = measuring.choose(list(specs), ratio=ratio, bound=bound, rank=rank)
    if plot_file is not None:
        if plot_file.suffix not in (".png", ".html"):
            raise click.BadParameter(f"{plot_file}: expected a name that ends in .png or .html", param_hint="--plot")
        codecs_report.require_plot()
    with Console(stderr=True).status("bench codecs: making the tensor") as status:
        made = codec_tensors.load(tensor, elements)
        report = measuring.measure(
            made,
            chosen,
            bound=bound,
            ratio=ratio,
            rank=rank,
            workers=workers,
            rounds=rounds,
            on_step=lambda name: status.update(f"bench codecs: {name}"),
        )
    if plot_file is not None:
        codecs_report.draw(report, plot_file)
    if as_json:
        click.echo(json.dumps(codecs_report.as_json(report)))
    else:
        codecs_report.print_table(report)
