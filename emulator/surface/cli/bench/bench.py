"""`switchml bench`: how fast all-reduces are here, beside Gloo's. Each measurement is a subcommand of its own."""

import click

from switchml.cli.main import LazyGroup


@click.group(cls=LazyGroup, within="bench")
def bench() -> None:
    """Measure all-reduces, beside Gloo's in the same run, and the P4 switch."""
