"""`switchml validate`: predictions compared with measurements. Each source of measurements is a subcommand, which
prints rows, the mean absolute percentage error (MAPE) and the worst case.
"""

import click

from switchml.cli.main import LazyGroup


@click.group(cls=LazyGroup, within="validate")
def validate() -> None:
    """Compare the emulator's predictions with measurements."""
