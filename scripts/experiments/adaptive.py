"""Change the links' rate while a model trains, and compare `auto` with every fixed choice.

    sudo python scripts/experiments/adaptive.py [--rates 1gbit,20mbit,200mbit] [--steps 200] [--plot FILE] [--json]

Hosts are network namespaces around a switch, their links shaped by tc (emulator/networks/testbed/star.py), one rank in
each; the software aggregator runs in the switch's namespace. Each choice trains its own model in the same processes,
alternating every TURN_STEPS steps, so that other load on the machine affects all of them alike. The model is the
digits' network with a hidden layer of 64 units, 38 000 parameters: small enough that at 1 Gbit/s the round trips of a
collective count as much as its bytes. So half precision is fastest there, and top-k at 20 Mbit/s. (With 2048 units,
1.08 million parameters, top-k is fastest at all three rates.) All steps of a phase are alike for a fixed choice: after
`--phase-limit` it stops, and its remaining steps are counted at its average step time."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from statistics import median
from typing import Any

import click

from emulator.lab.bench.ranks.process import CallableRank, RankPlace
from emulator.lab.bench.ranks.team import STORE_PORT, Team, places, star_with_aggregator, training_context
from emulator.networks.testbed.star import LinkOptions
from emulator.surface.cli.options import RATES, json_option, plot_option
from host_agent.compression.adaptive.policy import CHOICES
from host_agent.training.data import BatchOrder, Digits, load
from switchml import plotting, tables
from switchml.cli.options import SECONDS, option
from switchml.pages import charts
from switchml.pages.panels import Curves

FIXED = ("none", "fp16", "thc", "topk:ratio=0.1", "topk:ratio=0.01", "topk:ratio=0.003")
AUTO = "auto"
TURN_STEPS = 10
WARM_UP_STEPS = 20
"""Steps that are not measured, at the first rate: DDP forms its buckets, kernels are compiled, auto
tries its choices."""
BURST_S = 1e-3
"""Burst of the links: with a longer one, a small step's packets would pass at any rate."""
BATCH, LEARNING_RATE, SEED = 32, 0.02, 1


@dataclass(frozen=True)
class Join:
    """Arguments of `ChoosingRank.join`: a job in which each of `choices` has its own model. `store`: rank 0's address;
    `digits`: path of the image file."""

    store: str
    aggregator: str
    digits: str
    hidden: int
    choices: tuple[str, ...]


@dataclass
class Line:
    """Results of one choice over all phases."""

    phases: list[list[float]] = field(default_factory=list)
    """Seconds of each step on the slowest rank, per phase."""
    codecs: list[list[str]] = field(default_factory=list)
    """Codec of the first bucket in each of these steps."""
    losses: list[float] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)


# Code of a rank


class ChoosingRank(CallableRank):
    """A rank that has a model for each choice after `join`."""

    def __init__(self, place: RankPlace):
        self._place = place

    def join(self, job: Join) -> None:
        os.environ |= {
            "SWITCHML_AGGREGATOR": job.aggregator,
            "SWITCHML_TRANSPORT": "udp",
            "SWITCHML_WIRE": "int16",
        }
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        store = f"tcp://{job.store}:{STORE_PORT}"
        dist.init_process_group("switchml", init_method=store, rank=self._place.rank, world_size=self._place.world_size)
        self._trainers = [Trainer(job, self._place, choice) for choice in job.choices]

    def train(self, number: int, steps: int) -> dict[str, Any]:
        """Train the model of choice `number`. Returns the result of `Trainer.run`."""
        return self._trainers[number].run(steps)

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


class Trainer:
    """One choice's model on one rank."""

    def __init__(self, job: Join, place: RankPlace, choice: str):
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from host_agent.pytorch import CodecState, codec_hook
        from host_agent.training.model import DigitsNet

        digits = Digits.restore(Path(job.digits))
        self._images, self._labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
        torch.manual_seed(SEED)
        self._model = DistributedDataParallel(DigitsNet(job.hidden))
        self._state = CodecState(choice, "residual" if choice.startswith("topk") else None, seed=SEED)
        self._model.register_comm_hook(self._state, codec_hook)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self._order = BatchOrder(rank=place.rank, workers=place.world_size, batch_size=BATCH, seed=SEED)
        self._choice, self._step = choice, 0

    def run(self, steps: int) -> dict[str, Any]:
        """Train for `steps` steps. Returns the seconds, first bucket's codec and loss of each step, and all decisions
        so far."""
        import torch
        from torch.nn import functional

        seconds, names, losses = [], [], []
        for _ in range(steps):
            start = time.perf_counter()
            batch = torch.from_numpy(self._order.indices(self._step))
            self._optimizer.zero_grad()
            loss = functional.cross_entropy(self._model(self._images[batch]), self._labels[batch])
            loss.backward()
            self._optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
            names.append((self._state.choices or [self._choice])[0])
            self._step += 1
        return {"seconds": seconds, "codecs": names, "losses": losses, "decisions": self._state.decisions}


