"""`switchml control`: runs the control plane of a P4 switch until a signal stops it."""

import contextlib
from pathlib import Path
from typing import Any

import click

from switchml.cli import serving
from switchml.cli.options import option


def _station(text: str) -> tuple[int, int]:
    """Parse MAC=PORT into (MAC address, port)."""
    from switchml.control.mac import parse_mac
    from switchml.errors import ConfigError

    mac, _, port = text.partition("=")
    if not port.isdecimal():
        raise click.BadParameter(f"{text!r}: expected MAC=PORT, like 02:00:00:00:00:01=1")
    try:
        return parse_mac(mac), int(port)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def _link(text: str) -> tuple[int, str]:
    """Parse PORT=packet:INTERFACE or PORT=udp:ADDRESS:PORT into (port, link)."""
    port, _, where = text.partition("=")
    if not port.isdecimal() or not where.startswith(("packet:", "udp:")):
        raise click.BadParameter(f"{text!r}: expected PORT=packet:INTERFACE or PORT=udp:ADDRESS:PORT")
    return int(port), where


@click.command()
@click.option(
    "--switch",
    default="p4",
    show_default=True,
    metavar="SWITCH",
    help="thrift://HOST:PORT or thrift:///PATH of a switch that runs p4/switchml.p4, p4runtime://HOST:PORT of one to "
    "run it on, or what to start: p4 (ours, without root) or bmv2 (simple_switch from PATH, needs root).",
)
@click.option("--program", default="switchml", show_default=True, help="Compiled program to run; not for thrift://.")
@click.option("--ports", default=4, show_default=True, type=click.IntRange(1, 32), help="Number of bmv2's ports.")
@click.option("--switch-address", metavar="IP", help="IPv4 address that the switch answers for.  [default: 10.0.0.254]")
@click.option("--switch-mac", metavar="MAC", help="Its MAC address.  [default: 02:00:00:00:00:fe]")
@click.option(
    "--station",
    "stations",
    type=_station,
    metavar="MAC=PORT",
    multiple=True,
    help="Port that a host is attached to; may be repeated.  [default: what the switch has learned]",
)
@click.option(
    "--link",
    "links",
    type=_link,
    metavar="PORT=LINK",
    multiple=True,
    help="Port to lend to a rank on this machine; may be repeated.",
)
@click.option(
    "--port", "known_ports", type=int, multiple=True, help="Port of a switch at p4runtime://; may be repeated."
)
@click.option(
    "--udp-bind",
    metavar="IP",
    help="Address at which our switch opens UDP ports for ranks without an interface.  [default: 127.0.0.1]",
)
@click.option(
    "--tree",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of a tree of switches, in place of --switch; docs/mininet.md has the format.",
)
@option(
    "--loss",
    "loss_rate",
    default=0.0,
    metavar="P",
    help="Have the switch lose packets at each port with this probability, in each direction.",
)
@serving.options
def control(
    switch: str,
    program: str,
    ports: int,
    switch_address: str | None,
    switch_mac: str | None,
    stations: tuple[tuple[int, int], ...],
    links: tuple[tuple[int, str], ...],
    known_ports: tuple[int, ...],
    udp_bind: str | None,
    tree: Path | None,
    loss_rate: float,
    verbose: bool,
    **options: Any,
) -> None:
    """Run the control plane of a P4 switch until SIGINT or SIGTERM.

    Agents join at the control port, as they do at `switchml aggregate`; their packets are summed by the switch, which
    is programmed when a job starts and when it ends. A restarted switch is reprogrammed.
    """
    with serving.until_stopped(verbose), contextlib.ExitStack() as cleanup:
        from switchml.control.mac import parse_mac
        from switchml.control.p4 import dataplane as p4_dataplane
        from switchml.control.p4.processes import OurSwitch, SimpleSwitch, connect
        from switchml.control.p4.tree import P4TreeDataplane, read_tree

        dataplane: p4_dataplane.P4Dataplane | P4TreeDataplane
        if tree is not None:
            dataplane = P4TreeDataplane(read_tree(tree), p4_dataplane.udp_window_bytes())
        else:
            mac = parse_mac(switch_mac) if switch_mac else p4_dataplane.SWITCH_MAC
            process: OurSwitch | SimpleSwitch | None = None
            if switch == "p4":
                process = OurSwitch(program)
            elif switch == "bmv2":
                process = SimpleSwitch(ports, program)
            if process is not None:
                cleanup.callback(process.stop)
            is_ours = switch == "p4" or (process is None and udp_bind is not None)
            dataplane = p4_dataplane.P4Dataplane(
                process.connect() if process is not None else connect(switch, program),
                address=switch_address or p4_dataplane.SWITCH_ADDRESS,
                mac=mac,
                links=process.links if process is not None else dict(links),
                ports=known_ports,
                stations=dict(stations),
                udp_bind=(udp_bind or "127.0.0.1") if is_ours else "",
                loss_rate=loss_rate,
                window_bytes=p4_dataplane.BMV2_WINDOW_BYTES if switch == "bmv2" else p4_dataplane.udp_window_bytes(),
            )
        cleanup.callback(dataplane.stop)
        dataplane.start()
        serving.serve(dataplane, "switchml control", dataplane.where, **options)
