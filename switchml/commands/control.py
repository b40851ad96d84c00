"""`switchml control`: the control plane of a P4 switch, until it is told to stop."""

from __future__ import annotations

import click

from switchml.commands import serving


class Station(click.ParamType):
    """MAC=PORT."""

    name = "MAC=PORT"

    def convert(self, value, param, ctx):
        from switchml.controller.p4_dataplane import parse_mac
        from switchml.errors import ConfigError

        mac, _, port = value.partition("=")
        if not port.isdecimal():
            self.fail(f"{value!r}: expected MAC=PORT, like 02:00:00:00:00:01=1", param, ctx)
        try:
            return parse_mac(mac), int(port)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option(
    "--switch",
    default="p4",
    show_default=True,
    metavar="SWITCH",
    help="thrift://HOST:PORT of a switch that runs p4/switchml.p4, or what to start: p4 (our switch, without root) or "
    "bmv2 (simple_switch from PATH, root).",
)
@click.option("--program", default="switchml", show_default=True, help="The compiled program that p4 and bmv2 run.")
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
    "--udp-bind",
    metavar="IP",
    help="Where the switch opens UDP ports for ranks without an interface (our switch only).  [default: 127.0.0.1]",
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
    udp_bind: str | None,
    loss_rate: float,
    verbose: bool,
    **options,
) -> None:
    """Run the control plane of a P4 switch until SIGINT or SIGTERM.

    Agents join at the control port, as they do at `switchml aggregate`; their packets are summed by the switch, which
    is told of each job when it starts, and of its end. A switch that is started again is programmed anew.
    """
    with serving.told_to_stop(verbose) as stop:
        from switchml.controller import p4_dataplane
        from switchml.controller.p4_processes import OurSwitch, SimpleSwitch
        from switchml.controller.p4_thrift import ThriftSwitch, parse_thrift

        mac = p4_dataplane.parse_mac(switch_mac) if switch_mac else p4_dataplane.SWITCH_MAC
        process = None
        if switch == "p4":
            process = OurSwitch(program)
        elif switch == "bmv2":
            process = SimpleSwitch(ports, program)
        try:
            driver = process.connect() if process is not None else ThriftSwitch(*parse_thrift(switch))
            is_ours = switch == "p4" or (process is None and udp_bind is not None)
            dataplane = p4_dataplane.P4Dataplane(
                driver,
                address=switch_address or p4_dataplane.SWITCH_ADDRESS,
                mac=mac,
                links=process.links if process is not None else None,
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
