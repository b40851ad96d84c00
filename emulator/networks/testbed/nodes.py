"""Mininet nodes and network of a fabric (fabric.py). Importing this module needs Mininet."""

from __future__ import annotations

from emulator.networks.testbed.layout import BMV2, BRIDGE, CONTROL, CONTROL_MAC, NETWORK, WIRES, Layout
from emulator.networks.testbed.mininet import P4Host, P4Switch  # also makes Mininet importable
from emulator.networks.testbed.namespaces import find_program, run
from emulator.networks.testbed.world import PRIVATE_DIR
from switchml.control.mac import mac_text

# isort: split
from mininet.link import Intf
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Node, Switch


class Bridge(Switch):
    """A Linux bridge with an IP address, for processes at the switch."""

    def __init__(self, name: str, ip: str, mac: str, **params) -> None:
        super().__init__(name, **params)
        self._ip, self._mac = ip, mac

    def start(self, controllers: list) -> None:
        """Create the bridge over all interfaces of this node."""
        kind = ["type", "bridge", "stp_state", "0", "forward_delay", "0"]
        run(["ip", "link", "add", self.name, "address", self._mac, *kind])
        for interface in self.intfList():
            if interface.name != "lo":
                run(["ip", "link", "set", interface.name, "master", self.name, "up"])
        run(["ip", "addr", "add", f"{self._ip}/{NETWORK.prefixlen}", "dev", self.name])
        run(["ip", "link", "set", self.name, "up"])

    def stop(self, deleteIntfs: bool = True) -> None:  # Mininet's argument name
        """Remove the bridge."""
        run(["ip", "link", "delete", self.name])
        super().stop(deleteIntfs)


class Switchboard(P4Switch):
    """A P4 switch whose files are in the world's private folder."""

    def __init__(self, name: str, **params) -> None:
        super().__init__(name, log_file=str(PRIVATE_DIR / f"{name}.log"), **params)

    def arguments(self) -> list[str]:
        """The command line, with sockets in the world's private folder."""
        args = super().arguments()
        if "--nanolog" in args:
            at = args.index("--nanolog")
            del args[at : at + 2]
        at = args.index("--thrift-port")
        args[at:at] = ["--notifications-addr", f"ipc://{PRIVATE_DIR}/{self.name}.ipc"]
        return args


class Net(Mininet):
    """Mininet's network for a layout, started. `ends[node, other]`: a node's interface on its cable to the other.
    `wires`: interfaces of the node WIRES, two for each cable that runs through it, the lower end's first."""

    def __init__(self, layout: Layout):
        setLogLevel("critical")
        Mininet.inited = True  # otherwise it would change limits of the whole machine
        super().__init__(controller=None, build=False, ipBase=str(NETWORK))
        self.ends: dict[tuple[str, str], Intf] = {}
        self.wires: list[tuple[str, str]] = []
        for host in range(layout.hosts):
            ip = f"{layout.address(host)}/{NETWORK.prefixlen}"
            self.addHost(f"h{host + 1}", cls=P4Host, ip=ip, mac=mac_text(layout.mac(host)))
        for name in layout.switches:
            self._add_switch(layout, name)
        if layout.switch != BRIDGE:
            ip = f"{layout.control_address}/{NETWORK.prefixlen}"
            self.addHost(CONTROL, cls=Node, inNamespace=False, ip=ip, mac=mac_text(CONTROL_MAC))
        if not layout.link.is_plain:
            self.addHost(WIRES, cls=Node, ip=None)
        for lower, upper in layout.cables:
            self._connect(lower, upper, through_wires=not layout.link.is_plain)
        if layout.switch != BRIDGE:
            self._connect(CONTROL, "s1", through_wires=False)
        self.build()
        self.start()

    def _add_switch(self, layout: Layout, name: str) -> None:
        if layout.switch == BRIDGE:
            self.addSwitch(name, cls=Bridge, ip=layout.switch_address(name), mac=mac_text(layout.switch_mac(name)))
        else:
            binary = find_program("simple_switch") if layout.switch == BMV2 else None
            self.addSwitch(name, cls=Switchboard, sw_path=binary, json_path=str(layout.program))

    def _connect(self, lower: str, upper: str, through_wires: bool) -> None:
        if through_wires:
            below, above = self.addLink(lower, WIRES), self.addLink(WIRES, upper)
            self.wires.append((below.intf2.name, above.intf1.name))
        else:
            below = above = self.addLink(lower, upper)
        self.ends[lower, upper], self.ends[upper, lower] = below.intf1, above.intf2
