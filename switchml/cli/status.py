"""`switchml status`: the state of a running aggregator as tables, JSON or Prometheus metrics, once or continuously."""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from switchml.cli.options import option
from switchml.tables import wide_option

if TYPE_CHECKING:
    from switchml.terminal import Console

LATEST = 8
"""Maximum number of events below the live tables."""


@click.command()
@option(
    "--aggregator",
    "address",
    default="127.0.0.1:50099",
    show_default=True,
    metavar="HOST:PORT",
    help="The aggregator's control port.",
)
@click.option(
    "--tls-ca", metavar="FILE", help="Certificates (PEM) to trust; turns TLS on.  [default: $SWITCHML_TLS_CA]"
)
@click.option(
    "--secret",
    metavar="SECRET",
    help="Also show the jobs with this secret. Visible to others in `ps`, unlike the variable.  "
    "[default: $SWITCHML_SECRET, or the file $SWITCHML_SECRET_FILE]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (with --watch: one line per event).")
@click.option("--prometheus", is_flag=True, help="Print Prometheus' text format.")
@click.option("--watch", is_flag=True, help="Show a live table until Ctrl-C; in a pipe, a line for each event.")
@wide_option
def status(address: str, tls_ca: str | None, secret: str | None, as_json: bool, prometheus: bool, watch: bool) -> None:
    """Show a running aggregator's jobs, pools and counters.

    Jobs with a secret are shown to those who know it. Everybody sees totals, and jobs without a secret.
    """
    if prometheus and (as_json or watch):
        raise click.UsageError("--prometheus can't be combined with --json or --watch")

    from switchml.control import client

    reply = client.status(address, secret=secret, tls_ca=tls_ca)
    if watch:
        _watch(address, functools.partial(client.status, address, secret=secret, tls_ca=tls_ca), reply, as_json)
    elif prometheus:
        from switchml.control.metrics import as_text

        click.echo(as_text(reply), nl=False)
    elif as_json:
        from switchml.control.report import as_json as json_text

        click.echo(json_text(reply))
    else:
        show(reply)


def show(reply: Any) -> None:
    """Print a StatusReply as tables."""
    from switchml import tables
    from switchml.control.report import as_tables, head
    from switchml.terminal import say

    say(head(reply))
    for table in as_tables(reply):
        say()
        tables.show(table)


def _watch(address: str, ask: Callable[[], Any], reply: Any, as_json: bool) -> None:
    """Show live tables on a terminal; otherwise print a line for each event."""
    from switchml.control.channel import split_address
    from switchml.control.events import follow
    from switchml.control.wording import describe_at
    from switchml.terminal import Console, say

    host, port = split_address(reply.events_address)
    if host == "0.0.0.0":
        host, _ = split_address(address)
    if not as_json and (console := Console()).is_terminal:
        live(ask, reply, follow(host, port, tick_s=1.0), console)
        return
    say(f"following events at {host}:{port}, Ctrl-C ends", err=True)
    for event in follow(host, port):
        if as_json:
            click.echo(json.dumps(event))
        else:
            say(describe_at(event))


def live(ask: Callable[[], Any], reply: Any, events: Iterable[dict[str, Any]], console: Console) -> None:
    """Refresh the tables from `ask()` at each of `events` (empty ones are clock ticks), with the latest events below,
    until there are no more events or Ctrl-C."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from switchml.control.report import as_tables, head
    from switchml.control.wording import describe_at

    latest: deque[str] = deque(maxlen=LATEST)

    def screen(reply: Any) -> Group:
        parts: list[Any] = [head(reply), *as_tables(reply), *(["\n".join(latest)] if latest else [])]
        blank = [Text("")] * (len(parts) - 1)
        apart = [
            each for pair in zip(parts, [*blank, Text("\nCtrl-C ends", style="dim")], strict=True) for each in pair
        ]
        return Group(*apart)

    with Live(screen(reply), console=console, auto_refresh=False, vertical_overflow="visible") as shown:
        for event in events:
            if event and event.get("event") != "rates":  # rates are in the table
                latest.append(describe_at(event))
            shown.update(screen(ask()), refresh=True)
