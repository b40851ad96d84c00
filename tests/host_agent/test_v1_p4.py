"""Agents that speak v1 through our P4 switch, whose controller they find it by: hosts in network namespaces, UDP of the
kernel, veths."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from emulator.networks.testbed.namespaces import Lab
from host_agent import reach
from host_agent.v1 import joining
from switchml.control.mac import mac_of
from switchml.control.p4.dataplane import P4Dataplane
from switchml.control.p4.processes import compiled
from switchml.control.p4.thrift import ThriftSwitch
from switchml.control.server import Controller
from tests.support.agents import reduce_all, same_bits
from tests.support.launch import join_all, leave_all, until

RANKS = 2
pytestmark = pytest.mark.root


@pytest.fixture
def spaces():
    """The switch's namespace, with a veth from each of the hosts' behind it."""
    with Lab() as lab:
        switch, *hosts = (lab.add(f"v1-{number}") for number in range(RANKS + 1))
        for rank, host in enumerate(hosts):
            host.ip(
                f"link add eth0 address 02:00:00:00:24:0{rank} type veth peer name p{rank} netns {switch.name}",
                f"addr add 10.0.0.{rank + 1}/24 brd + dev eth0", "link set eth0 up",
            )  # fmt: skip
            switch.ip(f"link set p{rank} up")
        yield switch, hosts


@pytest.fixture
def address(spaces, tmp_path):
    """The control port's."""
    path = f"{tmp_path}/thrift"
    ports = [word for rank in range(RANKS) for word in ("-i", f"{rank}@p{rank}")]
    command = [sys.executable, "-m", "switchml", "switch", *ports, "--thrift-socket", path, str(compiled("switchml"))]
    process = spaces[0].popen(command)
    plane = controller = None
    try:
        until(lambda: process.poll() is not None or _answers(path))
        plane = P4Dataplane(ThriftSwitch(path, 0), udp_bind="").start()
        controller = Controller(plane, control_port=0, v1=True)
        yield "{}:{}".format(*controller.start().control)
    finally:
        if controller is not None:
            controller.stop()
        if plane is not None:
            plane.stop()
        process.terminate()
        process.wait()


def _answers(path: str) -> bool:
    try:
        ThriftSwitch(path, 0).close()
        return True
    except Exception:
        return False


@pytest.fixture
def agents(spaces, address, monkeypatch):
    """Their sockets are in the hosts' namespaces, they themselves here."""
    bound, announce = reach.bound, reach.announce

    def there(ip):
        return spaces[1][int(ip.rpartition(".")[2]) - 1]

    monkeypatch.setattr(reach, "bound", lambda ip, port: there(ip).call(lambda: bound(ip, port)))
    monkeypatch.setattr(reach, "announce", lambda sock: there(sock.getsockname()[0]).call(lambda: announce(sock)))
    monkeypatch.setattr(joining, "mac_of", lambda ip: there(ip).call(lambda: mac_of(ip)))
    monkeypatch.setattr(reach, "own_address", lambda host, job, rank: f"10.0.0.{rank + 1}")
    joined = join_all(address, RANKS, job="v1", protocol="v1:timeout=100ms", payload_bytes=1024)
    yield joined
    leave_all(joined)


def test_sums(agents):
    rng = np.random.default_rng(5)
    integers = [rng.integers(-(2**28), 2**28, 3_000).astype("int32") for _ in agents]
    np.testing.assert_array_equal(reduce_all(agents, integers)[0], sum(integers))
    floats = [rng.standard_normal(3_001).astype("float32") for _ in agents]
    results = reduce_all(agents, floats)
    assert same_bits(results)
    np.testing.assert_allclose(results[0], sum(floats), atol=1e-6)
