"""The networks of `switchml mininet`: hosts, links and switches of a layout (layout.py), built with Mininet in an
isolated world (world.py).

Every link has the same rate both ways, limited by tbf in front of it as in star.py; loss and delay, if any, are those
of link.py, in a separate node that all links run through. Switches are in the root namespace, as usual in Mininet. They
are bridges, or run a P4 program, on switchml's switch or simple_switch. The network has one address in the root
namespace, for controllers and aggregators: the bridge's, or an interface at an additional port of s1, which has no rate
limit. All ARP entries are set up statically. Namespaces have the names of the nodes, for `ip netns` and Namespace.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.networks.testbed import star
from emulator.networks.testbed.layout import BMV2, BRIDGE, CONTROL, CONTROL_MAC, ROOT, WIRES, Layout
from emulator.networks.testbed.namespaces import Namespace, find_program, run
from emulator.networks.testbed.star import INTERFACE, LinkEmulation, Network, QueueCounts
from switchml.control.mac import mac_text
from switchml.errors import ConfigError
from switchml.net.ports import finish_packets

if TYPE_CHECKING:
    from emulator.networks.testbed.nodes import Net

DEBIAN_PACKAGES = Path("/usr/lib/python3/dist-packages")


@dataclass(frozen=True)
class P4Node:
    """Properties of a P4 switch for its control plane. `ports`: neighbor's name → port."""

    name: str
    address: str
    mac: int
    thrift_port: int
    pid: int
    ports: dict[str, int]


class Fabric(Network):
    """A running network, to be created inside a world. It has the same attributes as a Star: `hosts[i]` with
    `address(i)`, `switch` (the root namespace) with `switch_address`. Raises ConfigError for missing programs."""

    def __init__(self, layout: Layout):
        check_programs(layout.switch)
        from emulator.networks.testbed.nodes import Net  # needs Mininet, which `check_programs` has verified

        self.layout = layout
        self._captures: list[subprocess.Popen[bytes]] = []
        self.switch = _name(ROOT, os.getpid())
        self.switch.set_sysctl(
            ipv6__conf__all__disable_ipv6=1,
            ipv6__conf__default__disable_ipv6=1,
            # ARP requests are answered by the interface that has the address, not by the ports of switches.
            ipv4__conf__all__arp_ignore=1,
            ipv4__conf__default__arp_ignore=1,
        )
        self._net: Net = Net(layout)
        self.hosts = [_name(node.name, node.pid) for node in self._net.hosts[: layout.hosts]]
        spaces = [self.switch, *self.hosts]
        if not layout.link.is_plain:
            spaces.append(_name(WIRES, self._net.get(WIRES).pid))
        self._spaces = {space.name: space for space in spaces}
        for cable in layout.cables:
            for space, interface in self._ends(cable):
                star.shape_interface(space, interface, layout.link)
        if layout.switch == BMV2:
            for space, interface in [*((host, INTERFACE) for host in self.hosts), (self.switch, f"{CONTROL}-eth0")]:
                space.call(partial(finish_packets, interface))
        self._set_static_arp()
        for space in spaces:
            star.wait_until_up(space)
        if not layout.link.is_plain:
            self._wires = LinkEmulation(self._spaces[WIRES], self._net.wires, layout.link)

    @property
    def switch_address(self) -> str:
        return self.layout.control_address

    def address(self, host: int) -> str:
        return self.layout.address(host)

    @property
    def p4_nodes(self) -> list[P4Node]:
        """The P4 switches, s1 first."""
        return [
            P4Node(
                node.name,
                self.layout.switch_address(node.name),
                self.layout.switch_mac(node.name),
                node.thrift_port,
                node.switch_pid,
                {other: node.ports[end] for (name, other), end in self._net.ends.items() if name == node.name},
            )
            for node in self._net.switches
        ]

    # Counters

    def queues(self) -> dict[str, QueueCounts]:
        """Queue counters of the hosts' links since the start, "up" from the hosts and "down" to them; with racks, also
        "trunks up" and "trunks down" of the links between switches."""
        named: dict[str, list[tuple[Namespace, str]]] = {}
        for number, cable in enumerate(self.layout.cables):
            which = "" if number < self.layout.hosts else "trunks "
            for direction, end in zip(("up", "down"), self._ends(cable), strict=True):
                named.setdefault(which + direction, []).append(end)
        return {name: star.queue_counts(interfaces) for name, interfaces in named.items()}

    def capture(self, link: str, file: Path) -> None:
        """Capture a link, such as h1-s1, to a pcap file from now on. Its ends cut trains into packets and compute
        checksums, as on a real cable. Raises ConfigError for a nonexistent link."""
        cables = {f"{lower}-{upper}": (lower, upper) for lower, upper in self.layout.cables}
        if link not in cables:
            raise ConfigError(f"there is no link {link}: expected one of {', '.join(cables)}")
        ends = self._ends(cables[link])
        for space, interface in ends:
            space.call(partial(finish_packets, interface))
        space, interface = ends[0]
        command = ["tcpdump", "-Z", "root", "-U", "--immediate-mode", "-w", str(file), "-i", interface]
        process = space.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        message = b""
        while b"listening" not in message:
            line = process.stderr.readline()
            if not line:
                raise ConfigError(f"can't capture to {file}: {message.decode(errors='replace').strip()}")
            message = line
        self._captures.append(process)

    def close(self) -> None:
        """End captures, and take the network down. (The rest is removed with its world.)"""
        for process in self._captures:
            _finish_capture(process)
        super().close()
        self._net.stop()
        for name in self._spaces:
            run(["ip", "netns", "delete", name])

    # Inside

    def _ends(self, cable: tuple[str, str]) -> list[tuple[Namespace, str]]:
        """(namespace, interface) of a cable's two ends, the lower one first."""
        return [
            (self._spaces.get(node, self.switch), self._net.ends[node, other].name)
            for node, other in (cable, cable[::-1])
        ]

    def _set_static_arp(self) -> None:
        layout = self.layout
        known = {layout.address(i): layout.mac(i) for i in range(layout.hosts)}
        known |= {layout.switch_address(name): layout.switch_mac(name) for name in layout.switches}
        if layout.switch != BRIDGE:
            known[layout.control_address] = CONTROL_MAC
        control = "s1" if layout.switch == BRIDGE else f"{CONTROL}-eth0"
        for space, interface in [*((host, INTERFACE) for host in self.hosts), (self.switch, control)]:
            dev = f"dev {interface} nud permanent"
            space.ip(*(f"neigh replace {ip} lladdr {mac_text(mac)} {dev}" for ip, mac in known.items()))


