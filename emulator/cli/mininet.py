"""`switchml mininet`: experiments on networks of hosts, links and switches that Mininet builds, with real agents."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from emulator.cli.bench.network import RATE, SIZE, TIME


class Capture(click.ParamType):
    """LINK=FILE."""

    name = "LINK=FILE"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        link, separator, file = value.partition("=")
        if not separator or not link or not file:
            self.fail(f"{value!r}: expected LINK=FILE, as in h1-s1=h1.pcap", param, ctx)
        return link, Path(file).absolute()


@click.command()
@click.option(
    "--experiment",
    type=click.Choice(["allreduce", "scaling", "loss", "slots", "two-racks", "train"]),
    default="allreduce",
    show_default=True,
    help="allreduce: at all hosts; scaling: at 2, 3, …; loss: with more and more of it; slots: with more and more; "
    "two-racks: switches below a switch; train: a small model, as `switchml train` does.",
)
@click.option("--hosts", default=4, show_default=True, help="Workers, each in a host of its own; at most 32.")
@click.option("--rate", type=RATE, default="100mbit", show_default=True, help="Of each link, both ways.")
@click.option(
    "--aggregator",
    type=click.Choice(["p4", "software", "bmv2", "none"]),
    default="p4",
    show_default=True,
    help="What sums: p4 (our switch), software (`switchml aggregate` at a bridge), bmv2 (simple_switch from PATH), or "
    "none, and Gloo's ring alone.",
)
@click.option(
    "--loss",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    help="Share of frames that each link loses, each way.  [default: 0]",
)
@click.option("--delay", type=TIME, default="0us", show_default=True, help="Of each link, each way.")
@click.option("--size", type=SIZE, default="4M", show_default=True, help="Of the tensor (float32), in bytes.")
@click.option(
    "--payload", type=click.Choice(["256", "1024"]), default="1024", show_default=True, help="Bytes in a packet."
)
@click.option("--wire", type=click.Choice(["int32", "int16", "int8"]), default="int32", show_default=True)
@click.option(
    "--slots", type=click.IntRange(0), default=0, help="Of a job, a power of two.  [default: what the links hold]"
)
@click.option("--racks", default=2, show_default=True, help="Of --experiment two-racks.")
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True, help="Of --experiment train.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Of each all-reduce.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Repeats that do not count.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Decides which frames are lost.")
@click.option(
    "--pcap",
    "captures",
    type=Capture(),
    multiple=True,
    help="Write what passes a link to a file; may be repeated. Links are h1-s1 and so on; with racks h1-r1, r1-s1.",
)
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw it: .png (needs matplotlib) or .html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of the table.")
def mininet(
    experiment: str,
    rate: float,
    delay: float,
    size: float,
    payload: str,
    captures: tuple[tuple[str, Path], ...],
    plot_file: Path | None,
    as_json: bool,
    **options,
) -> None:
    """Run an experiment on hosts, links and switches that Mininet builds: real agents in the hosts, a real switch
    between them, and Gloo's ring over the same links to compare with.

    Needs root and Mininet (Debian: mininet). Everything happens in namespaces of the command's own, and nothing of it
    remains, however it ends.
    """
    from emulator.bench.mininet import experiments
    from emulator.bench.mininet import plot as mininet_plot
    from emulator.bench.mininet import report as mininet_report
    from emulator.testbed import world

    plan = experiments.Plan(
        experiment=experiment,
        rate_bps=rate,
        delay_s=delay,
        size_bytes=int(size),
        payload_bytes=int(payload),
        captures=captures,
        **options,
    )
    experiments.check(plan)
    if plot_file is not None:
        mininet_plot.require(plot_file)
    if experiment == "train":
        _train(plan, plot_file, as_json)
        return
    result = world.call(partial(experiments.run, plan, partial(click.echo, err=True)))
    if plot_file is not None:
        mininet_plot.draw(plan, result, plot_file)
    if as_json:
        click.echo(json.dumps(mininet_report.as_json(plan, result)))
    else:
        mininet_report.print_table(plan, result)


def _train(plan, plot_file: Path | None, as_json: bool) -> None:
    from emulator.bench.mininet import train as mininet_train
    from emulator.testbed import world
    from host_agent.training import report

    comparison = world.call(partial(mininet_train.run, plan, partial(click.echo, err=True)))
    settings = mininet_train.settings_of(plan)
    if plot_file is not None:
        report.plot(comparison, plot_file)
    if as_json:
        click.echo(json.dumps(report.as_json(comparison, settings, plan.aggregator)))
    else:
        report.print_table(comparison, settings, plan.aggregator)
