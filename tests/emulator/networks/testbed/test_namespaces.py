"""Namespaces and the star of hosts in them: what they carry, and that nothing of them stays."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from emulator.networks.testbed import namespaces, star
from emulator.networks.testbed.namespaces import Lab
from emulator.networks.testbed.star import LinkOptions, Star
from switchml.errors import ConfigError, SwitchMLError
from tests.support.launch import until
from tests.support.namespaces import names_of

HOLDER = """
import subprocess, sys, time
from emulator.networks.testbed.namespaces import Lab
with Lab() as lab:
    inside = lab.add("host").popen(["sleep", "100"])
    while subprocess.run(["ip", "netns", "pids", lab.add("other").name]).returncode: pass
    print(inside.pid, flush=True)
    time.sleep(100)
"""
DEADLINE_S = 20


def datagrams_through(net: Star, count: int, size: int = 100) -> tuple[int, int]:
    """Send from host 0 to host 1 as fast as its socket takes them. Returns how many arrived, and how many were sent
    with those that mark the end: links keep the order, and another mark is sent until one arrives."""

    def bound() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind(("0.0.0.0", 9000))
        sock.settimeout(1)
        return sock

    with net.hosts[0].call(bound) as source, net.hosts[1].call(bound) as target:
        address, arrived = (net.address(1), 9000), 0
        for _ in range(count):
            source.sendto(bytes(size), address)
        for sent in itertools.count(count + 1):
            source.sendto(b"last", address)
            with contextlib.suppress(TimeoutError):  # the mark was lost
                while target.recv(2000) != b"last":
                    arrived += 1
                return arrived, sent
    raise AssertionError("counting ended")


def nothing_under_way(ways: dict[str, dict[str, int]], sent: int) -> bool:
    """Whether each link has lost or sent on all that it got, and the switch's link got all that the hosts' sent on."""
    settled = all(way["received"] == way["lost"] + way["sent"] for way in ways.values())
    return settled and ways["up"]["received"] >= sent and ways["down"]["received"] >= ways["up"]["sent"]


@pytest.mark.root
def test_plain_star(iproute2):
    with Lab() as lab:
        net = Star(lab, 2, LinkOptions(rate_bps=50e6))
        before = net.queues()
        arrived, sent = datagrams_through(net, 200)
        assert arrived == 200
        after = net.queues()
        for way in ("up", "down"):
            assert sent <= after[way].packets - before[way].packets <= sent + 6  # IGMP tells of itself
            assert after[way].bytes - before[way].bytes >= 200 * (100 + 42) + (sent - 200) * (4 + 42)
            assert after[way].dropped == 0
        assert net.links() == {}
        assert len(names_of(os.getpid())) == 3
    assert names_of(os.getpid()) == []


@pytest.mark.root
def test_star_with_loss_and_delay(iproute2):
    with Lab() as lab:
        net = Star(lab, 2, LinkOptions(rate_bps=50e6, loss=0.1, delay_s=0.002, seed=2))
        try:
            plan = json.loads(psutil.Process(net.links_pid).cmdline()[-1])
            assert (plan["loss"], plan["delay_s"], plan["seed"]) == (0.1, 0.002, 2)  # test_link.py: what they do
            arrived, sent = datagrams_through(net, 500)
            # Marks may still be on their way in a link, in a queue, or between the two counts.
            until(lambda: nothing_under_way(net.links(), sent))
            counts = net.links()
        finally:
            net.close()
        assert 300 < arrived < 480
        assert counts["up"]["received"] == sent
        assert all(way["lost"] > 0 and way["failed"] == 0 for way in counts.values())


@pytest.mark.root
def test_the_rate_can_change(iproute2):
    with Lab() as lab:
        net = Star(lab, 2, LinkOptions(rate_bps=50e6))
        net.set_rate(8e6)
        ends = [(net.hosts[0], "eth0"), (net.hosts[1], "eth0"), (net.switch, "p0"), (net.switch, "p1")]
        for space, interface in ends:
            shown = namespaces.run(["tc", "-n", space.name, "-j", "qdisc", "show", "dev", interface])
            assert json.loads(shown)[0]["options"]["rate"] == 1_000_000  # bytes a second
        with pytest.raises(ConfigError, match="rate of 1"):
            net.set_rate(1)


def test_a_queue_too_short_drops(iproute2):
    with Lab() as lab:
        net = Star(lab, 2, LinkOptions(rate_bps=1e5, queue_bytes=8192))
        with net.hosts[0].call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as source:
            for _ in range(100):
                source.sendto(bytes(1000), (net.address(1), 9))
        until(lambda: net.queues()["up"].dropped > 50)


@pytest.mark.root
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays(iproute2, ending):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    inside = int(holder.stdout.readline())
    assert len(names_of(holder.pid)) == 2
    holder.send_signal(ending)
    holder.communicate(timeout=DEADLINE_S)
    until(lambda: not psutil.pid_exists(inside) or psutil.Process(inside).status() == psutil.STATUS_ZOMBIE)
    if ending == signal.SIGKILL:
        assert len(names_of(holder.pid)) == 2
        with Lab():  # the next one cleans up
            pass
    assert names_of(holder.pid) == []


@pytest.mark.root
def test_sweep_leaves_the_living_alone(iproute2):
    with Lab() as lab:
        space = lab.add("host")
        namespaces.sweep()
        assert names_of(os.getpid()) == [space.name]


@pytest.mark.root
def test_a_zombie_is_dead(iproute2):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    holder.stdout.readline()
    holder.kill()
    until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE)
    namespaces.sweep()
    assert names_of(holder.pid) == []
    holder.communicate()


@pytest.mark.root
def test_errors_name_what_failed(iproute2):
    with Lab() as lab:
        space = lab.add("host")
        with pytest.raises(SwitchMLError, match="nothing0"):
            space.ip("link set nothing0 up")
        with pytest.raises(ConfigError, match="tcp_congestion_control = nonsense"):
            space.set_sysctl(ipv4__tcp_congestion_control="nonsense")


def test_rights(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="root"):
        namespaces.check_rights()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="apt install iproute2"):
        namespaces.check_rights()


@pytest.mark.parametrize("values", [
    {"rate_bps": 0}, {"rate_bps": 1e6, "loss": 1}, {"rate_bps": 1e6, "delay_s": -1},
    {"rate_bps": 1e6, "queue_bytes": 9},
])  # fmt: skip
def test_links_that_make_no_sense(values):
    with pytest.raises(ConfigError, match="expected"):
        LinkOptions(**values)


def test_queue_and_burst():
    assert LinkOptions(rate_bps=200e6).queue_limit_bytes == 625_000
    assert LinkOptions(rate_bps=1e6).queue_limit_bytes == star.MIN_QUEUE_BYTES
    short = LinkOptions(rate_bps=200e6, queue_bytes=64 << 10)
    assert (short.queue_limit_bytes, short.burst_bytes) == (64 << 10, 32 << 10)
