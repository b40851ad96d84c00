"""Hosts, racks and switches: the links between them, and each packet's next hop.

Every host has one link up and one down. Without racks they end at the aggregation switch; with racks at a rack switch,
which has one link in each direction to the aggregation switch and forwards traffic within the rack itself. A rack
switch that aggregates handles the aggregator's packets itself.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from emulator.networks.netsim.aggregator import rack_address
from emulator.networks.netsim.config import LinkConfig, NetworkConfig
from emulator.networks.netsim.link import Environment, Link, Server
from emulator.networks.netsim.packets import AGGREGATOR


class Fabric:
    """The links of `config`. `to_host[h]` and `to_aggregator` are called with arriving packets; set them before
    anything is sent."""

    def __init__(self, env: Environment, config: NetworkConfig):
        self.env = env
        self.to_host: dict[int, Callable[[Any], None]] = {}
        self.to_aggregator: Callable[[Any], None] = lambda packet: None
        self.to_rack: dict[int, Callable[[Any], None]] = {}
        """Handlers of racks that aggregate: of packets for the aggregator by rack, of packets from above by
        `rack_address`."""
        self._rack_hosts = config.racks.hosts if config.racks else 0
        rack_links = [config.racks.link] * -(-config.hosts // config.racks.hosts) if config.racks else []

        def link(options: LinkConfig, name: str, deliver: Callable[[Any], object]) -> Link:
            return Link(env, options, random.Random(f"{config.seed} {name}"), deliver, name)

        def server(deliver: Callable[[Any], object]) -> Server:
            return Server(env, config.switch.packets_per_s, config.switch.latency_s, deliver)

        def at_host(packet: Any) -> None:
            self.to_host[packet.to](packet)

        hosts = range(config.hosts)
        above = [partial(self._in_rack, self.rack_of(h)) if rack_links else self._at_core for h in hosts]
        self.up = [link(config.link_of(h), f"host {h} up", above[h]) for h in hosts]
        self.down = [link(config.link_of(h), f"host {h} down", at_host) for h in hosts]
        self.rack_up = [link(each, f"rack {r} up", self._at_core) for r, each in enumerate(rack_links)]
        self.rack_down = [link(each, f"rack {r} down", self._leave) for r, each in enumerate(rack_links)]
        self.switch = server(lambda packet: self.to_aggregator(packet))
        self.to_behind: Callable[[Any], None] = lambda packet: None
        self.from_behind: Callable[[Any], None] = lambda packet: None
        """Handlers of packets that arrive at the aggregator behind the switch, and of packets from it."""
        self.behind: list[Link] = []
        """The links to and from the aggregator behind the switch."""
        if config.behind is not None:
            behind = Server(env, config.behind.packets_per_s, 0.0, lambda packet: self.to_behind(packet))
            self.behind = [
                link(config.behind.link, "behind up", behind.send),
                link(config.behind.link, "behind down", lambda packet: self.from_behind(packet)),
            ]
        self.rack_switches = [server(partial(self._at_rack_switch, r)) for r in range(len(rack_links))]

    @property
    def links(self) -> list[Link]:
        return [*self.up, *self.down, *self.rack_up, *self.rack_down, *self.behind]

    def from_aggregator(self, packet: Any) -> bool:
        """Send a packet down to its destination."""
        if packet.to < AGGREGATOR:
            return self.rack_down[rack_address(packet.to)].send(packet)
        if self._rack_hosts:
            return self.rack_down[self.rack_of(packet.to)].send(packet)
        return self.in_rack(packet)

    def _in_rack(self, rack: int, packet: Any) -> None:
        """Handle a packet from below at a rack switch."""
        if packet.to == AGGREGATOR and rack in self.to_rack:
            self.rack_switches[rack].send(packet)
        elif packet.to != AGGREGATOR and self.rack_of(packet.to) == rack:
            self.in_rack(packet)
        else:
            self.rack_up[rack].send(packet)

    def _at_rack_switch(self, rack: int, packet: Any) -> None:
        self.to_rack[rack](packet)

    def _at_core(self, packet: Any) -> None:
        if packet.to == AGGREGATOR:
            self.switch.send(packet)
        else:
            self.from_aggregator(packet)

    def _leave(self, packet: Any) -> None:
        if packet.to < AGGREGATOR:
            self.to_rack[packet.to](packet)
        else:
            self.in_rack(packet)

    def rack_of(self, host: int) -> int:
        """The rack of a host."""
        return host // self._rack_hosts

    def in_rack(self, packet: Any) -> bool:
        """Send a packet down to a host from its rack's switch."""
        host: int = packet.to
        return self.down[host].send(packet)
