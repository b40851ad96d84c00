"""`switchml report`: comparison of results."""

from pathlib import Path

import click

from emulator.surface.cli.options import FILE
from switchml.errors import ConfigError


@click.command()
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="A.json B.json…")
@click.option("--out", type=FILE, default="report.html", metavar="FILE.html", help="The page to write.")
def report(files: tuple[Path, ...], out: Path) -> None:
    """Compare results that commands wrote with --json > FILE.json, on one page: breakdown of time, memory, curves of
    sweeps, every figure and its ratio."""
    from emulator.surface.api.compare import write_page
    from switchml.pages.page import check_extras

    if len(files) < 2:
        raise click.UsageError("give at least two files")
    if out.suffix != ".html":
        raise ConfigError(f"{out}: expected a name that ends in .html")
    check_extras()
    write_page(files, out)
    click.echo(f"wrote {out}", err=True)
