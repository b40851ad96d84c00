"""`switchml switch`: run a P4 program on ports, with the command lines of simple_switch and simple_switch_grpc."""

import os
from pathlib import Path

import click

IGNORED = ("--nanolog", "--debugger-addr", "--max-port-count", "--load-modules", "--max-l2-entries")
"""BMv2's options that take a value and have no effect here."""

LEVELS = ["trace", "debug", "info", "warn", "error", "off"]

EPILOG = """INTERFACE is a network interface (needs root), or udp:ADDRESS:PORT for one Ethernet frame a datagram. With
--use-files it names the files INTERFACE_in.pcap and INTERFACE_out.pcap."""


class SwitchCommand(click.Command):
    """Accepts BMv2's command lines: `--` before target options, and --pcap with or without a directory."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        accepted: list[str] = []
        for number, arg in enumerate(args):
            following = args[number + 1] if number + 1 < len(args) else ""
            if arg == "--pcap":
                arg = "--pcap=" if os.path.isdir(following) else "--pcap=."
            if accepted and accepted[-1] == "--pcap=":
                accepted[-1] += arg
            elif arg != "--":
                accepted.append(arg)
        return super().parse_args(ctx, accepted)


@click.command(
    cls=SwitchCommand,
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
@click.argument("rest", metavar="[PROGRAM.json]", nargs=-1, type=click.UNPROCESSED)
@click.option("-i", "--interface", "interfaces", metavar="PORT@INTERFACE", multiple=True, help="Attach an interface.")
@click.option("--use-files", metavar="SECONDS", type=float, help="Interfaces are pcap files, read after this time.")
@click.option("--pcap", metavar="[=DIR]", help="Write the frames of each port to pcap files.")
@click.option("--thrift-port", type=int, default=9090, show_default=True, help="For simple_switch_CLI; 0: none.")
@click.option(
    "--thrift-ip",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Listen for Thrift on this address only; :: for all of this machine, from anywhere and without a password.",
)
@click.option(
    "--thrift-socket", metavar="PATH", help="Listen for Thrift on this Unix socket, for you alone, in place of a port."
)
@click.option("--device-id", type=int, default=0, help="Reported to control planes.")
@click.option("--notifications-addr", metavar="ADDRESS", help="Where digests are published.")
@click.option("--log-console", is_flag=True, help="Log to stdout.")
@click.option("--log-file", metavar="FILE", help="Log to FILE.txt.")
@click.option("--log-flush", is_flag=True, expose_value=False, help="Accepted as BMv2 does; the log is always flushed.")
@click.option("-L", "--log-level", type=click.Choice(LEVELS), default="trace")
@click.option("--log-file-max-size", type=click.IntRange(min=1), default=5 << 20, help="Largest log file, in bytes.")
@click.option("--log-file-max-files", type=click.IntRange(min=0), default=3, help="Older log files to keep.")
@click.option(
    "--trace-packet", metavar="FILE.json", help="Write what happens to each packet, as -L trace logs it, as data."
)
@click.option("--dump-packet-data", type=click.IntRange(min=0), default=0, help="Bytes of each frame to record.")
@click.option("--restore-state", metavar="FILE", help="Start with the state that serialize_state wrote.")
@click.option("--no-p4", is_flag=True, help="Start without a program; one is loaded through the control interface.")
@click.option("--enable-swap", is_flag=True, help="Allow another program to be loaded while running.")
@click.option("--disable-swap", is_flag=True, help="Refuse to load another program.")
@click.option("--drop-port", type=int, default=511, help="Packets to this port are dropped.")
@click.option("--priority-queues", type=click.IntRange(min=1), default=1, help="Queues per port.")
@click.option(
    "--grpc-server-addr",
    metavar="ADDRESS:PORT",
    help="Serve P4Runtime there; unix:PATH for a Unix socket, for you alone.",
)
@click.option("--grpc-server-ssl", is_flag=True, help="P4Runtime over TLS; needs a certificate and its key.")
@click.option("--grpc-server-cert", metavar="PEM", help="The server's certificate.")
@click.option("--grpc-server-key", metavar="PEM", help="The certificate's key.")
@click.option("--grpc-server-cacert", metavar="PEM", help="The authority that signs clients' certificates.")
@click.option("--grpc-server-with-client-auth", is_flag=True, help="Clients must have a certificate.")
@click.option("--cpu-port", type=int, help="The port for packets between the program and P4Runtime's controller.")
@click.option("--max-mc-groups", type=click.IntRange(min=1), default=4096, help="Multicast groups.")
@click.option("--max-l1-entries", type=click.IntRange(min=1), default=4096, help="Multicast nodes.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "compiled", "reference"]),
    default="auto",
    help="auto: compiled where the program allows it.",
)
@click.option(
    "--stale-fields",
    is_flag=True,
    help="Keep in fields of invalid headers what earlier packets left there, as BMv2 does.",
)
@click.option("-v", "--version", "show_version", is_flag=True, help="Show the version of BMv2 that it follows.")
@click.option("--json-version", "show_json_version", is_flag=True, help="Show the newest BMv2 JSON it supports.")
@click.pass_context
def switch(ctx: click.Context, rest: tuple[str, ...], **options) -> None:
    """Run PROGRAM.json (p4c's BMv2 JSON) as simple_switch does, until a signal ends it."""
    from emulator.p4switch import process

    if options.pop("show_version"):
        click.echo(process.LIKE_VERSION)
        return
    if options.pop("show_json_version"):
        click.echo(process.JSON_VERSION)
        return
    program, unknown = split(rest)
    if program is None and not options["no_p4"]:
        raise click.UsageError("no program: give a BMv2 JSON file, or --no-p4")
    if unknown:
        click.echo(f"switchml: warning: ignored: {' '.join(unknown)}", err=True)
    settings = process.SwitchSettings(program=None if options["no_p4"] else program, **options)
    ctx.exit(process.start(settings).wait())


def split(rest: tuple[str, ...]) -> tuple[Path | None, list[str]]:
    """(the program, options that are unknown here) from the arguments that click did not parse."""
    words, unknown = list(rest), []
    program = None
    while words:
        word = words.pop(0)
        if word.startswith("-"):
            unknown.append(word)
            if word in IGNORED and words:
                unknown.append(words.pop(0))
        elif program is None or not program.is_file():
            program = Path(word)
        else:
            unknown.append(word)
    return program, unknown
