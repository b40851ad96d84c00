"""`switchml validate`: the emulator's predictions beside measurements. Each source of measurements is a subcommand of
its own, and each prints rows, the mean absolute percentage error (MAPE) and the worst case.
"""

from __future__ import annotations

import click

from switchml.__main__ import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "iterations": ("switchml.commands.validate_tables:iterations", "Measured Megatron-DeepSpeed iterations (CSV)."),
    "nccl": ("switchml.commands.validate_tables:nccl", "All-reduce tables of nccl-tests."),
    "megatron": ("switchml.commands.validate_tables:megatron", "Megatron-LM's published times and memory."),
    "clocks": ("switchml.commands.validate_clocks:clocks", "Shifted clocks, found again from traces."),
    "replay": (
        "switchml.commands.validate_replay:replay",
        "Traced runs replayed, as they were and changed (root).",
    ),
    "real": (
        "switchml.commands.validate_real:real",
        "Training runs on this machine, over links of limited rate (root).",
    ),
    "peers": ("switchml.commands.validate_peers:peers", "Emulated peers beside all-real runs (root)."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def validate() -> None:
    """Compare what the emulator predicts with what was measured."""
