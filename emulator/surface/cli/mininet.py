"""`switchml mininet`: experiments on Mininet networks of hosts, links and switches, with real agents."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emulator.surface.cli.options import (
    json_option,
    link_options,
    output,
    payload_option,
    plot_option,
    repeats_options,
    wire_option,
)
from switchml.cli.extras import require
from switchml.cli.options import SIZE, Count, note, option
from switchml.cli.output_options import report_when_written

if TYPE_CHECKING:
    from emulator.lab.bench.mininet.experiments import MininetPlan, Row
    from host_agent.training.runner import Comparison


class Capture(click.ParamType):
    """An argument LINK=FILE."""

    name = "LINK=FILE"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        link, separator, file = value.partition("=")
        if not separator or not link or not file:
            self.fail(f"{value!r}: expected LINK=FILE, as in h1-s1=h1.pcap", param, ctx)
        report_when_written(ctx, Path(file))
        return link, Path(file).absolute()


@click.command()
@click.option(
    "--experiment",
    type=click.Choice(["allreduce", "scaling", "loss", "slots", "two-racks", "train"]),
    default="allreduce",
    help="allreduce: with all hosts; scaling: with 2, 3, … of them; loss and slots: with more and more of either; "
    "two-racks: switches below a switch; train: a small model, as `switchml train` does.",
)
@option("--hosts", type=Count(1), default=4, help="Number of hosts, one rank each; at most 32.")
@link_options(None, "what processors keep up with, at most 100mbit")
@click.option(
    "--aggregator",
    type=click.Choice(["p4", "software", "bmv2", "none"]),
    default="p4",
    help="p4 (our switch), software (`switchml aggregate` at a bridge), bmv2 (simple_switch from PATH), or none: "
    "Gloo's ring alone.",
)
@click.option("--size", type=SIZE, default="4MiB", help="Bytes of the tensor (float32).")
@payload_option
@wire_option
@option("--slots", type=Count(0), default=0, show_default="what the links hold", help="Slots of a job, a power of two.")
@click.option(
    "--racks",
    type=Count(0),
    default=0,
    show_default="2 with two-racks, else 1",
    help="Number of racks, each with a leaf switch; with --experiment two-racks or train.",
)
@click.option("--steps", type=Count(1), default=100, help="Steps of each training, with --experiment train.")
@click.option(
    "--parallel",
    type=click.Choice(["ddp", "fsdp"]),
    default="ddp",
    help="Parallelism of the model, with --experiment train.",
)
@repeats_options(text="Measured repeats of each all-reduce.")
@click.option(
    "--pcap",
    "captures",
    type=Capture(),
    multiple=True,
    help="Write the packets of a link to a file; may be repeated. Links are h1-s1 and so on; with racks h1-r1, r1-s1.",
)
@plot_option
@json_option
def mininet(size: float, rate_bps: float | None, plot_file: Path | None, as_json: bool, **options: Any) -> None:
    """Run an experiment on hosts, links and switches built with Mininet: real agents in the hosts, a real switch
    between them, compared with Gloo's ring over the same links.

    Needs root and Mininet (Debian: mininet). Everything runs in namespaces of the command, which are removed whenever
    and however it ends.
    """
    from emulator.lab.bench.mininet import experiments, report
    from emulator.networks.testbed import world

    plan = experiments.MininetPlan(size_bytes=int(size), **options | ({"rate_bps": rate_bps} if rate_bps else {}))
    if plan.experiment == "train":
        require("torch")
    experiments.check(plan)
    if plan.experiment == "train":
        _train(plan, rate_bps is None, plot_file, as_json)
        return
    plan, result = world.call(partial(_measure, plan, rate_bps is None, as_json))
    if plot_file is not None:
        report.draw(plan, result, plot_file)
    if as_json:
        click.echo(json.dumps(report.as_json(plan, result)))


def _measure(plan: MininetPlan, is_free: bool, as_json: bool) -> tuple[MininetPlan, list[Row]]:
    """Inside a world: measure, and print each row as soon as it is measured. `is_free`: the rate is to be chosen."""
    from emulator.lab.bench.mininet import experiments, report
    from switchml.tables import Stream
    from switchml.terminal import progress

    if is_free:
        plan = _at_a_rate(plan)
    has_trunks = plan.experiment == "two-racks"
    stream = None if as_json else Stream(report.columns(plan, has_trunks), report.title(plan))

    def on_row(row: Row) -> None:
        if stream is not None:
            stream.add(*report.cells(plan, row, has_trunks))

    with progress("mininet") as task:
        rows = experiments.run(plan, task.step, on_row)
    if stream is not None:
        stream.close(report.note(plan, has_trunks))
    for line in experiments.warnings(plan, rows):
        note(line)
    return plan, rows


def _at_a_rate(plan: MininetPlan) -> MininetPlan:
    """The plan with a link rate that this machine can sustain."""
    from emulator.lab.bench.mininet import experiments
    from switchml.terminal import progress

    with progress("measuring this machine") as task:
        plan = experiments.with_sustainable_rate(plan, task.step)
    note(f"links of {plan.rate_bps / 1e6:g}mbit, which this machine's processors keep up with (--rate sets another)")
    return plan


def _train_inside(plan: MininetPlan, is_free: bool) -> Comparison:
    from emulator.lab.bench.mininet import train
    from switchml.terminal import progress

    if is_free:
        plan = _at_a_rate(plan)
    with progress("mininet") as task:
        return train.run(plan, task.step)


def _train(plan: MininetPlan, is_free: bool, plot_file: Path | None, as_json: bool) -> None:
    from emulator.lab.bench.mininet import train
    from emulator.networks.testbed import world
    from host_agent.training import report

    comparison = world.call(partial(_train_inside, plan, is_free))
    settings = train.settings_of(plan)
    if plot_file is not None:
        report.plot(comparison, plot_file)
    output(
        as_json,
        lambda: report.as_json(comparison, settings, plan.aggregator),
        lambda: report.print_table(comparison, settings, plan.aggregator),
    )
