"""What `switchml peers` and `switchml train --world-size` have in common: options that describe the cluster of which
a few ranks are real."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

import click

from emulator.cluster.algorithms import ALGORITHMS_HELP, HIERARCHIES, HIERARCHY_HELP

CLOCKS = ["wall", "virtual"]
VALUES = ["own", "noise", "zeros", "recorded"]
NAMES = ("real_ranks", "cluster", "network", "hierarchy", "clock", "values", "slow")


def options(
    *, network: str = "auto", values: Sequence[str] = VALUES, needs: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options NAMES. `network`: which one goes without saying; `values`: those of VALUES that can be had; `needs`:
    another option, without which they mean nothing."""

    def help_of(text: str) -> str:
        return f"{text} Needs {needs}." if needs else text

    decorators = (
        click.option(
            "--real-ranks",
            default="1",
            show_default=True,
            metavar="N|R,R…",
            help=help_of("Number of real ranks, or a list of them."),
        ),
        click.option(
            "--cluster", default="cpu-10g", show_default=True, help=help_of("Built-in cluster or .toml file.")
        ),
        click.option(
            "--network",
            default=network,
            show_default=True,
            help=help_of(ALGORITHMS_HELP),
        ),
        click.option(
            "--hierarchy",
            type=click.Choice(list(HIERARCHIES)),
            default="auto",
            show_default=True,
            help=f"{HIERARCHY_HELP} auto: node on emulated clusters, none for real workers.",
        ),
        click.option(
            "--clock",
            type=click.Choice(CLOCKS),
            default="wall",
            show_default=True,
            help=help_of(
                "wall: collectives take as long as on the cluster. virtual: they return at once, and a virtual clock "
                "counts their time."
            ),
        ),
        click.option(
            "--values",
            type=click.Choice(values),
            default="own",
            show_default=True,
            help=help_of(
                "Values that emulated ranks contribute: the real rank's own, these with noise, zeros"
                + (", or a recorded run." if "recorded" in values else ".")
            ),
        ),
        click.option(
            "--slow",
            metavar="RANK=X,…",
            default="",
            show_default=False,
            help=help_of("Ranks that take X times as long to compute."),
        ),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(decorators):
            command = option(command)
        return command

    return add


def require(*modules: str) -> None:
    """Raises ImportError for a module that is missing: the ranks need them, and a whole trace from each of them would
    help nobody."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ImportError(f"No module named {module!r}", name=module)