def check_programs(switch: str = BRIDGE, with_captures: bool = False) -> None:
    """Raises ConfigError that lists the programs missing on this machine for a kind of switch, and for captures."""
    packages = {"ip": "iproute2", "tc": "iproute2", "mnexec": "mininet", "ifconfig": "net-tools"}
    if with_captures:
        packages["tcpdump"] = "tcpdump"
    lacking = [f"{name} (Debian: {package})" for name, package in packages.items() if not find_program(name)]
    if switch == BMV2 and not find_program("simple_switch"):
        lacking.append("simple_switch (of p4lang's behavioral-model)")
    if importlib.util.find_spec("mininet") is None and not (DEBIAN_PACKAGES / "mininet").is_dir():
        lacking.append("Mininet (Debian: mininet)")
    if lacking:
        raise ConfigError(f"not found: {', '.join(lacking)}")


def _name(name: str, pid: int) -> Namespace:
    """Name the network namespace of a process."""
    run(["ip", "netns", "attach", name, str(pid)])
    return Namespace(name)


def _finish_capture(process: subprocess.Popen[bytes]) -> None:
    """End tcpdump once it has written all that it was given. Ended at once, it drops what it has not read yet."""
    assert process.stderr is not None
    captured, received, dropped = 0, 1, 0
    while process.poll() is None and captured + dropped < received:
        process.send_signal(signal.SIGUSR1)
        line = process.stderr.readline()  # 2 packets captured, 2 packets received by filter, 0 packets …
        captured, received, dropped, *_ = (*map(int, re.findall(rb"(\d+) packet", line)), 0, 0, 0)
    process.terminate()
    process.communicate()
