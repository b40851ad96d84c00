"""Common part of `switchml aggregate` and `switchml control`: serves a control plane for a data plane until a signal
stops it."""

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

import click

from switchml.cli.options import SECONDS, Count
from switchml.runtime.raising import acknowledge, is_raised, raise_until_handled, wait_for

_OPTIONS = (
    click.option(
        "--bind", default="127.0.0.1", show_default=True, metavar="IP", help="Address to listen on; 0.0.0.0 for all."
    ),
    click.option(
        "--control-port", default=50099, show_default=True, help="Port where agents join (gRPC); 0 for any free port."
    ),
    click.option(
        "--events-port",
        type=int,
        help="Port of the live events (ZeroMQ).  [default: control port + 1; 0 for any free port]",
    ),
    click.option(
        "--tunnel",
        is_flag=True,
        help="Open a tunnel for packets over ZeroMQ (--transport zmq), where networks drop UDP.  [default: off]",
    ),
    click.option(
        "--tunnel-port",
        type=int,
        help="Port of the tunnel, which opens it, too.  [default: control port + 2; 0 for any free port]",
    ),
    click.option(
        "--metrics-port", type=int, help="Port of Prometheus metrics over HTTP; 0 for any free port.  [default: off]"
    ),
    click.option(
        "--peer-timeout",
        "peer_timeout_s",
        type=SECONDS,
        default="10s",
        show_default=True,
        help="Silence after which an agent counts as lost.",
    ),
    click.option(
        "--join-timeout",
        "join_timeout_s",
        type=SECONDS,
        default="60s",
        show_default=True,
        help="Time limit for all ranks of a job to join.",
    ),
    click.option(
        "--v1", is_flag=True, help="Serve v1 too, for p4app-switchML's hosts: it has no secrets (docs/security.md)."
    ),
    click.option(
        "--client-ranks",
        default=1024,
        show_default=True,
        type=Count(1),
        help="Quota of ranks per client. A client is an address, or a user on this machine's loopback.",
    ),
    click.option(
        "--client-jobs",
        default=64,
        show_default=True,
        type=Count(1),
        help="Quota of jobs, and v1 sessions, that one client has started.",
    ),
    click.option(
        "--client-slots",
        default=0.5,
        show_default=True,
        metavar="SHARE",
        type=click.FloatRange(0, 1, min_open=True),
        help="Quota of slots per client, as a share of the free ones; 1 for all.",
    ),
    click.option(
        "--client-connections",
        default=64,
        show_default=True,
        type=Count(1),
        help="Quota of control connections per client, besides those of its ranks.",
    ),
    click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM) of the control port."),
    click.option("--tls-key", metavar="FILE", help="Key (PEM) of that certificate."),
    click.option("--verbose", "-v", is_flag=True, help="Log every change of a job to stderr."),
    click.option(
        "--json", "as_json", is_flag=True, help="When ready, print the addresses as one JSON object on stdout."
    ),
)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every control plane, which `serve` accepts, to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class _Stopped(BaseException):
    """Raised by a signal."""


@contextlib.contextmanager
def until_stopped(verbose: bool) -> Iterator[None]:
    """End this block on SIGINT or SIGTERM, at any point and without an error; its cleanup is not interrupted by further
    signals. Also sets up logging. Enter it before importing grpc."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the messages of this program cover ports and handshakes
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")
    try:
        _on_signals(_stop)
        yield
    except BaseException as error:
        if not is_raised(error):
            raise
    finally:
        acknowledge()


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _on_signals(lambda *_: None)
    raise_until_handled(_Stopped())


def _on_signals(do: Callable[[int, FrameType | None], Any]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, do)


def say_ready(what: str, addresses: Mapping[str, str | None]) -> None:
    """Report on stderr that a service is ready."""
    from switchml.terminal import say

    say(f"{what} ready: " + ", ".join(f"{name} {at}" for name, at in addresses.items() if at), err=True)


def serve(
    dataplane: Any,
    what: str,
    data: str,
    *,
    as_json: bool,
    client_ranks: int,
    client_jobs: int,
    client_slots: float,
    client_connections: int,
    **controller_options: Any,
) -> None:
    """Run the control plane of a started data plane until a signal. `what` is its name and `data` its data address, for
    the ready message; `controller_options` are the remaining values of `options`."""
    from switchml.control.quotas import Quotas
    from switchml.control.server import Controller

    quotas = Quotas(ranks=client_ranks, jobs=client_jobs, slot_share=client_slots, connections=client_connections)
    controller = Controller(dataplane, quotas=quotas, **controller_options)
    try:
        ports = controller.start()
        open_ports = {name: "{}:{}".format(*at) if at else None for name, at in vars(ports).items()}
        addresses = open_ports | {"data": data}
        if as_json:
            click.echo(json.dumps({**addresses, "pid": os.getpid()}))
        say_ready(what, addresses)
        wait_for(threading.Event())
    finally:
        controller.stop()
