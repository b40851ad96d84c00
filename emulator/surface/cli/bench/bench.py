"""`switchml bench`: the speed of all-reduces on this machine, compared with Gloo. Each measurement is a subcommand."""

import click

from switchml.cli.main import LazyGroup


@click.group(cls=LazyGroup, within="bench")
def bench() -> None:
    """Measure all-reduces, compared with Gloo in the same run, and the P4 switch."""
