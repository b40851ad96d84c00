"""Hosts on ports of the switch, in network namespaces of their own: kernel UDP and raw frames, with the control plane
behind a third port. Our switch, and simple_switch where it is on PATH."""

import subprocess
import sys

import pytest

from emulator.networks.testbed.namespaces import Lab, run
from switchml.control.p4.dataplane import BMV2_WINDOW_BYTES, P4Dataplane, udp_window_bytes
from switchml.control.p4.processes import SwitchProcess, compiled
from switchml.control.server import Controller
from tests.support.launch import Rank, until
from tests.support.p4_served import TABLES

pytestmark = pytest.mark.root
SWITCH, CONTROL, HOSTS = "10.213.7.254", "10.213.7.253", ("10.213.7.1", "10.213.7.2")


def veth(name: str, port_name: str) -> None:
    subprocess.run(["ip", "link", "del", port_name], capture_output=True, check=False)
    run(["ip", "link", "add", name, "type", "veth", "peer", "name", port_name])
    for end in (name, port_name):
        with open(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6", "w") as file:
            file.write("1")
    run(["ip", "link", "set", port_name, "up"])


@pytest.fixture(params=["p4", "bmv2"])
def network(request, require_program):
    """(control port's address, namespaces, data plane) of two hosts and a control plane on a switch with three
    ports."""
    is_ours = request.param == "p4"
    command = [sys.executable, "-m", "switchml", "switch", "--thrift-ip", "127.0.0.1"]
    if not is_ours:
        command = [require_program("simple_switch")]
    require_program("ip")
    ports = [f"smt{request.param[0]}{number}" for number in range(3)]
    with Lab() as lab:
        spaces = [lab.add(f"host{number}") for number in range(2)]
        process = controller = dataplane = None
        try:
            for port, space, address in zip(ports, spaces, HOSTS, strict=False):
                veth(f"{port}h", port)
                run(["ip", "link", "set", f"{port}h", "netns", space.name])
                space.ip(f"addr add {address}/24 dev {port}h")
                space.ip(f"link set {port}h up")
                if not is_ours:  # superframes are not for simple_switch
                    space.call(lambda port=port: without_offload(f"{port}h"))
            veth(f"{ports[2]}h", ports[2])
            if not is_ours:
                without_offload(f"{ports[2]}h")
            run(["ip", "addr", "add", f"{CONTROL}/24", "dev", f"{ports[2]}h"])
            run(["ip", "link", "set", f"{ports[2]}h", "up"])
            interfaces = [word for number, port in enumerate(ports) for word in ("-i", f"{number}@{port}")]
            process = SwitchProcess([*command, *interfaces], compiled("switchml"))
            dataplane = P4Dataplane(
                process.connect(),
                address=SWITCH,
                udp_bind="",
                window_bytes=udp_window_bytes() if is_ours else BMV2_WINDOW_BYTES,
            ).start()
            controller = Controller(dataplane, bind=CONTROL, control_port=0)
            yield "{}:{}".format(*controller.start().control), spaces, dataplane
        finally:
            for part in (controller, dataplane, process):
                if part is not None:
                    part.stop()
            for port in ports:
                subprocess.run(["ip", "link", "del", port], capture_output=True, check=False)


def without_offload(interface: str) -> None:
    from switchml.net.ports import finish_packets

    finish_packets(interface)


def test_kernel_udp_and_raw_frames(network):
    address, spaces, dataplane = network
    ranks = [Rank(f"rank {number}", space.name) for number, space in enumerate(spaces)]
    try:
        for job, transports, sparse in (
            ("udp", ("udp", "udp"), "off"),
            ("raw", ("raw", "raw"), "off"),
            ("auto", (None, "raw"), "off"),
            ("streams", ("udp", "raw"), "on:block=64"),
        ):
            for number, (rank, transport) in enumerate(zip(ranks, transports, strict=True)):
                options = dict(rank=number, world_size=2, transport=transport, sparse=sparse)
                rank.send("join", address=address, job=job, **options)
            assert [rank.next() for rank in ranks] == [{}, {}]
            for rank in ranks:
                rank.send("reduce", seed=3, numel=20_000, count=2)
            digests = [rank.next() for rank in ranks]
            assert digests[0] == digests[1] and "sha256" in digests[0]
            for rank in ranks:
                rank.send("leave")
            assert [rank.next() for rank in ranks] == [{}, {}]
            until(lambda: not dataplane._jobs)
        driver = dataplane._driver
        with dataplane._lock:  # the last job's entries are removed under it
            left = [driver._call("standard", "bm_mt_get_num_entries", cxt=0, table=table) for table in TABLES]
        assert left == [1, 0, 0, 0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
