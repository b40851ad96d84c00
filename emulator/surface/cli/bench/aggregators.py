"""`switchml bench aggregators`: the same all-reduce through switchml's P4 switch, BMv2's, the software aggregator and
Gloo."""

import click

from emulator.surface.cli.options import TENSOR_SIZE, json_option, output, repeats_options
from switchml.cli.options import Count, option


@click.command()
@option("--ranks", "workers", type=Count(1, 32), default=4, help="Ranks, one process each.")
@click.option("--size", type=TENSOR_SIZE, default="1MiB", help="Bytes of the tensor.")
@repeats_options(5, text="Rounds, in each of which every aggregator has a turn.")
@option(
    "--aggregators",
    metavar="NAME,…",
    show_default="all that can run here",
    help="Aggregators to compare: p4, bmv2, p4-lanes, bmv2-lanes (one register per lane), software, gloo. "
    "The first is the baseline.",
)
@json_option
def aggregators(workers: int, size: int, repeats: int, warmup: int, aggregators: str | None, as_json: bool) -> None:
    """Time one all-reduce through every aggregator, alternating, in one run.

    p4 is switchml's P4 switch, bmv2 the original simple_switch, both with the program of p4/; the two with -lanes run
    its variant with one register for each lane. Every result is checked against the exact sum.
    """
    from emulator.lab.bench import aggregators as bench
    from emulator.lab.bench.allreduce import AGGREGATORS
    from emulator.lab.bench.ranks.reducing import GLOO
    from switchml.terminal import progress

    known = (*AGGREGATORS, GLOO)
    names = [name.strip() for name in aggregators.split(",")] if aggregators else what_can_run()
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r}: expected some of {', '.join(known)}", param_hint="--aggregators")
    with progress("all-reduces") as task:
        found = bench.measure(size, names, workers=workers, repeats=repeats, warmup=warmup, report=task.step)
    result = bench.as_json(found, workers)
    output(as_json, lambda: result, lambda: bench.print_table(result))


def what_can_run() -> list[str]:
    """All aggregators that can run on this machine."""
    from importlib.util import find_spec

    from switchml.control.p4 import bmv2

    real = [] if bmv2.missing_requirements() else ["bmv2", "bmv2-lanes"]
    return ["p4", *real[:1], "p4-lanes", *real[1:], "software", *(["gloo"] if find_spec("torch") else [])]
