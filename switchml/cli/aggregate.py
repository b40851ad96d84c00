"""`switchml aggregate`: runs the software aggregator with its control plane until a signal stops it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from switchml.cli import serving
from switchml.cli.options import Count, option

if TYPE_CHECKING:
    from switchml.aggregator.best_effort import BestEffortDataplane
    from switchml.aggregator.threads import ThreadedDataplane

_MAX_THREADS = 2
"""Default limit: more threads did not make all-reduces faster on two cores, and use memory and ports."""


@click.command()
@serving.options
@click.option("--data-port", default=48864, show_default=True, help="UDP port for data packets; 0 for any free port.")
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    help="Threads, each on a data port of its own from --data-port on. A job over UDP uses as many as its ranks have "
    "cores.  [default: 1, and on 2 cores or more a second one once such a job starts]",
)
@click.option(
    "--raw",
    metavar="INTERFACE",
    help="Serve protocol v1 on this network interface, for p4app-switchML's hosts (root; implies --v1).",
)
@click.option("--slots", type=Count(1), default=65536, show_default=True, help="Total slots of all jobs.")
@click.option(
    "--best-effort",
    "shared_slots",
    type=Count(1),
    metavar="N",
    help="Run a software switch in front of the aggregator, with N slots (a power of two) shared by all "
    "jobs: chunks without a slot are summed by the aggregator.  [default: each job has slots of its "
    "own]",
)
@option(
    "--loss",
    "loss_rate",
    default=0.0,
    metavar="P",
    help="Lose packets with this probability in each direction (for tests).",
)
@option(
    "--reorder", "reorder_rate", default=0.0, metavar="P", help="Delay packets behind later ones with this probability."
)
@option("--duplicate", "duplicate_rate", default=0.0, metavar="P", help="Deliver packets twice with this probability.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random choices behind the three rates.")
def aggregate(
    bind: str,
    data_port: int,
    threads: int | None,
    raw: str | None,
    slots: int,
    shared_slots: int | None,
    loss_rate: float,
    reorder_rate: float,
    duplicate_rate: float,
    seed: int,
    verbose: bool,
    **options: Any,
) -> None:
    """Run the software aggregator until SIGINT or SIGTERM.

    Agents join at the control port and send their packets to the data port, or through the tunnel port. The
    aggregator is reachable from other machines only if --bind allows it; TLS protects the control port, and only ranks
    with a job's secret (SWITCHML_SECRET) can join it.
    """
    with serving.until_stopped(verbose):
        common: dict[str, Any] = {
            "bind": bind,
            "port": data_port,
            "slot_capacity": slots,
            "loss_rate": loss_rate,
            "reorder_rate": reorder_rate,
            "duplicate_rate": duplicate_rate,
            "seed": seed,
        }
        dataplane: BestEffortDataplane | ThreadedDataplane
        if shared_slots is not None:
            if threads is not None or raw is not None or options["v1"]:
                raise click.UsageError(
                    "--best-effort has one thread a tier and no v1: leave out --threads, --raw, --v1"
                )
            from switchml.aggregator.best_effort import BestEffortDataplane

            dataplane = BestEffortDataplane(shared_slots=shared_slots, **common)
        else:
            from switchml.aggregator.threads import ThreadedDataplane

            most_threads = threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))
            dataplane = ThreadedDataplane(threads=threads or 1, most_threads=most_threads, raw=raw, **common)
        try:
            dataplane.start()
            data = ",".join("{}:{}".format(*at) for at in dataplane.addresses)
            options["v1"] = options["v1"] or raw is not None
            serving.serve(dataplane, "switchml aggregator", data, bind=bind, **options)
        finally:
            dataplane.stop()