# Code of the parent process


def run(workers: int, rates_bps: list[float], steps: int, limit_s: float, hidden: int, choices: tuple[str, ...]):
    """Train with all choices, phase by phase; returns the Line of each choice."""
    lines = {choice: Line() for choice in choices}
    ranks = training_context()  # Its imports overlap with the network's setup
    with (
        tempfile.TemporaryDirectory(prefix="switchml-adaptive-") as folder,
        star_with_aggregator(workers, LinkOptions(rates_bps[0], burst_s=BURST_S)) as (star, aggregator),
        Team(ranks, ChoosingRank, places(star.hosts)) as team,
    ):
        digits = f"{folder}/digits.npz"
        load().save(Path(digits))
        team.ask(methodcaller("join", Join(star.address(0), aggregator.address, digits, hidden, choices)))

        def turn(choice: str, count: int) -> None:
            answers = team.ask(methodcaller("train", choices.index(choice), count))
            line = lines[choice]
            line.phases[-1] += [max(each) for each in zip(*(answer["seconds"] for answer in answers), strict=True)]
            line.codecs[-1] += answers[0]["codecs"]
            line.losses += answers[0]["losses"]
            line.decisions = answers[0]["decisions"]

        for phase, rate_bps in enumerate([rates_bps[0], *rates_bps]):
            say(f"warm-up at {rate_bps / 1e6:g} Mbit/s" if phase == 0 else f"{rate_bps / 1e6:g} Mbit/s")
            star.set_rate(rate_bps)
            for line in lines.values():
                line.phases.append([])
                line.codecs.append([])
            for _ in range(0, steps if phase else WARM_UP_STEPS, TURN_STEPS):
                for choice, line in lines.items():
                    if choice.startswith(AUTO) or sum(line.phases[-1]) < limit_s:
                        turn(choice, TURN_STEPS)
            for choice, line in lines.items():
                say(f"  {choice}: {1e3 * median(line.phases[-1]):.1f} ms a step (median of {len(line.phases[-1])})")
    for line in lines.values():
        del line.phases[0], line.codecs[0]
    return lines


def seconds_of(line: Line, phase: int, steps: int) -> float:
    """Total seconds of a phase, extrapolated to `steps`."""
    times = line.phases[phase]
    return sum(times) * steps / len(times)


def paired(line: Line, other: Line, phase: int) -> float:
    """Ratio of `line`'s time to `other`'s: the median over adjacent turns of both, so that other load on the machine
    affects both."""
    starts = range(0, min(len(line.phases[phase]), len(other.phases[phase])), TURN_STEPS)
    turns = [[sum(each.phases[phase][at : at + TURN_STEPS]) for each in (line, other)] for at in starts]
    return median(mine / theirs for mine, theirs in turns)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def summary(lines: dict[str, Line], rates_bps: list[float], steps: int) -> dict[str, Any]:
    """The JSON's fields: seconds per phase and in total, auto's ratios to the fixed choices, and its decisions."""
    phases = {choice: [seconds_of(line, i, steps) for i in range(len(rates_bps))] for choice, line in lines.items()}
    medians = {choice: [median(times) for times in line.phases] for choice, line in lines.items()}
    fixed = [choice for choice in lines if choice != AUTO]
    best = [min(fixed, key=lambda choice: medians[choice][i]) for i in range(len(rates_bps))]
    totals = {choice: sum(times) for choice, times in phases.items()}
    return {
        "rates_bps": rates_bps,
        "steps": steps,
        "steps_measured": {choice: [len(times) for times in line.phases] for choice, line in lines.items()},
        "phase_seconds": phases,
        "median_step_seconds": medians,
        "total_seconds": totals,
        "best_fixed": best,
        "auto_to_best_fixed": [phases[AUTO][i] / phases[choice][i] for i, choice in enumerate(best)],
        "auto_to_best_fixed_median_step": [medians[AUTO][i] / medians[choice][i] for i, choice in enumerate(best)],
        "auto_to_best_fixed_paired": [paired(lines[AUTO], lines[choice], i) for i, choice in enumerate(best)],
        "auto_to_best_single": totals[AUTO] / min(totals[choice] for choice in fixed),
        "final_loss": {choice: sum(line.losses[-TURN_STEPS:]) / TURN_STEPS for choice, line in lines.items()},
        "decisions": lines[AUTO].decisions,
    }


