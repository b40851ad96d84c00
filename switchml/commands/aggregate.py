"""`switchml aggregate`: the software aggregator with its control plane, until it is told to stop."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--bind", default="127.0.0.1", show_default=True, metavar="IP", help="Address to listen on; 0.0.0.0 for all."
)
@click.option("--control-port", default=50099, show_default=True, help="Where agents join (gRPC); 0 for any free port.")
@click.option(
    "--data-port", default=48864, show_default=True, help="Where packets are added up (UDP); 0 for any free port."
)
@click.option("--events-port", type=int, help="Live events (ZeroMQ).  [default: control port + 1; 0 for any free port]")
@click.option(
    "--tunnel-port",
    type=int,
    help="Packets over ZeroMQ, for networks that drop UDP.  [default: control port + 2; 0 for any free port]",
)
@click.option(
    "--metrics-port", type=int, help="Serve Prometheus metrics over HTTP here; 0 for any free port.  [default: off]"
)
@click.option(
    "--threads",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Threads, each on a data port of its own from --data-port on; a job that lists this aggregator k times uses k.",
)
@click.option("--slots", default=65536, show_default=True, help="Slots that all jobs together may have.")
@click.option(
    "--peer-timeout",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a silent agent counts as alive.",
)
@click.option(
    "--join-timeout", default=60.0, show_default=True, metavar="SECONDS", help="How long a job may take to fill."
)
@click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM) of the control port.")
@click.option("--tls-key", metavar="FILE", help="Key (PEM) of that certificate.")
@click.option("--loss-rate", default=0.0, metavar="P", help="Lose packets with this probability, each way (for tests).")
@click.option("--reorder-rate", default=0.0, metavar="P", help="Delay packets behind later ones with this probability.")
@click.option("--duplicate-rate", default=0.0, metavar="P", help="Deliver packets twice with this probability.")
@click.option("--seed", default=0, show_default=True, help="Of the random choices behind the three rates.")
@click.option("--verbose", "-v", is_flag=True, help="Log every change of a job to stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON object on stdout when ready.")
def aggregate(
    bind: str,
    control_port: int,
    data_port: int,
    events_port: int | None,
    tunnel_port: int | None,
    metrics_port: int | None,
    threads: int,
    slots: int,
    peer_timeout: float,
    join_timeout: float,
    tls_cert: str | None,
    tls_key: str | None,
    loss_rate: float,
    reorder_rate: float,
    duplicate_rate: float,
    seed: int,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the software aggregator until SIGINT or SIGTERM.

    Agents join at the control port and send their packets to the data port, or through the tunnel port. Nothing is
    reachable from other machines unless --bind says so; TLS protects the control port, and a job's secret
    (SWITCHML_SECRET) keeps strangers out of it.
    """
    import json
    import logging
    import os
    import signal
    import threading

    # Before grpc is imported: what it has to say about ports and handshakes we say ourselves.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    from switchml.aggregator_threads import ThreadedDataplane
    from switchml.controller.server import Controller

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

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
        controller = Controller(
            dataplane,
            bind=bind,
            control_port=control_port,
            events_port=events_port,
            tunnel_port=tunnel_port,
            metrics_port=metrics_port,
            peer_timeout_s=peer_timeout,
            join_timeout_s=join_timeout,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        found = controller.start()
        try:
            addresses = {
                "control": "{}:{}".format(*found.control),
                "data": ",".join("{}:{}".format(*at) for at in dataplane.addresses),
                "events": "{}:{}".format(*found.events),
                "tunnel": "{}:{}".format(*found.tunnel),
                "metrics": "{}:{}".format(*found.metrics) if found.metrics else None,
            }
            if as_json:
                click.echo(json.dumps({**addresses, "pid": os.getpid()}))
            click.echo(
                "switchml aggregator ready: " + ", ".join(f"{name} {at}" for name, at in addresses.items() if at),
                err=True,
            )
            stop.wait()
        finally:
            controller.stop()
    finally:
        dataplane.stop()
