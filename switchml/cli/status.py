"""`switchml status`: the state of a running aggregator, for people, for programs or for Prometheus, once or
continuously.
"""

from typing import Any

import click


@click.command()
@click.option(
    "--address",
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
    help="Show the jobs with this secret, too. Others see it in `ps`, unlike the variable.  "
    "[default: $SWITCHML_SECRET]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (with --watch: one line per event).")
@click.option("--prometheus", is_flag=True, help="Print Prometheus' text format.")
@click.option("--watch", is_flag=True, help="Follow events until interrupted.")
def status(address: str, tls_ca: str | None, secret: str | None, as_json: bool, prometheus: bool, watch: bool) -> None:
    """Show a running aggregator's jobs, pools and counters.

    Jobs with a secret are shown to those who know it. Everybody sees totals, and jobs without a secret.
    """
    if prometheus and (as_json or watch):
        raise click.UsageError("--prometheus can't be combined with --json or --watch")

    from switchml.control import client

    reply = client.status(address, secret=secret, tls_ca=tls_ca)
    if watch:
        _watch(address, reply, as_json)
    elif prometheus:
        from switchml.control.metrics import as_text

        click.echo(as_text(reply), nl=False)
    elif as_json:
        from switchml.control.report import as_json as json_text

        click.echo(json_text(reply))
    else:
        from switchml.control.report import as_tables
        from switchml.terminal import Console

        Console().print(*as_tables(reply), sep="\n")


def _watch(address: str, reply: Any, as_json: bool) -> None:
    import json

    from switchml.control.channel import split_address
    from switchml.control.events import follow
    from switchml.control.wording import describe_at

    host, port = split_address(reply.events_address)
    if host == "0.0.0.0":
        host, _ = split_address(address)
    click.echo(f"following events at {host}:{port}, Ctrl-C ends", err=True)
    for event in follow(host, port):
        click.echo(json.dumps(event) if as_json else describe_at(event))
