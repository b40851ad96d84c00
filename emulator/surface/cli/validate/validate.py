"""`switchml validate`: the emulator's predictions beside measurements. Each source of measurements is a subcommand of
its own, and each prints rows, the mean absolute percentage error (MAPE) and the worst case.
"""

import click

from switchml.cli.main import LazyGroup


@click.group(cls=LazyGroup, within="validate")
def validate() -> None:
    """Compare what the emulator predicts with what was measured."""
