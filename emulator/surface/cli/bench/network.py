"""`switchml bench network`: collectives over slow, lossy, long links between hosts in network namespaces, compared with
Gloo's ring over the same links.
"""

import itertools
import json
from typing import Any

import click

from emulator.lab.bench.sizes import ALL_REDUCE, COLLECTIVES, check_shares
from emulator.surface.cli.options import (
    COUNTS,
    against_option,
    json_option,
    link_options,
    payload_option,
    repeats_options,
    sparsity_options,
    wire_option,
)
from switchml.cli.options import SIZE, TIME, Count, option


@click.command()
@option("--hosts", "workers", type=COUNTS, default="4", help="Number of hosts; 2,4,8 measures each in turn.")
@click.option(
    "--ranks-per-host",
    type=COUNTS,
    default="1",
    help="Ranks per host; with 2 or more, hierarchical all-reduces are measured too (docs/hierarchy.md).",
)
@click.option(
    "--collective",
    type=click.Choice(COLLECTIVES),
    default=ALL_REDUCE,
    help="Collective to measure. fsdp: an all-gather and a reduce-scatter at once, each of --size bytes.",
)
@link_options("200mbit")
@option("--queue", type=SIZE, show_default="25 ms at the rate", help="Queue size of each link.")
@click.option("--size", type=SIZE, default="16MiB", help="Bytes of the tensor (float32).")
@wire_option
@payload_option
@option(
    "--slots",
    type=Count(0),
    default=0,
    show_default="the aggregator's choice",
    help="Maximum number of packets a rank has in flight, a power of two.",
)
@against_option
@sparsity_options
@repeats_options()
@option(
    "--time-limit",
    "time_budget_s",
    type=TIME,
    default="1h",
    show_default=True,
    help="Refuse experiments that would take longer.",
)
@option("--tcp", metavar="NAME", show_default="the machine's", help="Gloo's congestion control (cubic, bbr, …).")
@json_option
def network(
    workers: tuple[int, ...],
    ranks_per_host: tuple[int, ...],
    collective: str,
    loss: float | None,
    queue: float | None,
    size: float,
    against: str | None,
    density: tuple[float, ...] | None,
    time_budget_s: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Run all-reduces, or other collectives, over links of a given rate, delay and loss, compared with Gloo over the
    same links.

    Needs root and iproute2: each host is a network namespace with one link to a bridge, and the aggregator is at the
    bridge, in the place of a switch. tc limits each link, both ways; a helper process delays and loses frames.
    Everything is removed afterwards.
    """
    from emulator.lab.bench.allreduce import backends_of
    from emulator.lab.bench.network import measure as bench
    from emulator.lab.bench.network import report
    from emulator.lab.bench.ranks.reducing import NODE, SWITCHML
    from emulator.lab.bench.report import all_as_json
    from emulator.lab.bench.sparsity import Sparsity
    from emulator.networks.testbed.namespaces import check_rights
    from emulator.networks.testbed.star import LinkOptions
    from switchml.errors import ConfigError
    from switchml.tables import Stream
    from switchml.terminal import progress

    check_rights()
    if size < 4 or size % 4:
        raise ConfigError(f"size of {size:g} bytes: expected a multiple of 4 (float32)")
    if collective != ALL_REDUCE and (density or max(ranks_per_host) > 1):
        raise ConfigError(f"--collective {collective}: of dense tensors, with one rank a host")
    for count in workers:
        check_shares(int(size), collective, count)
    blocks = {name: options.pop(name) for name in ("block", "overlap", "mode")}
    rates = {name: options.pop(name) for name in ("rate_bps", "delay_s", "seed")}
    link = LinkOptions(loss=loss or 0.0, queue_bytes=int(queue or 0), **rates)
    experiments = []
    for count, ranks, share in itertools.product(workers, ranks_per_host, density or (None,)):
        sparsity = None if share is None else Sparsity(share, **blocks)
        backends = backends_of(sparsity, against)
        if ranks > 1 and sparsity is None:
            backends = (SWITCHML, NODE, *backends[1:])
        experiments.append(
            bench.Experiment(
                workers=count,
                ranks_per_host=ranks,
                link=link,
                size_bytes=int(size),
                collective=collective,
                sparsity=sparsity,
                backends=backends,
                **options,
            )
        )
    bench.check_size(experiments, time_budget_s)
    results = []
    stream = None
    for experiment in experiments:
        with progress(f"{experiment.workers} hosts") as task:
            results.append(bench.measure(experiment, task.step))
        if not as_json:
            if stream is None:
                columns = report.columns(experiment, max(ranks_per_host) > 1)
                stream = Stream(columns, report.title(experiment, results[0].tcp))
            for row in report.rows(results[-1]):
                stream.add(*row)
    if stream is not None:
        stream.close(*report.notes(experiment))
    else:
        click.echo(json.dumps(all_as_json([report.as_json(result) for result in results])))
