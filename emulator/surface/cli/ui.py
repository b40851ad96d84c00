"""`switchml ui`: the emulator in the browser."""

import secrets

import click

from switchml.control.secret import is_beyond_loopback
from switchml.errors import ConfigError
from switchml.runtime.raising import acknowledge


@click.command()
@click.option(
    "--host", default="127.0.0.1", help="Address to serve on; any but loopback is reachable from other machines."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="TCP port; 0 for any free port.")
@click.option(
    "--aggregator",
    default="127.0.0.1:50099",
    metavar="HOST:PORT",
    help="Control port of the aggregator whose state is shown.",
)
@click.option(
    "--token",
    envvar="SWITCHML_UI_TOKEN",
    show_envvar=True,
    help="Token that opens the page.  [default: a new one each time]",
)
def ui(host: str, port: int, aggregator: str, token: str | None) -> None:
    """Serve the emulator in the browser: controls for model, cluster and splitting; time, memory and timeline; sweeps
    as curves; the command line that gives the same; the state of an aggregator.

    Prints the address to open. Requests without its token are refused.
    """
    from emulator.surface.ui.server import Server

    if token is not None and len(token) < 16:
        raise ConfigError(f"the token has {len(token)} characters; expected at least 16")
    try:
        server = Server(host, port, token or secrets.token_urlsafe(24), aggregator)
    except OSError as error:
        raise ConfigError(f"can't serve on {host}:{port}: {error.strerror or error}") from None
    with server:
        click.echo(f"open http://{host}:{server.server_port}/?token={server.token}\nCtrl-C ends")
        if is_beyond_loopback(host):
            click.echo(f"whoever reaches {host} and has the token can use this; it travels unencrypted", err=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            acknowledge()
            click.echo("", err=True)
