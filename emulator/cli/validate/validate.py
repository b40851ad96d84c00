"""`switchml validate`: the emulator's predictions beside measurements. Each source of measurements is a subcommand of
its own, and each prints rows, the mean absolute percentage error (MAPE) and the worst case.
"""

from __future__ import annotations

import click

from switchml.cli.main import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "iterations": ("emulator.cli.validate.tables:iterations", "Measured Megatron-DeepSpeed iterations (CSV)."),
    "nccl": ("emulator.cli.validate.tables:nccl", "All-reduce tables of nccl-tests."),
    "megatron": ("emulator.cli.validate.tables:megatron", "Megatron-LM's published times and memory."),
    "clocks": ("emulator.cli.validate.clocks:clocks", "Shifted clocks, found again from traces."),
    "replay": (
        "emulator.cli.validate.replay:replay",
        "Traced runs replayed, as they were and changed (root).",
    ),
    "real": (
        "emulator.cli.validate.real:real",
        "Training runs on this machine, over links of limited rate (root).",
    ),
    "peers": ("emulator.cli.validate.peers:peers", "Emulated peers beside all-real runs (root)."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def validate() -> None:
    """Compare what the emulator predicts with what was measured."""
