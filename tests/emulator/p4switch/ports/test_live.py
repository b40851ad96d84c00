"""Ports that are UDP sockets or interfaces, with a switch behind them."""

import logging
import os
import select
import socket
import struct
import threading
import time

import pytest

from emulator.networks.testbed.namespaces import Lab, Namespace
from emulator.p4switch.device import Device
from emulator.p4switch.ports import live
from emulator.p4switch.ports.live import InterfacePort, LivePorts, UdpPort
from emulator.p4switch.ports.pcap import PcapReader
from emulator.p4switch.ports.port import parse_interface
from emulator.p4switch.program.loader import loader
from emulator.p4switch.switch import Switch
from switchml.errors import ConfigError
from switchml.net import packet_ring
from tests.support.launch import until

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.l2 import Dot1Q, Ether  # noqa: E402

WAIT_S = 60.0  # the first start compiles

FORWARD = """{"__meta__": {"version": [2, 18]}, "header_types": [{"name": "standard_metadata", "id": 0, "fields": [
 ["ingress_port", 9], ["egress_spec", 9], ["egress_port", 9], ["instance_type", 32], ["packet_length", 32], ["_", 5]]}],
 "headers": [{"name": "standard_metadata", "id": 0, "header_type": "standard_metadata", "metadata": true}],
 "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [{"name": "start", "id": 0,
  "parser_ops": [], "transition_key": [],
  "transitions": [{"type": "default", "value": null, "mask": null, "next_state": null}]}]}],
 "deparsers": [{"name": "deparser", "id": 0, "order": []}],
 "actions": [{"name": "cross", "id": 0, "runtime_data": [], "primitives": [{"op": "assign", "parameters": [
  {"type": "field", "value": ["standard_metadata", "egress_spec"]},
  {"type": "expression", "value": {"type": "expression", "value": {"op": "^",
   "left": {"type": "field", "value": ["standard_metadata", "ingress_port"]},
   "right": {"type": "hexstr", "value": "0x3"}}}}]}]}],
 "pipelines": [{"name": "ingress", "id": 0, "init_table": "t", "conditionals": [], "tables": [{"name": "t", "id": 0,
   "key": [], "match_type": "exact", "type": "simple", "max_size": 1, "with_counters": false,
   "support_timeout": false, "direct_meters": null, "action_ids": [0], "actions": ["cross"],
   "base_default_next": null, "next_tables": {"cross": null}, "default_entry": {"action_id": 0,
   "action_const": true, "action_data": [], "action_entry_const": true}}]},
  {"name": "egress", "id": 1, "init_table": null, "tables": [], "conditionals": []}]}"""
"""A program that sends what comes in at port 1 out of port 2, and back."""


@pytest.fixture
def ports():
    """Ports of a switch that runs FORWARD."""
    live_ports = LivePorts()
    device = Device(Switch(loader.loads(FORWARD)), live_ports)
    device.start()
    yield live_ports
    device.close()


def udp_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(WAIT_S)
    return sock


def add_udp(ports: LivePorts, number: int, peer: socket.socket | None = None, pcap_dir: str | None = None) -> int:
    """Add a UDP port whose number the kernel picks, and which sends to `peer` if there is one; returns the number."""
    there = f",127.0.0.1:{peer.getsockname()[1]}" if peer else ""
    ports.add(number, f"udp:127.0.0.1:0{there}", pcap_dir)
    return ports._ports[number].socket.getsockname()[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1@veth0", (1, "veth0")), (" 0@pcap0", (0, "pcap0")), ("3@udp:127.0.0.1:5", (3, "udp:127.0.0.1:5"))],
)
def test_interfaces_on_the_command_line(text, expected):
    assert parse_interface(text) == expected


@pytest.mark.parametrize("text", ["", "veth0", "x@veth0", "@veth0", "1@", "-1@veth0"])
def test_what_is_no_interface(text):
    with pytest.raises(ConfigError, match="PORT@INTERFACE"):
        parse_interface(text)


def test_frames_between_udp_ports(ports, tmp_path):
    with udp_socket() as left, udp_socket() as right:
        one = add_udp(ports, 1, pcap_dir=str(tmp_path))
        two = add_udp(ports, 2, right, str(tmp_path))
        frames = [bytes([n]) * (14 + 37 * n) for n in range(20)] + [bytes(9000)]
        for frame in frames:
            left.sendto(frame, ("127.0.0.1", one))
            assert right.recv(65536) == frame
        right.sendto(b"back" * 10, ("127.0.0.1", two))
        assert left.recvfrom(65536) == (b"back" * 10, ("127.0.0.1", one))  # to whoever sent last
        assert [port.number for port in ports.show()] == [1, 2]
        dumped = PcapReader(next(tmp_path.glob("udp:127.0.0.1:0_in.pcap")))
        assert [dumped.read().data for _ in frames] == frames
        dumped = PcapReader(next(tmp_path.glob("udp:127.0.0.1:0_out.pcap")))
        assert dumped.read().data == b"back" * 10


