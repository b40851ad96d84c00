"""Hosts around one switch, each in a network namespace, every host's link with the same rate, delay and loss both ways.

    host i: eth0 ── tbf ──►                          ◄── tbf ── p<i>: the switch's namespace, bridge br0
                  with delay or loss: eth0 ── a<i> ═ wires.py ═ b<i> ── p<i>

The rate is tbf's at both ends of a link, so each direction has one queue, in front of it. The switch itself is not
limited: what runs in its namespace, with br0's address, has all ports at once, as a real switch has. Loss and delay, if
any, are those of link.py, run by a process (wires.py) in a namespace of its own. Every node knows every MAC
address from the start: a lost ARP packet would cost a second, and three of them the packets that wait for it.
"""

import ipaddress
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emulator.networks.testbed.link import COUNTS, MIN_CAPACITY_BYTES
from emulator.networks.testbed.namespaces import Lab, Namespace, run
from switchml.errors import ConfigError, SwitchMLError

NETWORK = ipaddress.ip_network("10.77.0.0/16")
INTERFACE = "eth0"
"""Name of every host's interface."""

BURST_BYTES = 72 << 10
"""Burst of tbf: bytes sent at once after a pause, and thus the error of a measurement after a pause: 0.4 % of 16 MiB.
It is larger than any train of packets that the kernel passes as one (65,535 bytes of IP, and tbf counts the headers of
each packet), so trains pass whole; if the queue can hardly hold a train, tbf cuts it. Either way the rate is within 0.2
% for TCP's and UDP's trains, but cutting needs a timer for each packet."""
MIN_BURST_BYTES = 4 << 10
QUEUE_S, MIN_QUEUE_BYTES = 0.025, 256 << 10
"""Default capacity of a queue: seconds at the link rate, and the minimum in bytes."""
UP_S = 20.0
"""Time limit for interfaces to come up."""


