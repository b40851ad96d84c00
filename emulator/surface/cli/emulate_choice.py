"""Display of the options that `switchml emulate` chose where they were left out."""

from typing import Any

from emulator.surface.report.ranking import ranking_table
from switchml import tables
from switchml.terminal import say


def show_choice(emulation: Any) -> None:
    """Print the choice, its best alternative, and the ranking if requested."""
    choice = emulation.request.choice
    for line in choice.lines(emulation.plan.job):
        say(line)
    if choice.ranking:
        say()
        tables.show(ranking_table(choice.ranking))
        say()
