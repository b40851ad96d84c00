#!/usr/bin/env python3
"""Train a small network with one slow rank, once waiting for it and once not (host_agent/stragglers.py), and show the
accuracy of each over time. Compute is simulated by sleeping, so that other load on the processors matters little.

    scripts/experiments/stragglers.py
    scripts/experiments/stragglers.py --stopped
    scripts/experiments/stragglers.py --aggregator p4
    scripts/experiments/stragglers.py --chance 0.2 --plot stragglers.svg
"""

import argparse
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from host_agent import HostAgent
from host_agent.pytorch.aggregator import ChildAggregator, command_of
from host_agent.stragglers import PartialRounds
from host_agent.training.data import load_digits
from switchml import plotting, tables
from switchml.pages.charts import Line
from switchml.pages.panels import Curves

HIDDEN, BATCH, TEST = 64, 16, 360
LONG_S = 3000.0


@dataclass
class Outcome:
    """Result of one training: rank 0's accuracy after each step, and the share of rounds that include the last rank."""

    times_s: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    with_last: float = 0.0

    def reached_s(self, accuracy: float) -> float | None:
        return next((at for at, value in zip(self.times_s, self.accuracy, strict=True) if value >= accuracy), None)


class Network:
    """A network of two layers for the digits, with all parameters in one array."""

    def __init__(self):
        images, labels = load_digits()
        order = np.random.default_rng(0).permutation(len(images))
        self.images, self.labels = (images[order] / 8 - 1).astype(np.float32), labels[order]
        chooser = np.random.default_rng(1)
        first, second = chooser.normal(0, 0.1, (64, HIDDEN)), chooser.normal(0, 0.1, (HIDDEN, 10))
        self.parameters = np.concatenate([first.ravel(), second.ravel()]).astype(np.float32)

    def layers(self, values):
        return values[: 64 * HIDDEN].reshape(64, HIDDEN), values[64 * HIDDEN :].reshape(HIDDEN, 10)

    def gradient(self, batch):
        first, second = self.layers(self.parameters)
        images, labels = self.images[batch], self.labels[batch]
        hidden = np.maximum(images @ first, 0)
        scores = np.exp(hidden @ second)
        scores /= scores.sum(1, keepdims=True)
        scores[np.arange(len(batch)), labels] -= 1
        scores /= len(batch)
        back = (scores @ second.T) * (hidden > 0)
        return np.concatenate([(images.T @ back).ravel(), (hidden.T @ scores).ravel()]).astype(np.float32)

    def accuracy(self):
        first, second = self.layers(self.parameters)
        found = (np.maximum(self.images[:TEST] @ first, 0) @ second).argmax(1)
        return float((found == self.labels[:TEST]).mean())


@contextlib.contextmanager
def stopped(agent):
    """Pause the agent inside the context, as if its whole process were stopped, not just its program."""
    agent.pause()
    try:
        yield
    finally:
        agent.resume()


def train(options, address: str, waits: bool) -> Outcome:
    """Train once, with ranks as threads."""
    outcome, began = Outcome(), 0.0
    ready = threading.Barrier(options.ranks)

    def run(rank: int) -> None:
        nonlocal began
        network, chooser = Network(), np.random.default_rng(100 + rank)
        deadline_s = LONG_S if waits else options.deadline * options.step_time
        members = {"rank": rank, "world_size": options.ranks}
        agent = HostAgent.join(address, job=f"waits {waits}", deadline_s=deadline_s, **members)
        ready.wait()
        began = time.monotonic()
        with agent:
            rounds, step = PartialRounds(agent, network.parameters.size), 0
            while step < options.steps:
                batch = TEST + chooser.choice(len(network.labels) - TEST, BATCH)
                gradient = network.gradient(batch)
                is_slow = rank == options.ranks - 1 and chooser.random() < options.chance
                with stopped(agent) if is_slow and options.stopped else contextlib.nullcontext():
                    time.sleep(options.step_time * (options.slowdown if is_slow else 1))
                for each in rounds.contribute(gradient, options.steps - step):
                    network.parameters -= np.float32(options.rate) * each.mean
                    step += 1
                    if rank == options.ranks - 1:
                        outcome.with_last += (1 - each.late) / options.steps
                    if rank == 0:
                        outcome.times_s.append(time.monotonic() - began)
                        outcome.accuracy.append(network.accuracy())
            ready.wait()  # No rank leaves before all have their last result

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(options.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    aggregators = ["software", "p4", "bmv2"]
    parser.add_argument("--aggregator", choices=aggregators, default="software", help="what sums (bmv2 as root)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-time", type=float, default=0.04, help="seconds of computing in a step")
    parser.add_argument("--slowdown", type=float, default=5.0, help="of the last rank")
    parser.add_argument("--chance", type=float, default=1.0, help="part of its steps that are slow")
    parser.add_argument("--stopped", action="store_true", help="when it is slow, its agent stands still, too")
    parser.add_argument("--deadline", type=float, default=1.5, help="in steps")
    parser.add_argument("--rate", type=float, default=0.1, help="of learning")
    parser.add_argument("--accuracy", type=float, nargs="*", default=[0.8, 0.9, 0.93], help="to be reached")
    parser.add_argument("--plot", type=Path, help="a picture of accuracy over time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    aggregator = ChildAggregator(command=command_of(options.aggregator, options.ranks))
    try:
        outcomes = {name: train(options, aggregator.address, name == "waits") for name in ("waits", "does not wait")}
    finally:
        aggregator.stop()
    rows = []
    for name, outcome in outcomes.items():
        reached = [outcome.reached_s(accuracy) for accuracy in options.accuracy]
        rows.append((name, outcome.times_s[-1], *reached, outcome.accuracy[-1], outcome.with_last))
    if options.plot:
        draw(outcomes, options.plot)
    if options.json:
        print(json.dumps([{"training": row[0], "seconds": row[1], "reached_s": row[2:-2], "accuracy": row[-2],
                           "rounds_with_slow_rank": row[-1]} for row in rows]))  # fmt: skip
        return
    columns = [tables.text("training"), tables.number(f"{options.steps} steps", "s")]
    columns += [tables.number(f"to {accuracy:g}", "s") for accuracy in options.accuracy]
    columns += [tables.number("accuracy"), tables.number("with slow rank")]
    shown = [
        (name, *("-" if value is None else f"{value:.2f}" for value in values[:-2]), f"{values[-2]:.3f}",
         f"{values[-1]:.0%}") for name, *values in rows
    ]  # fmt: skip
    tables.show(tables.Table(columns, shown))


def draw(outcomes: dict[str, Outcome], path: Path) -> None:
    lines = [Line(name, outcome.times_s, outcome.accuracy) for name, outcome in outcomes.items()]
    panel = Curves("Training with a straggler", "seconds", "accuracy on unseen digits", lines)
    plotting.draw(path, panel.title, [panel])


if __name__ == "__main__":
    main()
