"""`switchml control`: the control plane of a P4 switch, until it is told to stop."""

from __future__ import annotations

from pathlib import Path

import click

from switchml.cli import serving


class Station(click.ParamType):
    """MAC=PORT."""

    name = "MAC=PORT"

    def convert(self, value, param, ctx):
        from switchml.control.mac import parse_mac
        from switchml.errors import ConfigError

        mac, _, port = value.partition("=")
        if not port.isdecimal():
            self.fail(f"{value!r}: expected MAC=PORT, like 02:00:00:00:00:01=1", param, ctx)
        try:
            return parse_mac(mac), int(port)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class PortLink(click.ParamType):
    """PORT=packet:INTERFACE or PORT=udp:ADDRESS:PORT."""

    name = "PORT=LINK"

    def convert(self, value, param, ctx):
        port, _, where = value.partition("=")
        if not port.isdecimal() or not where.startswith(("packet:", "udp:")):
            self.fail(f"{value!r}: expected PORT=packet:INTERFACE or PORT=udp:ADDRESS:PORT", param, ctx)
        return int(port), where


@click.command()
@click.option(
    "--switch",
    default="p4",
    show_default=True,
    metavar="SWITCH",
    help="thrift://HOST:PORT of a switch that runs p4/switchml.p4, p4runtime://HOST:PORT of one that is to run it, or "
    "what to start: p4 (our switch, without root) or bmv2 (simple_switch from PATH, root).",
)
@click.option("--program", default="switchml", show_default=True, help="The compiled program; not for thrift://.")
@click.option("--ports", default=4, show_default=True, type=click.IntRange(1, 32), help="Ports that bmv2 gets.")
@click.option("--switch-address", metavar="IP", help="IPv4 address that the switch answers for.  [default: 10.0.0.254]")
@click.option("--switch-mac", metavar="MAC", help="Its MAC address.  [default: 02:00:00:00:00:fe]")
@click.option(
    "--station",
    "stations",
    type=Station(),
    multiple=True,
    help="Port of a host; may be repeated.  [default: what the switch has learned]",
)
@click.option(
    "--link",
    "links",
    type=PortLink(),
    multiple=True,
    help="A port that a rank on this machine may be lent; may be repeated.",
)
@click.option(
    "--port", "told_ports", type=int, multiple=True, help="A port of a switch at p4runtime://; may be repeated."
)
@click.option(
    "--udp-bind",
    metavar="IP",
    help="Where the switch opens UDP ports for ranks without an interface (our switch only).  [default: 127.0.0.1]",
)
@click.option(
    "--tree",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Several switches that aggregate below each other, in place of --switch; docs/mininet.md has the format.",
)
@click.option("--loss-rate", default=0.0, metavar="P", help="Have the switch lose packets at each port, each way.")
@serving.options
def control(
    switch: str,
    program: str,
    ports: int,
    switch_address: str | None,
    switch_mac: str | None,
    stations: tuple[tuple[int, int], ...],
    links: tuple[tuple[int, str], ...],
    told_ports: tuple[int, ...],
    udp_bind: str | None,
    tree: Path | None,
    loss_rate: float,
    verbose: bool,
    **options,
) -> None:
    """Run the control plane of a P4 switch until SIGINT or SIGTERM.

    Agents join at the control port, as they do at `switchml aggregate`; their packets are summed by the switch, which
    is told of each job when it starts, and of its end. A switch that is started again is programmed anew.
    """
    with serving.told_to_stop(verbose) as stop:
        from switchml.control.mac import parse_mac
        from switchml.control.p4 import dataplane as p4_dataplane
        from switchml.control.p4.processes import OurSwitch, SimpleSwitch, connect

        if tree is not None:
            from switchml.control.p4.tree import P4TreeDataplane, read_tree

            many = P4TreeDataplane(read_tree(tree), p4_dataplane.udp_window_bytes()).start()
            try:
                serving.serve(many, "switchml control", many.where, stop, **options)
            finally:
                many.stop()
            return
        mac = parse_mac(switch_mac) if switch_mac else p4_dataplane.SWITCH_MAC
        process = None
        if switch == "p4":
            process = OurSwitch(program)
        elif switch == "bmv2":
            process = SimpleSwitch(ports, program)
        try:
            driver = process.connect() if process is not None else connect(switch, program)
            is_ours = switch == "p4" or (process is None and udp_bind is not None)
            dataplane = p4_dataplane.P4Dataplane(
                driver,
                address=switch_address or p4_dataplane.SWITCH_ADDRESS,
                mac=mac,
                links=process.links if process is not None else dict(links),
                ports=told_ports,
                stations=dict(stations),
                udp_bind=(udp_bind or "127.0.0.1") if is_ours else "",
                loss_rate=loss_rate,
                window_bytes=p4_dataplane.BMV2_WINDOW_BYTES if switch == "bmv2" else p4_dataplane.udp_window_bytes(),
            )
            dataplane.start()
            try:
                serving.serve(dataplane, "switchml control", f"{driver.where}", stop, **options)
            finally:
                dataplane.stop()
        finally:
            if process is not None:
                process.stop()
