"""Time a DLRM's steps and their exchanges of embeddings over links of a given rate: plain and compressed.

    sudo python scripts/experiments/dlrm.py [--ranks 2] [--rate 50mbit] [--steps 200] [--batch 128] [--json]

The model, its clicks and the bounds of its tables are those of scripts/examples/dlrm.py. Hosts are network namespaces
around a switch, their links shaped by tc (emulator/networks/testbed/star.py), with one rank in each, over Gloo.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
from operator import methodcaller
from types import ModuleType

import click

from emulator.lab.bench.ranks.process import CallableRank, RankPlace
from emulator.lab.bench.ranks.team import STORE_PORT, Team, places, training_context
from emulator.networks.testbed.namespaces import Lab
from emulator.networks.testbed.star import LinkOptions, Star
from emulator.surface.cli.options import json_option
from switchml import share
from switchml.cli.options import RATE, Count, option
from switchml.tables import Table, number, show, text

BOUNDS_START = 2.0
"""Initial error bounds, in multiples of the final ones."""
BURST_S = 1e-3
"""Burst of the links: with a longer one, a small exchange would pass at any rate."""


class RecommendationRank(CallableRank):
    """A rank of the job in scripts/examples/dlrm.py."""

    def __init__(self, place: RankPlace):
        self._place = place

    def join(self, store: str) -> None:
        """Initialize the process group. `store`: rank 0's address."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        address = f"tcp://{store}:{STORE_PORT}"
        dist.init_process_group("gloo", init_method=address, rank=self._place.rank, world_size=self._place.world_size)

    def train(self, is_compressed: bool, steps: int, batch: int) -> dict[str, float]:
        """Return the result of the example's `train`."""
        dlrm = example()
        sets = dlrm.Clicks.draw(dlrm.TRAIN, 0), dlrm.Clicks.draw(dlrm.TEST, 1)
        result: dict[str, float] = dlrm.train(is_compressed, steps, batch, BOUNDS_START, sets, check=False)
        return result

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


def example() -> ModuleType:
    """Import scripts/examples/dlrm.py."""
    spec = importlib.util.spec_from_file_location("dlrm_example", share.HERE / "scripts" / "examples" / "dlrm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(ranks: int, rate_bps: float, steps: int, batch: int) -> dict[str, dict[str, float]]:
    """Results by choice: metrics of rank 0, times of the slowest rank."""
    processes = training_context()
    with (
        Lab() as lab,
        contextlib.closing(Star(lab, ranks, LinkOptions(rate_bps, burst_s=BURST_S))) as star,
        Team(processes, RecommendationRank, places(star.hosts)) as team,
    ):
        team.ask(methodcaller("join", star.address(0)))
        team.ask(methodcaller("train", True, 3, batch))  # Compiles the codec's kernels
        results = {}
        for name, is_compressed in example().CHOICES.items():
            answers = team.ask(methodcaller("train", is_compressed, steps, batch))
            slowest = {key: max(each[key] for each in answers) for key in ("seconds", "exchange_seconds")}
            results[name] = {**answers[0], **slowest}
    return results


@click.command(help=__doc__)
@option("--ranks", type=Count(2), default=2)
@option("--rate", "rate_bps", type=RATE, default="50mbit", help="Rate of each link, both ways.")
@option("--steps", type=Count(1), default=200)
@option("--batch", type=Count(1), default=128, help="Samples per rank and step.")
@json_option
def main(ranks: int, rate_bps: float, steps: int, batch: int, as_json: bool) -> None:
    results = run(ranks, rate_bps, steps, batch)
    if as_json:
        print(json.dumps({"ranks": ranks, "rate_bps": rate_bps, "steps": steps, "batch": batch, **results}))
        return
    columns = [
        text("all-to-all"),
        number("step", "ms"),
        number("exchange", "ms"),
        number("MB sent"),
        number("accuracy"),
    ]
    table = Table(columns, title=f"{ranks} ranks, links of {rate_bps / 1e6:g} Mbit/s, {steps} steps of {batch}")
    for name, result in results.items():
        times = (f"{1e3 * result[key] / steps:.2f}" for key in ("seconds", "exchange_seconds"))
        table.add(name, *times, f"{result['bytes_sent'] / 1e6:.2f}", f"{result['accuracy']:.2%}")
    show(table)


if __name__ == "__main__":
    main()
