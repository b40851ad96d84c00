"""What `switchml emulate` chose where options were left out."""

from typing import Any

from emulator.surface.report.ranking import ranking_table
from switchml import tables
from switchml.terminal import say


def show_choice(emulation: Any) -> None:
    """Print it, with the best alternative, and the ranking where one was asked for."""
    choice = emulation.request.choice
    for line in choice.lines(emulation.plan.job):
        say(line)
    if choice.ranking:
        say()
        tables.show(ranking_table(choice.ranking))
        say()
