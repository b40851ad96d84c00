"""What a network of `switchml mininet` looks like: its hosts, switches and links, their names and addresses.

one switch     h1 ─┐                 two racks     h1 ─ r1 ─┐
               h2 ─┼─ s1                           h2 ─ r1  ├─ s1
               h3 ─┘                               h3 ─ r2 ─┘   …
"""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from emulator.networks.testbed.star import LinkOptions
from switchml.errors import ConfigError

NETWORK = ipaddress.ip_network("10.0.0.0/16")
BRIDGE, P4, BMV2 = "bridge", "p4", "bmv2"
MAX_HOSTS = 32
"""Maximum number of ranks that a P4 switch supports."""
ROOT, CONTROL, WIRES = "root", "ctl", "wires"
CONTROL_MAC = 0x02_00_00_00_FE_01


@dataclass(frozen=True)
class Layout:
    """Hosts, racks and switches of a network. `racks` 1: all hosts at the switch s1. Otherwise hosts are spread over
    `racks` switches r1, r2, … below s1, as evenly as possible, with neighbors together. `switch`: kind of all switches;
    P4 and BMV2 run `program`. Hosts are numbered from 0 here, and the first one's name is h1."""

    hosts: int
    link: LinkOptions
    switch: str = BRIDGE
    racks: int = 1
    program: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise ConfigError(f"{self.hosts} hosts: expected 1 to {MAX_HOSTS}")
        if not 1 <= self.racks <= self.hosts:
            raise ConfigError(f"{self.racks} racks for {self.hosts} hosts: expected 1 to {self.hosts}")

    @property
    def switches(self) -> list[str]:
        """Names of the switches, s1 first."""
        return ["s1"] + ([f"r{rack + 1}" for rack in range(self.racks)] if self.racks > 1 else [])

    def switch_of(self, host: int) -> str:
        return f"r{host * self.racks // self.hosts + 1}" if self.racks > 1 else "s1"

    @property
    def cables(self) -> list[tuple[str, str]]:
        """(lower end, upper end) of each link: those of the hosts, in order, then those between switches."""
        hosts = [(f"h{host + 1}", self.switch_of(host)) for host in range(self.hosts)]
        return hosts + [(switch, "s1") for switch in self.switches[1:]]

    def address(self, host: int) -> str:
        return str(NETWORK[host + 1])

    def mac(self, host: int) -> int:
        return 0x02_00_00_00_00_01 + host

    def switch_address(self, name: str) -> str:
        return str(NETWORK[0xFF01 + self.switches.index(name)])

    def switch_mac(self, name: str) -> int:
        return 0x02_00_00_00_FF_01 + self.switches.index(name)

    @property
    def control_address(self) -> str:
        """Address of the root namespace in this network."""
        return self.switch_address("s1") if self.switch == BRIDGE else str(NETWORK[0xFE01])
