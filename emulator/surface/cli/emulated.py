"""Options shared by `switchml peers` and `switchml train --emulated-ranks`: the cluster in which a
few ranks are real."""

from collections.abc import Callable, Sequence

import click

from emulator.cluster.algorithms import ALGORITHMS_HELP, HIERARCHIES, HIERARCHY_HELP
from emulator.surface.cli.options import together
from switchml.cli.options import option

CLOCKS = ["wall", "virtual"]
VALUES = ["own", "noise", "zeros", "recorded"]
NAMES = ("real_ranks", "cluster", "network", "hierarchy", "clock", "values", "slow")


def options(*, network: str = "auto", values: Sequence[str] = VALUES, needs: str = "") -> Callable:
    """The options NAMES. `network`: default all-reduce; `values`: available choices of VALUES; `needs`: another option
    that they require."""
    needed = f" Needs {needs}." if needs else ""
    recorded = ", or a recorded run" if "recorded" in values else ""
    return together(
        click.option(
            "--real-ranks", default="1", metavar="N|R,R…", help=f"Number of real ranks, or a list of them.{needed}"
        ),
        click.option("--cluster", default="cpu-10g", help=f"Built-in cluster or .toml file.{needed}"),
        option("--allreduce", "network", default=network, help=f"{ALGORITHMS_HELP}{needed}"),
        click.option(
            "--hierarchy",
            type=click.Choice(list(HIERARCHIES)),
            default="auto",
            help=f"{HIERARCHY_HELP} auto: node on emulated clusters, none for real ranks.",
        ),
        click.option(
            "--clock",
            type=click.Choice(CLOCKS),
            default="wall",
            help="wall: collectives take as long as on the cluster. virtual: they return at once, and a virtual clock "
            f"counts their time.{needed}",
        ),
        click.option(
            "--values",
            type=click.Choice(values),
            default="own",
            help="Values that emulated ranks contribute: the real rank's own, these with noise, "
            f"zeros{recorded}.{needed}",
        ),
        click.option(
            "--slow",
            metavar="RANK=X,…",
            default="",
            show_default=False,
            help=f"Ranks that compute X times slower.{needed}",
        ),
    )
