"""`switchml peers`: run an unmodified training script as one or a few real ranks of an emulated cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emulator.surface.cli import emulated
from emulator.surface.cli.options import OUTPUT_FOLDER, TIMELINE
from switchml.cli.extras import require
from switchml.cli.options import Count, option
from switchml.runtime.folders import TemporaryFolder
from switchml.tables import wide_option
from switchml.terminal import progress, say

if TYPE_CHECKING:
    from emulator.peers.settings import PeerSettings


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@option("--ranks", "world_size", type=Count(1), required=True, help="Number of ranks, real and emulated.")
@emulated.options()
@click.option(
    "--noise",
    type=click.FloatRange(0.0),
    default=0.1,
    help="Standard deviation of --values noise over the root mean square.",
)
@click.option(
    "--recording",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of the recorded run for --values recorded.",
)
@click.option("--record", type=OUTPUT_FOLDER, help="Record this run (all ranks real) into a folder.")
@click.option(
    "--jitter",
    type=click.FloatRange(0.0),
    default=0.0,
    help="Standard deviation of emulated ranks' compute time over its mean.",
)
@click.option(
    "--loss", type=click.FloatRange(0.0, 0.5), default=0.0, help="Share of packets lost on each link (switchml)."
)
@click.option("--slots", type=Count(0), default=0, help="Slots of the switch; 0: as in the cluster's file.")
@click.option("--switch-jobs", type=Count(1), default=1, help="Jobs that share the slots.")
@click.option("--compute-scale", type=float, default=1.0, help="Factor on the compute time of all ranks.")
@click.option(
    "--measure",
    type=click.Choice(["wall", "cpu"]),
    default="wall",
    help="Clock for compute time with --clock virtual.",
)
@click.option("--seed", type=int, default=0, help="Seed of noise and jitter.")
@click.option(
    "--timeline", type=TIMELINE, metavar="FILE", help="Write the last iteration for ui.perfetto.dev (FILE.json[.gz])."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; what the script prints goes to stderr.")
@wide_option
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT|-m MODULE [ARGUMENTS]…")
def peers(script: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run SCRIPT as one or a few real ranks; the emulator emulates all other ranks, the network and the switch.

    The script is the one that torchrun would run, unchanged, on the CPU.
    """
    require("torch")
    from emulator.peers.launch import launch

    show(launch(script, settings_of(**options), quiet_script=as_json), as_json)


def settings_of(*, world_size: int, real_ranks: str, slow: str, switch_jobs: int = 1, **rest: Any) -> PeerSettings:
    """Settings from the options. Raises ConfigError."""
    from emulator.peers.settings import PeerSettings, parse_slow
    from switchml.errors import ConfigError

    try:
        numbers = [int(part) for part in real_ranks.split(",") if part]
    except ValueError:
        raise ConfigError(f"--real-ranks {real_ranks!r}: expected how many, or which, such as 0,5") from None
    real = tuple(numbers) if "," in real_ranks else tuple(range(numbers[0]))
    if not 1 <= len(real) <= world_size:
        raise ConfigError(f"--real-ranks {real_ranks}: expected 1 to {world_size} of them")
    rest = {name: str(each) if isinstance(each, Path) else each for name, each in rest.items() if each is not None}
    return PeerSettings(world=world_size, real=real, slow=parse_slow(slow), jobs=switch_jobs, **rest)


def show(report: dict[str, Any], as_json: bool) -> None:
    """Print the report."""
    if as_json:
        click.echo(json.dumps(report))
        return
    from emulator.peers.report import print_report

    print_report(report)


def train_digits(settings: PeerSettings, as_json: bool, **training: float) -> None:
    """`switchml train --emulated-ranks`. `training`: options of emulator/peers/digits.py."""
    require("torch")
    from emulator.peers.launch import launch

    with TemporaryFolder("peers") as folder:
        result = Path(folder) / "result"
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in training.items()]
        with progress("training"):
            report = launch(
                ["-m", "emulator.peers.digits", *arguments, f"--result={result}"], settings, quiet_script=True
            )
        trained = json.loads(result.with_suffix(f".{settings.real[0]}").read_text())
    show(report | {"training": trained} if as_json else report, as_json)
    if not as_json:
        losses = trained["losses"]
        say(
            f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {training['steps']} steps; "
            f"{trained['accuracy']:.1%} of the test images right"
        )