def show(result: dict[str, Any], workers: int, hidden: int) -> None:
    """Print the table to stdout."""
    title = f"{workers} workers, hidden layer of {hidden}, {result['steps']} steps a phase: median step, phase"
    rates = [tables.number(f"{rate_bps / 1e6:g} Mbit/s") for rate_bps in result["rates_bps"]]
    table = tables.Table([tables.text("codec"), *rates, tables.number("total")], title=title)
    for choice, phases in result["phase_seconds"].items():
        cells = []
        for i, seconds in enumerate(phases):
            mark = "*" if result["best_fixed"][i] == choice else ""
            cells.append(f"{1e3 * result['median_step_seconds'][choice][i]:.1f} ms, {seconds:.1f} s{mark}")
        table.add(choice, *cells, f"{result['total_seconds'][choice]:.1f} s")
    for name, text in (
        ("auto_to_best_fixed_median_step", "auto / best (*), median step"),
        ("auto_to_best_fixed_paired", "auto / best (*), turn by turn"),
        ("auto_to_best_fixed", "auto / best (*), phase"),
    ):
        table.add(text, *(f"{ratio:.2f}" for ratio in result[name]), "")
    table.add("auto / best single choice", *[""] * len(result["rates_bps"]), f"{result['auto_to_best_single']:.2f}")
    tables.show(table)


def panels(lines: dict[str, Line], rates_bps: list[float], steps: int) -> list[Curves]:
    """Plots of the step times of all choices, and of the codecs that auto used, as shares of TURN_STEPS steps."""
    phases = ", ".join(f"{rate / 1e6:g} from {phase * steps + 1}" for phase, rate in enumerate(rates_bps))
    x_title = f"step (Mbit/s: {phases})"
    times = []
    for choice, line in lines.items():
        steps_run = [
            (phase * steps + number, 1e3 * seconds)
            for phase, of_phase in enumerate(line.phases)
            for number, seconds in enumerate(of_phase, 1)
        ]
        times.append(charts.Line(choice, *map(list, zip(*steps_run, strict=True))))
    used = [name for phase in lines[AUTO].codecs for name in phase]
    turns = [used[start : start + TURN_STEPS] for start in range(0, len(used), TURN_STEPS)]
    ends = [min((turn + 1) * TURN_STEPS, len(used)) for turn in range(len(turns))]
    shares = [
        charts.Line(name, ends, [100 * turn.count(name) / len(turn) for turn in turns])
        for name in sorted(set(used), key=CHOICES.index)
    ]
    return [
        Curves("Time of a step", x_title, "ms", times, y_log=True),
        Curves("What auto chose", x_title, f"% of {TURN_STEPS} steps", shares),
    ]


@click.command()
@option("--ranks", "workers", default=4, show_default=True)
@click.option(
    "--rates",
    type=RATES,
    default="1gbit,20mbit,200mbit",
    show_default=True,
    help="Rates of the links, phase by phase.",
)
@click.option("--steps", default=400, show_default=True, help="Steps of each phase.")
@option(
    "--phase-limit",
    type=SECONDS,
    default="20s",
    show_default=True,
    help="Longest time of a fixed choice in a phase.",
)
@click.option("--hidden", default=64, show_default=True, help="Units of the model's hidden layer.")
@click.option("--error", default=0.9, show_default=True, help="Error bound of auto.")
@click.option("--choices", default=" ".join(FIXED), show_default=True, help="Fixed choices, separated by spaces.")
@plot_option
@json_option
def main(
    workers: int,
    rates: tuple[float, ...],
    steps: int,
    phase_limit: float,
    hidden: int,
    error: float,
    choices: str,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Train over links whose rate changes, with codecs chosen at run time (auto) and with every fixed choice."""
    rates_bps = list(rates)
    fixed = tuple(choices.split())
    lines = run(workers, rates_bps, steps, phase_limit, hidden, (*fixed, f"{AUTO}:error={error}"))
    lines = {(AUTO if choice.startswith(AUTO) else choice): line for choice, line in lines.items()}
    result = summary(lines, rates_bps, steps)
    if plot_file is not None:
        plotting.draw(plot_file, "Codecs while the links change", panels(lines, rates_bps, steps))
    if as_json:
        click.echo(json.dumps(result | {"workers": workers, "hidden": hidden}))
    else:
        show(result, workers, hidden)


if __name__ == "__main__":
    main()
