"""Pipeline schedules over slow links: AxoNN's compared with torch's 1F1B and GPipe, and with the emulator's prediction.

    sudo python scripts/experiments/pipelines.py [--rate 100mbit] [--slow-stage 0] [--micro-batches 16] [--plot FILE]

Each rank is a host in its own network namespace; the aggregator takes the switch's place. A stage is two linear layers,
and a pause in each pass for an accelerator's compute time, so that all ranks fit on few cores; everything else is real
training. The emulator gets the times of each stage's passes, measured alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import click

from emulator.lab.validation.real.pipelines import MORE, SCHEDULES, compare
from emulator.networks.testbed.namespaces import check_rights
from emulator.surface.cli.options import plot_option
from switchml import plotting
from switchml.cli.options import RATE, SECONDS, Count
from switchml.pages.panels import Bar, Bars
from switchml.tables import Table, number, show, text

TITLES = {"1f1b": "1f1b (torch)", "gpipe": "gpipe (torch)"}


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--ranks", type=Count(2), default=4)
@click.option("--stages", type=Count(2), default=2, help="The rest of the ranks are replicas.")
@click.option("--rate", type=RATE, default="100mbit", help="Of each rank's link.")
@click.option("--micro-batches", type=Count(1), default=16)
@click.option("--samples", type=Count(1), default=160, help="Of a micro-batch.")
@click.option("--width", type=Count(1), default=256, help="Of a layer.")
@click.option("--forward", "forward_s", type=SECONDS, default="10ms", help="A stage's pause forward.")
@click.option("--backward", "backward_s", type=SECONDS, default="20ms", help="A stage's pause backward.")
@click.option("--in-flight", type=click.IntRange(0), default=0, help="A row with so many micro-batches in flight.")
@click.option("--slow-stage", type=click.IntRange(0), default=0, help="From 0.")
@click.option("--slowness", type=click.FloatRange(1.0), default=1.5, help="The slow stage's factor on both.")
@click.option("--steps", type=Count(1), default=10, help="Of each schedule, taken in turns.")
@plot_option
@click.option("--json", "as_json", is_flag=True)
def main(rate: float, plot_file: Path | None, as_json: bool, **plan: Any) -> None:
    check_rights()
    found, emulated_s = compare(plan | {"schedules": SCHEDULES}, rate)
    rows = [
        {"schedule": name, "step_s": median(steps), "least_s": min(steps), "most_s": max(steps)}
        for name, steps in found.items()
    ]
    ours = rows[0]["step_s"]
    if plot_file is not None:
        bars = [Bar(TITLES.get(row["schedule"], row["schedule"]), "measured", 1e3 * row["step_s"]) for row in rows]
        bars.append(Bar("emulate --schedule axonn", "emulated", 1e3 * emulated_s))
        plotting.draw(plot_file, f"A pipeline over {rate / 1e6:g} Mbit/s", [Bars("Schedules", "ms a step", bars)])
    if as_json:
        print(
            json.dumps({"schedules": rows, "emulated_s": emulated_s, "emulated_off": emulated_s / ours - 1}, indent=2)
        )
        return
    title = (
        f"{plan['ranks']} ranks, {plan['stages']} stages, {rate / 1e6:g} Mbit/s, {plan['micro_batches']} micro-batches"
    )
    table = Table(
        [text("schedule"), number("step", "ms"), text("least – most"), number("over message-driven's")], title=title
    )
    for row in rows:
        spread = f"{row['least_s'] * 1e3:.0f} – {row['most_s'] * 1e3:.0f}"
        name = TITLES.get(row["schedule"], row["schedule"])
        name = f"message-driven, {plan['in_flight']} in flight" if name == MORE else name
        table.add(name, f"{row['step_s'] * 1e3:.0f}", spread, f"{row['step_s'] / ours:.2f}")
    table.add("emulate --schedule axonn", f"{emulated_s * 1e3:.0f}", "", f"{emulated_s / ours:.2f}")
    show(table)


if __name__ == "__main__":
    main()