def test_ports_come_and_go(ports):
    one = add_udp(ports, 1)
    with pytest.raises(ConfigError, match="port 1 exists"):
        ports.add(1, "udp:127.0.0.1:0")
    with pytest.raises(ConfigError, match="can't open"):
        ports.add(2, f"udp:127.0.0.1:{one}")
    with pytest.raises(ConfigError, match="not ADDRESS:PORT"):
        ports.add(2, "udp:127.0.0.1")
    with pytest.raises(ConfigError, match="no port 2"):
        ports.remove(2)
    with udp_socket() as left, udp_socket() as right:
        left.sendto(bytes(60), ("127.0.0.1", one))  # leaves by port 2, which is not there
        add_udp(ports, 2, right)
        left.sendto(b"x" * 60, ("127.0.0.1", one))
        assert right.recv(100)[-1:] in (b"x", b"\0")
    ports.remove(1)
    ports.add(1, f"udp:127.0.0.1:{one}")


def test_frames_of_others_than_the_peer_are_counted_and_ignored(ports, caplog):
    with udp_socket() as peer, udp_socket() as stranger, udp_socket() as right:
        one = add_udp(ports, 1, peer)
        add_udp(ports, 2, right)
        for n in range(50):
            stranger.sendto(b"mine %02d" % n + bytes(60), ("127.0.0.1", one))
            peer.sendto(b"ours %02d" % n + bytes(60), ("127.0.0.1", one))
        assert [right.recv(100)[:7] for _ in range(50)] == [b"ours %02d" % n for n in range(50)]
        (strangers,) = [port.extra for port in ports.show() if port.number == 1]
        assert strangers == {"strangers": "50"}
        told = [record for record in caplog.records if "ignoring frames" in record.message]
        assert len(told) == 1 and f"127.0.0.1:{stranger.getsockname()[1]}" in told[0].message


def test_ports_change_while_frames_pass(ports):
    """A port is closed by the thread that serves it, at once: its address is free again."""
    with udp_socket() as left, udp_socket() as right:
        add_udp(ports, 2, right)
        one = add_udp(ports, 1)
        for n in range(100):
            for _ in range(5):
                left.sendto(bytes(60), ("127.0.0.1", one))
            ports.remove(1)
            ports.add(1, f"udp:127.0.0.1:{one}")
            left.sendto(b"%03d" % n + bytes(60), ("127.0.0.1", one))
            while (frame := right.recv(100)[:3]) != b"%03d" % n:
                assert frame == bytes(3)


# Dumps of frames


def test_a_full_disk_ends_the_dump_alone(ports, tmp_path, caplog):
    with udp_socket() as left, udp_socket() as right:
        one = add_udp(ports, 1, pcap_dir=str(tmp_path))
        add_udp(ports, 2, right, str(tmp_path))
        for dump in (*ports._ports[1].dumps, *ports._ports[2].dumps):
            dump._file.close()
            dump._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
        for n in range(20):
            left.sendto(b"%02d" % n + bytes(60), ("127.0.0.1", one))
            assert right.recv(100)[:2] == b"%02d" % n
        right.sendto(bytes(60), ports._ports[2].socket.getsockname())
        left.recv(100)
        ended = sorted(record.message.rpartition("/")[2] for record in caplog.records if "ends here" in record.message)
        assert len(ended) == 4 and all("No space left on device" in message for message in ended)
        assert not [record for record in caplog.records if record.exc_info]


def test_a_dump_that_can_not_begin(ports, tmp_path):
    (tmp_path / "udp:127.0.0.1:0_out.pcap").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match="can't write .*_out.pcap: No space left on device"):
        add_udp(ports, 1, pcap_dir=str(tmp_path))
    assert ports.show() == []
    with pytest.raises(ConfigError, match="can't write .*/nowhere/"):
        add_udp(ports, 1, pcap_dir=str(tmp_path / "nowhere"))


@pytest.mark.root
def test_an_interface_that_is_not_there(ports):
    with pytest.raises(ConfigError, match="'nonsense0'"):
        ports.add(1, "nonsense0")


# Interfaces


