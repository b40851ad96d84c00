"""`switchml aggregate`: the software aggregator with its control plane, until it is told to stop."""

from __future__ import annotations

import click

from switchml.cli import serving


@click.command()
@serving.options
@click.option(
    "--data-port", default=48864, show_default=True, help="Where packets are added up (UDP); 0 for any free port."
)
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Threads, each on a data port of its own from --data-port on; a job that lists this aggregator k times uses "
    "k of them.",
)
@click.option("--slots", default=65536, show_default=True, help="Slots that all jobs together may have.")
@click.option("--loss-rate", default=0.0, metavar="P", help="Lose packets with this probability, each way (for tests).")
@click.option("--reorder-rate", default=0.0, metavar="P", help="Delay packets behind later ones with this probability.")
@click.option("--duplicate-rate", default=0.0, metavar="P", help="Deliver packets twice with this probability.")
@click.option("--seed", default=0, show_default=True, help="Of the random choices behind the three rates.")
def aggregate(
    bind: str,
    data_port: int,
    threads: int,
    slots: int,
    loss_rate: float,
    reorder_rate: float,
    duplicate_rate: float,
    seed: int,
    verbose: bool,
    **options,
) -> None:
    """Run the software aggregator until SIGINT or SIGTERM.

    Agents join at the control port and send their packets to the data port, or through the tunnel port. Nothing is
    reachable from other machines unless --bind says so; TLS protects the control port, and a job's secret
    (SWITCHML_SECRET) keeps strangers out of it.
    """
    with serving.told_to_stop(verbose) as stop:
        from switchml.aggregator.threads import ThreadedDataplane

        dataplane = ThreadedDataplane(
            bind=bind,
            port=data_port,
            threads=threads,
            slot_capacity=slots,
            loss_rate=loss_rate,
            reorder_rate=reorder_rate,
            duplicate_rate=duplicate_rate,
            seed=seed,
        )
        dataplane.start()
        try:
            data = ",".join("{}:{}".format(*at) for at in dataplane.addresses)
            serving.serve(dataplane, "switchml aggregator", data, stop, bind=bind, **options)
        finally:
            dataplane.stop()
