"""Hosts in network namespaces of their own, at two racks' switches below a third one, with the control plane behind a
port of that: the collectives through a tree of our switches, with wide words and with a register a lane."""

import subprocess
import sys

import pytest

from emulator.networks.testbed.namespaces import Lab, run
from switchml.control.p4.dataplane import udp_window_bytes
from switchml.control.p4.processes import SwitchProcess, compiled
from switchml.control.p4.tree import P4TreeDataplane, TreeSwitch
from switchml.control.server import Controller
from tests.p4.test_attached import veth
from tests.support.launch import Rank

pytestmark = pytest.mark.root
CONTROL = "10.213.8.253"
RACKS = {"r1": (0, 1), "r2": (2, 3)}
CABLES = {"r1": ("smtru1", "smtrd1"), "r2": ("smtru2", "smtrd2")}
"""Of each rack: the end at its switch, at port 2, and the end at s1."""
UPLINK, CONTROL_PORT = 2, ("smtrch", "smtrc")


def host_port(host: int) -> str:
    return f"smtr{host}"


def host_mac(host: int) -> int:
    return 0x02_00_00_5A_00_01 + host


def start_switch(program: str, interfaces: list[str]) -> SwitchProcess:
    ports = [word for number, interface in enumerate(interfaces) for word in ("-i", f"{number}@{interface}")]
    command = [sys.executable, "-m", "switchml", "switch", "--thrift-ip", "127.0.0.1", *ports]
    return SwitchProcess(command, compiled(program))


def tree_of(started: dict[str, SwitchProcess]) -> list[TreeSwitch]:
    def switch(number: int, name: str, *where) -> TreeSwitch:
        address, mac = f"10.213.8.{200 + number}", 0x02_00_00_5A_FF_00 + number
        return TreeSwitch(name, started[name].connect(), address, mac, *where)

    racks = [
        switch(number, name, "s1", {"s1": UPLINK}, {host_mac(host): port for port, host in enumerate(hosts)})
        for number, (name, hosts) in enumerate(RACKS.items(), 2)
    ]
    return [switch(1, "s1", None, {name: port for port, name in enumerate(RACKS)}, {}), *racks]


@pytest.fixture(params=["switchml", "switchml_lanes"])
def network(request, require_program):
    """(control port's address, the hosts' namespaces)."""
    require_program("ip")
    started, dataplane, controller = {}, None, None
    with Lab() as lab:
        spaces = [lab.add(f"host{number}") for number in range(4)]
        try:
            for cable in (*CABLES.values(), CONTROL_PORT):
                veth(*cable)
                run(["ip", "link", "set", cable[0], "up"])
            run(["ip", "addr", "add", f"{CONTROL}/24", "dev", CONTROL_PORT[0]])
            for host, space in enumerate(spaces):
                port = host_port(host)
                veth(f"{port}h", port)
                run(["ip", "link", "set", f"{port}h", "address", host_mac(host).to_bytes(6, "big").hex(":")])
                run(["ip", "link", "set", f"{port}h", "netns", space.name])
                space.ip(f"addr add 10.213.8.{host + 1}/24 dev {port}h")
                space.ip(f"link set {port}h up")
            started["s1"] = start_switch(request.param, [*(down for _, down in CABLES.values()), CONTROL_PORT[1]])
            for name, hosts in RACKS.items():
                started[name] = start_switch(request.param, [*map(host_port, hosts), CABLES[name][0]])
            dataplane = P4TreeDataplane(tree_of(started), window_bytes=udp_window_bytes()).start()
            controller = Controller(dataplane, bind=CONTROL, control_port=0)
            yield "{}:{}".format(*controller.start().control), spaces
        finally:
            for part in (controller, dataplane, *started.values()):
                if part is not None:
                    part.stop()
            for end in (*(up for up, _ in CABLES.values()), CONTROL_PORT[0], *map(host_port, range(4))):
                subprocess.run(["ip", "link", "del", end], capture_output=True, check=False)


def test_collectives(network):
    address, spaces = network
    ranks = [Rank(f"rank {number}", space.name) for number, space in enumerate(spaces)]
    try:
        for transport in ("udp", "raw"):
            for number, rank in enumerate(ranks):
                options = dict(rank=number, world_size=4, transport=transport, payload_bytes=256)
                rank.send("join", address=address, job=transport, **options)
            assert [rank.next() for rank in ranks] == [{}] * 4
            for do, options in (("reduce", {"seed": 3, "count": 2}), ("collectives", {"seed": 5}), ("leave", {})):
                for rank in ranks:
                    rank.send(do, **options, **({"numel": 4000} if options else {}))
                answers = [rank.next() for rank in ranks]
                assert not any("error" in answer for answer in answers), answers
    finally:
        for rank in ranks:
            rank.kill()