def receive(sock: socket.socket, expected: bytes) -> bytes:
    """The next frame that holds `expected`: others are the kernel's own."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        frame = sock.recv(1 << 17)
        if expected in frame:
            return frame
    raise TimeoutError(expected)


@pytest.fixture
def wire(ports, require_program):
    """Two hosts at ports 1 and 2: namespaces with interface eth0, MAC addresses known."""
    require_program("ip")
    with Lab() as lab:
        inside = lab.add("switch")
        hosts = [lab.add("h1"), lab.add("h2")]
        for n, host in enumerate(hosts, start=1):
            inside.ip(f"link add v{n} type veth peer name eth0 netns {host.name}", f"link set v{n} up")
            other = 3 - n
            host.ip(
                f"link set eth0 address 02:00:00:00:00:0{n}", "link set eth0 up", f"addr add 10.0.0.{n}/24 dev eth0",
                f"neigh add 10.0.0.{other} lladdr 02:00:00:00:00:0{other} dev eth0",
            )  # fmt: skip
            inside.call(lambda n=n: ports.add(n, f"v{n}"))
        yield hosts


def raw_socket() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.bind(("eth0", 3))
    sock.settimeout(WAIT_S)
    return sock


def frames_between_interfaces(wire):
    left, right = (host.call(raw_socket) for host in wire)
    with left, right:
        plain = bytes(Ether(dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2") / UDP() / b"plain frame")
        left.send(plain)
        assert receive(right, b"plain frame") == plain
        tagged = bytes(Ether(dst="02:00:00:00:00:02") / Dot1Q(vlan=77) / IP() / UDP() / b"with a tag")
        right.setsockopt(263, 8, 1)  # PACKET_AUXDATA: this end strips the tag as well
        left.send(tagged)
        frame, control, _, _ = right.recvmsg(2000, 200)
        while b"with a tag" not in frame:
            frame, control, _, _ = right.recvmsg(2000, 200)
        assert frame == tagged[:12] + tagged[16:]
        assert struct.unpack_from("=HH", control[0][2], 16) == (77, 0x8100)


def datagrams_and_trains_of_them(wire):
    """What hosts leave to the hardware (checksums, segmentation) is done before the program sees it."""

    def bound() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(WAIT_S)
        sock.bind(("0.0.0.0", 5000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        return sock

    left, right = (host.call(bound) for host in wire)
    raw = wire[1].call(raw_socket)
    with left, right, raw:
        left.sendto(b"one datagram", ("10.0.0.2", 5000))
        assert right.recv(2000) == b"one datagram"
        seen = Ether(receive(raw, b"one datagram"))
        sent, seen[UDP].chksum = seen[UDP].chksum, None
        assert Ether(bytes(seen))[UDP].chksum == sent
        left.setsockopt(17, 103, 1000)  # UDP_SEGMENT
        left.sendto(b"".join(bytes([n]) * 1000 for n in range(40)) + b"tail", ("10.0.0.2", 5000))
        assert [right.recv(2000) for _ in range(41)] == [bytes([n]) * 1000 for n in range(40)] + [b"tail"]


def a_stream_of_tcp(wire):
    data = os.urandom(1 << 20)
    listener = wire[1].call(lambda: socket.create_server(("0.0.0.0", 5001)))
    listener.settimeout(WAIT_S)
    with listener, wire[0].call(lambda: socket.create_connection(("10.0.0.2", 5001), WAIT_S)) as left:
        right, _ = listener.accept()
        right.settimeout(WAIT_S)
        left.settimeout(WAIT_S)
        arrived = bytearray()
        with right:
            for at in range(0, len(data), 1 << 16):
                left.sendall(data[at : at + (1 << 16)])
                while len(arrived) < at + (1 << 16):
                    arrived += right.recv(1 << 16)
        assert bytes(arrived) == data


# Links that change


PROBE = bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01", type=0x1234))


def passes(left: socket.socket, right: socket.socket, data: bytes) -> None:
    """One frame arrives: no other is sent."""
    left.send((PROBE + data).ljust(60))
    assert receive(right, PROBE + data)


@pytest.fixture
def cable(wire, ports):
    """The namespace of the switch, its hosts, and raw sockets of the hosts."""
    inside = Namespace(wire[0].name.replace("h1", "switch"))
    left, right = (host.call(raw_socket) for host in wire)
    with left, right:
        passes(left, right, b"before")
        yield inside, wire, left, right


def is_up(ports: LivePorts, number: int) -> bool:
    return next(port.is_up for port in ports.show() if port.number == number)


@pytest.mark.root
def test_a_link_that_goes_down_and_comes_back(ports, cable):
    """The error that it leaves is read once: poll() would return at once for it, and the next frame would be lost."""
    inside, _, left, right = cable
    for n in range(3):
        inside.ip("link set v2 down")
        until(lambda: not is_up(ports, 2))
        until(lambda: not _has_error(ports, 2))
        inside.ip("link set v2 up")
        until(lambda: is_up(ports, 2))
        passes(left, right, b"after %d" % n)


def _has_error(ports: LivePorts, number: int) -> bool:
    poller = select.poll()
    poller.register(ports._ports[number].socket.fileno(), 0)
    return bool(poller.poll(0))


@pytest.mark.root
def test_a_link_that_is_down_at_the_start(ports, cable):
    inside, _, left, right = cable
    ports.remove(2)
    inside.ip("link set v2 down")
    inside.call(lambda: ports.add(2, "v2"))
    until(lambda: not _has_error(ports, 2))
    assert not is_up(ports, 2)
    inside.ip("link set v2 up")
    until(lambda: is_up(ports, 2))
    passes(left, right, b"first")


@pytest.mark.root
def test_an_error_that_nobody_has_read_costs_no_frame(ports, cable):
    inside, _, left, right = cable
    for n in range(20):
        inside.ip("link set v2 down", "link set v2 up")
        until(lambda: is_up(ports, 2))
        ports.send([(2, (PROBE + b"flap %02d" % n).ljust(60))])
        assert receive(right, b"flap %02d" % n)


@pytest.mark.root
def test_an_interface_that_vanishes_and_comes_back(ports, cable):
    inside, (_, host), left, right = cable
    for n in range(2):
        inside.ip("link del v2")
        until(lambda: not is_up(ports, 2))
        inside.ip(f"link add v2 type veth peer name eth0 netns {host.name}", "link set v2 up")
        host.ip("link set eth0 address 02:00:00:00:00:02", "link set eth0 up")
        until(lambda: is_up(ports, 2))
        with host.call(raw_socket) as again:
            passes(left, again, b"once more %d" % n)
            again.send((PROBE + b"back %d" % n).ljust(60))
            assert receive(left, b"back %d" % n)


@pytest.mark.root
def test_an_interface_that_is_renamed_or_gets_another_mtu(ports, cable):
    inside, (one, two), left, right = cable
    inside.ip("link set v2 down", "link set v2 name other", "link set other up")
    until(lambda: is_up(ports, 2))
    passes(left, right, b"renamed")
    for name, space in (("v1", inside), ("other", inside), ("eth0", one), ("eth0", two)):
        space.ip(f"link set {name} mtu 9000")
    passes(left, right, b"jumbo".ljust(8000))
    inside.ip("link set other mtu 1000")
    passes(left, right, b"small")


# Before kernels are there


@pytest.fixture
def cold(monkeypatch):
    """Kernels of ports are there once this is set."""
    there = threading.Event()
    for kind in (InterfacePort, UdpPort):
        monkeypatch.setattr(kind, "warm", lambda port, warm=kind.warm: (there.wait(WAIT_S), warm(port)))
    yield there
    there.set()


def changes_over(ports: LivePorts, cold: threading.Event, send, receive) -> None:
    """Frames sent before, while and after the kernels come: all arrive, in order."""
    expected, arrived = [], []

    def exchange(n: int) -> None:
        for _ in range(n):
            expected.append(b"frame %04d" % len(expected))
            send(expected[-1])

    exchange(50)
    while len(arrived) < 50:
        arrived.append(receive())
    assert not any(port.is_warm for port in ports._ports.values())
    cold.set()
    deadline = time.monotonic() + WAIT_S
    while not all(port.is_warm for port in ports._ports.values()) and time.monotonic() < deadline:
        exchange(5)
        while len(arrived) < len(expected):
            arrived.append(receive())
    exchange(50)
    while len(arrived) < len(expected):
        arrived.append(receive())
    assert arrived == expected


def test_udp_ports_change_over_to_their_kernels(cold, ports):
    with udp_socket() as left, udp_socket() as right:
        number = add_udp(ports, 1)
        add_udp(ports, 2, right)
        changes_over(
            ports, cold, lambda data: left.sendto(data.ljust(60), ("127.0.0.1", number)),
            lambda: right.recv(2000).rstrip(),
        )  # fmt: skip


@pytest.mark.root
def test_interfaces_change_over_to_their_kernels(cold, ports, wire):
    left, right = (host.call(raw_socket) for host in wire)
    header = bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01", type=0x1234))
    with left, right:
        changes_over(
            ports, cold, lambda data: left.send((header + data).ljust(60)),
            lambda: receive(right, header)[14:].rstrip(),
        )  # fmt: skip


@pytest.mark.root
@pytest.mark.parametrize("has_ring", [True, False], ids=["ring", "messages"])
@pytest.mark.parametrize("is_warm", [True, False], ids=["kernels", "plain"])
def test_every_way_to_receive(monkeypatch, cold, ports, request, has_ring, is_warm):
    """Tags, trains of datagrams and streams of TCP come right with kernels or without, through a ring or without."""
    if not has_ring:
        monkeypatch.setattr(live, "new_ring", lambda sock: packet_ring.no_ring())
    if is_warm:
        cold.set()
    hosts = request.getfixturevalue("wire")
    frames_between_interfaces(hosts)
    datagrams_and_trains_of_them(hosts)
    a_stream_of_tcp(hosts)