@dataclass(frozen=True)
class LinkOptions:
    """Options of every link. `queue_bytes`: capacity of the queue in each direction, 0 for 25 ms at the rate. `loss`,
    `delay_s`: of each direction. `burst_s`: limit of tbf's burst in seconds at the link rate (None: a whole train).
    Raises ConfigError for invalid values.
    """

    rate_bps: float
    delay_s: float = 0.0
    loss: float = 0.0
    queue_bytes: int = 0
    seed: int = 1
    burst_s: float | None = None

    def __post_init__(self) -> None:
        if not 1e5 <= self.rate_bps <= 1e12:
            raise ConfigError(f"rate of {self.rate_bps:g} bit/s: expected 100 kbit/s to 1 Tbit/s")
        if not 0 <= self.loss < 1:
            raise ConfigError(f"loss {self.loss}: expected a probability, at least 0 and less than 1")
        if not 0 <= self.delay_s <= 10:
            raise ConfigError(f"delay of {self.delay_s} s: expected 0 to 10 s")
        if self.queue_bytes < 0 or 0 < self.queue_bytes < MIN_BURST_BYTES:
            raise ConfigError(f"queue of {self.queue_bytes} bytes: expected at least {MIN_BURST_BYTES}")

    @property
    def is_plain(self) -> bool:
        """Whether the kernel can emulate the link alone."""
        return not self.loss and not self.delay_s

    @property
    def queue_limit_bytes(self) -> int:
        return self.queue_bytes or max(MIN_QUEUE_BYTES, round(self.rate_bps / 8 * QUEUE_S))

    @property
    def burst_bytes(self) -> int:
        longest = BURST_BYTES if self.burst_s is None else round(self.rate_bps / 8 * self.burst_s)
        return max(MIN_BURST_BYTES, min(longest, BURST_BYTES, self.queue_limit_bytes // 2))


@dataclass(frozen=True)
class QueueCounts:
    """tbf's counters over all hosts' links in one direction. A train of packets counts as one in `dropped`."""

    bytes: int
    packets: int
    dropped: int


class LinkEmulation:
    """The process that emulates loss and delay (wires.py), in `space`. `pairs`: the interfaces of each link in that
    namespace, the upward end first; all links are alike. It runs until `close`. Raises SwitchMLError if it has ended.
    """

    def __init__(self, space: Namespace, pairs: Sequence[Sequence[str]], link: LinkOptions):
        in_flight = link.rate_bps / 8 * link.delay_s
        plan = {
            "wires": [list(pair) for pair in pairs],
            "loss": link.loss,
            "delay_s": link.delay_s,
            "seed": link.seed,
            "capacity_bytes": MIN_CAPACITY_BYTES + 2 * round(in_flight),
            "threads": min(len(pairs), len(os.sched_getaffinity(0))),
        }
        command = [sys.executable, "-m", "emulator.networks.testbed.wires", json.dumps(plan)]
        self._process = space.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SwitchMLError(f"the process behind the links ended with exit code {self._process.wait()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def counts(self) -> dict[str, dict[str, int]]:
        """Frames on all links since the start by link.COUNTS, "up" and "down"."""
        counts = json.loads(self._request())
        return {
            name: dict(zip(COUNTS, map(sum, zip(*rows, strict=True)), strict=True))
            for name, rows in (("up", counts[0::2]), ("down", counts[1::2]))
        }

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _request(self) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            print("counts", file=stdin, flush=True)
            line: str = stdout.readline()
            if line:
                return line
        except OSError:
            pass
        raise SwitchMLError(f"the process behind the links ended with exit code {self._process.wait()}")


class Network:
    """Base class of networks, with an optional process behind their links."""

    _wires: LinkEmulation | None = None

    @property
    def links_pid(self) -> int | None:
        """Process id of the link emulation, if there is one."""
        return self._wires.pid if self._wires else None

    def links(self) -> dict[str, dict[str, int]]:
        """Frames on all links since the start by link.COUNTS, "up" and "down"; empty without link emulation."""
        return self._wires.counts() if self._wires else {}

    def close(self) -> None:
        """End the link emulation process."""
        if self._wires is not None:
            self._wires.close()


class Star(Network):
    """A star network in `lab` (which removes it). `hosts[i]` has `address(i)`, `switch` has `switch_address`."""

    def __init__(self, lab: Lab, hosts: int, link: LinkOptions, tcp: str | None = None):
        """`tcp`: congestion control of the hosts' TCP, by default the machine's. Raises ConfigError if the kernel
        doesn't have it.
        """
        if not 1 <= hosts <= 256:
            raise ConfigError(f"{hosts} hosts: expected 1 to 256")
        self.link = link
        self.switch = lab.add("switch")
        self.switch.ip(
            f"link add br0 address {_mac(0)} type bridge stp_state 0 forward_delay 0",
            f"addr add {self.switch_address}/{NETWORK.prefixlen} dev br0",
            "link set br0 up",
        )
        self.hosts = [lab.add(f"host{i}") for i in range(hosts)]
        wires = None if link.is_plain else lab.add("wires")
        for i, host in enumerate(self.hosts):
            if tcp is not None:
                host.set_sysctl(ipv4__tcp_congestion_control=tcp)
            self._plug_in(i, host, wires)
        self._set_static_arp()
        for space in (self.switch, *self.hosts, *([wires] if wires else [])):
            wait_until_up(space)
        if wires is not None:
            self._wires = LinkEmulation(wires, [(f"a{i}", f"b{i}") for i in range(hosts)], link)

    @property
    def switch_address(self) -> str:
        return str(NETWORK[1])

    def address(self, host: int) -> str:
        return str(NETWORK[256 + host + 1])

    def queues(self) -> dict[str, QueueCounts]:
        """Queue counters since the start, "up" from the hosts and "down" to them."""
        return {
            "up": queue_counts((host, INTERFACE) for host in self.hosts),
            "down": queue_counts((self.switch, f"p{i}") for i in range(len(self.hosts))),
        }

    def set_rate(self, rate_bps: float) -> None:
        """Change every link's rate from now on, with the corresponding queue and burst; loss and delay stay. Raises
        ConfigError.
        """
        self.link = replace(self.link, rate_bps=rate_bps)
        for host in self.hosts:
            host.tc(f"qdisc change dev {INTERFACE} root {_shape(self.link)}")
        self.switch.tc(*(f"qdisc change dev p{i} root {_shape(self.link)}" for i in range(len(self.hosts))))

    def _plug_in(self, i: int, host: Namespace, wires: Namespace | None) -> None:
        if wires is None:
            host.ip(f"link add {INTERFACE} address {_mac(i + 1)} type veth peer name p{i} netns {self.switch.name}")
            single = ""
        else:
            host.ip(f"link add {INTERFACE} address {_mac(i + 1)} type veth peer name a{i} netns {wires.name}")
            wires.ip(
                f"link add b{i} type veth peer name p{i} netns {self.switch.name}",
                f"link set a{i} up",
                f"link set b{i} up",
            )
            single = "" if has_udp_trains() else " gso_max_segs 1"
        host.ip(f"addr add {self.address(i)}/{NETWORK.prefixlen} dev {INTERFACE}", f"link set {INTERFACE} up{single}")
        self.switch.ip(f"link set p{i} master br0 up{single}")
        shape_interface(host, INTERFACE, self.link)
        shape_interface(self.switch, f"p{i}", self.link)

    def _set_static_arp(self) -> None:
        known = [(self.switch_address, 0)] + [(self.address(i), i + 1) for i in range(len(self.hosts))]
        for space, interface in [(self.switch, "br0"), *((host, INTERFACE) for host in self.hosts)]:
            space.ip(*(f"neigh add {ip} lladdr {_mac(number)} dev {interface} nud permanent" for ip, number in known))


def shape_interface(space: Namespace, interface: str, link: LinkOptions) -> None:
    """Limit an interface's outgoing traffic to the link's rate."""
    space.tc(f"qdisc add dev {interface} root {_shape(link)}")


def _shape(link: LinkOptions) -> str:
    return f"tbf rate {round(link.rate_bps)}bit burst {link.burst_bytes} limit {link.queue_limit_bytes}"


def _mac(number: int) -> str:
    """A locally administered address: 0 is the switch's, i + 1 that of host i."""
    return f"02:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}"


def has_udp_trains() -> bool:
    """Whether AF_PACKET sockets support trains of UDP packets: virtio's GSO_UDP_L4, since Linux 6.2. Without it,
    emulated links handle single packets, at a correspondingly higher cost.
    """
    major, minor = map(int, re.findall(r"\d+", platform.release())[:2])
    return (major, minor) >= (6, 2)


def wait_until_up(space: Namespace) -> None:
    """Wait until all interfaces, and the ports of bridges, carry packets: the kernel brings them up in the background,
    and drops earlier packets.
    """
    give_up_at = time.monotonic() + UP_S
    while True:
        links = json.loads(run(["ip", "-n", space.name, "-d", "-j", "link", "show"]))
        waiting = [link["ifname"] for link in links if link["ifname"] != "lo" and not _is_up(link)]
        if not waiting:
            return
        if time.monotonic() > give_up_at:
            raise SwitchMLError(f"{space.name}: {', '.join(waiting)} not up after {UP_S:g} s")
        time.sleep(0.01)


def _is_up(link: dict[str, Any]) -> bool:
    port = link.get("linkinfo", {}).get("info_slave_data", {})
    return bool(link["operstate"] == "UP" and port.get("state", "forwarding") == "forwarding")


def queue_counts(interfaces: Iterable[tuple[Namespace, str]]) -> QueueCounts:
    """Sums of the counters of interfaces shaped by `shape_interface`."""
    return QueueCounts(*map(sum, zip(*(_tbf(*interface) for interface in interfaces), strict=True)))


def _tbf(space: Namespace, interface: str) -> tuple[int, int, int]:
    for qdisc in json.loads(run(["tc", "-n", space.name, "-s", "-j", "qdisc", "show", "dev", interface])):
        if qdisc["kind"] == "tbf":
            return qdisc["bytes"], qdisc["packets"], qdisc["drops"]
    raise SwitchMLError(f"no tbf on {interface} in {space.name}")
