"""What `switchml aggregate` and `switchml control` have in common: a control plane around a data plane, until it is
told to stop."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--bind", default="127.0.0.1", show_default=True, metavar="IP", help="Address to listen on; 0.0.0.0 for all."
    ),
    click.option(
        "--control-port", default=50099, show_default=True, help="Where agents join (gRPC); 0 for any free port."
    ),
    click.option(
        "--events-port", type=int, help="Live events (ZeroMQ).  [default: control port + 1; 0 for any free port]"
    ),
    click.option(
        "--tunnel-port",
        type=int,
        help="Packets over ZeroMQ, for networks that drop UDP.  [default: control port + 2; 0 for any free port]",
    ),
    click.option(
        "--metrics-port", type=int, help="Serve Prometheus metrics over HTTP here; 0 for any free port.  [default: off]"
    ),
    click.option(
        "--peer-timeout",
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a silent agent counts as alive.",
    ),
    click.option(
        "--join-timeout", default=60.0, show_default=True, metavar="SECONDS", help="How long a job may take to fill."
    ),
    click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM) of the control port."),
    click.option("--tls-key", metavar="FILE", help="Key (PEM) of that certificate."),
    click.option("--verbose", "-v", is_flag=True, help="Log every change of a job to stderr."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print the addresses as one JSON object on stdout when ready."
    ),
)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every control plane; `serve` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextlib.contextmanager
def told_to_stop(verbose: bool) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; sets up logging, too. To be entered before grpc is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it has to say about ports and handshakes we say ourselves
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    yield stop


def serve(
    dataplane: Any,
    what: str,
    data: str,
    stop: threading.Event,
    *,
    bind: str,
    control_port: int,
    events_port: int | None,
    tunnel_port: int | None,
    metrics_port: int | None,
    peer_timeout: float,
    join_timeout: float,
    tls_cert: str | None,
    tls_key: str | None,
    as_json: bool,
    **_: object,
) -> None:
    """Run the control plane of a data plane that has been started, until `stop` is set. `what` it is and where its
    `data` go is told to who started us."""
    from switchml.control.server import Controller

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
            "data": data,
            "events": "{}:{}".format(*found.events),
            "tunnel": "{}:{}".format(*found.tunnel) if found.tunnel else None,
            "metrics": "{}:{}".format(*found.metrics) if found.metrics else None,
        }
        if as_json:
            click.echo(json.dumps({**addresses, "pid": os.getpid()}))
        click.echo(f"{what} ready: " + ", ".join(f"{name} {at}" for name, at in addresses.items() if at), err=True)
        stop.wait()
    finally:
        controller.stop()
