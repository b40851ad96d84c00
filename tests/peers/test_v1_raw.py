"""The client of tests/support/v1_client.py on a packet socket of a veth, as the original's DPDK client is on its NIC,
against `switchml aggregate --raw`: whole frames with IPv4 checksum 0, UDP port 48865, the MAC address that UdpSession
told, no answer to ARP; a part of the frames is lost."""

import socket
import struct
import time

import numpy as np
import pytest

from emulator.networks.testbed.namespaces import Lab
from switchml.aggregator.raw import datagram_in
from switchml.aggregator.threads import ThreadedDataplane
from switchml.control.server import Controller
from tests.support.launch import good, on_all
from tests.support.packets import V1Packet
from tests.support.v1_client import WORKERS, V1Client

pytestmark = pytest.mark.root

ADDRESS, MAC = "10.22.0.1", 0x02_00_00_00_22_FE
PORT, WORKER_PORT = 48865, 4000
LOST_EACH = 29


class FrameSocket:
    """A packet socket that looks like the UDP socket that V1Client expects. One frame in LOST_EACH is lost each way."""

    def __init__(self, interface: str, ip: str, mac: int):
        self.ip, self.mac = ip, mac.to_bytes(6, "big")
        self.switch_mac = b""
        self.sizes: set[int] = set()
        self._n_sent = self._n_received = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind((interface, 3))

    def sendto(self, packet: bytes, to: tuple[str, int]) -> None:
        self._n_sent += 1
        if self._n_sent % LOST_EACH == 0:
            return
        self.send(frame_of(self, packet, WORKER_PORT, PORT))

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def settimeout(self, timeout_s: float) -> None:
        self._due = time.monotonic() + timeout_s

    def recv(self, size: int) -> bytes:
        while True:
            frame = self.next_frame()
            datagram = datagram_in(frame)
            if datagram is None or datagram.port != WORKER_PORT:
                continue
            assert (datagram.source_port, datagram.source_mac) == (PORT, self.switch_mac)
            assert struct.unpack_from("!H", frame, 24)[0], "an IPv4 checksum"
            self.sizes.add(len(frame))
            self._n_received += 1
            if self._n_received % LOST_EACH:
                return datagram.payload

    def next_frame(self) -> bytes:
        """The next frame for our MAC address."""
        while True:
            self._socket.settimeout(max(self._due - time.monotonic(), 1e-3))
            frame = self._socket.recv(1 << 16)
            if frame[:6] == self.mac:
                return frame

    def close(self) -> None:
        self._socket.close()


def frame_of(sock: FrameSocket, packet: bytes, source_port: int, port: int) -> bytes:
    """A frame as the client makes it: IPv4 checksum 0, UDP checksum as the NIC would fill it in (here none)."""
    addresses = socket.inet_aton(sock.ip) + socket.inet_aton(ADDRESS)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(packet), 0, 0, 128, socket.IPPROTO_UDP, 0) + addresses
    udp = struct.pack("!HHHH", source_port, port, 8 + len(packet), 0)
    return sock.switch_mac + sock.mac + b"\x08\x00" + ip + udp + packet


class RawClient(V1Client):
    """Sends to the MAC address that it is told."""

    def _open(self) -> None:
        super()._open()
        self.sock.switch_mac = self.answer.mac.to_bytes(6, "big")


@pytest.fixture
def place():
    """A namespace with a veth, whose end `agg` has ADDRESS and MAC."""
    with Lab() as lab:
        space = lab.add("raw")
        space.ip(
            f"link add agg address {MAC.to_bytes(6, 'big').hex(':')} type veth peer name hosts",
            f"addr add {ADDRESS}/24 dev agg", "link set agg up", "link set hosts up",
        )  # fmt: skip
        space.set_sysctl(ipv4__conf__agg__arp_ignore=8)  # the kernel answers no ARP request there
        yield space


@pytest.fixture
def dataplane(place):
    plane = place.call(lambda: ThreadedDataplane(port=0, threads=1, raw="agg"))
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def clients(place, dataplane):
    controller = Controller(dataplane, control_port=0, v1=True)
    address = "{}:{}".format(*controller.start().control)
    macs = [0x02_00_00_00_22_01 + rank for rank in range(WORKERS)]
    sockets = [place.call(lambda r=r: FrameSocket("hosts", f"10.22.0.{r + 2}", macs[r])) for r in range(WORKERS)]
    connected = [RawClient(r, sockets[r].ip, sockets[r], address, (ADDRESS, PORT), macs[r]) for r in range(WORKERS)]
    try:
        good(on_all(connected, lambda client: client.connect()))
        yield connected
    finally:
        for client in connected:
            client.close()
            client.sock.close()
        controller.stop()


def test_all_reduce(clients, dataplane):
    rng = np.random.default_rng(22)
    for numel in (4_000, 65):
        inputs = [rng.integers(-(2**28), 2**28, numel).astype("int32") for _ in clients]
        for result in good(on_all(clients, lambda client, inputs=inputs: client.all_reduce(inputs[client.rank]))):
            np.testing.assert_array_equal(result, sum(inputs))
    floats = [rng.standard_normal(3_000).astype("float32") for _ in clients]
    results = good(on_all(clients, lambda client: client.all_reduce(floats[client.rank])))
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], sum(floats), atol=1e-6)
    assert all(client.answer.mac == MAC and client.retransmitted for client in clients)
    assert {size for client in clients for size in client.sock.sizes} == {42 + 10 + 256}  # single packets, no trains
    counted = dataplane.counters(1).ranks
    assert sum(rank["answered"] for rank in counted) and dataplane.refused()["refused_address"] == 0


def test_each_round_has_the_ports_of_its_last_packet(clients):
    """microsoft/SwitchML's DifferentPortsReduction: hosts steer results to their cores by UDP ports."""
    for extra in (0, 1):
        packet = V1Packet(1, 0, extra, 0, 0, 0, np.arange(64, dtype=np.int32)).pack()
        for client in clients:
            client.sock.send(frame_of(client.sock, packet, WORKER_PORT + extra, PORT + extra))
        for client in clients:
            client.sock.settimeout(10)
            datagram = None
            while datagram is None or not datagram.payload:
                datagram = datagram_in(client.sock.next_frame())
            assert (datagram.source_port, datagram.port) == (PORT + extra, WORKER_PORT + extra)
            np.testing.assert_array_equal(V1Packet.unpack(datagram.payload).values, WORKERS * np.arange(64))


def test_arp_is_answered(clients):
    sock = clients[0].sock
    question = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + sock.mac + socket.inet_aton(sock.ip) + bytes(6)
    sock.settimeout(10)
    sock.send(b"\xff" * 6 + sock.mac + b"\x08\x06" + question + socket.inet_aton("10.22.0.99"))  # somebody else's
    sock.send(b"\xff" * 6 + sock.mac + b"\x08\x06" + question + socket.inet_aton(ADDRESS))
    answer = sock.next_frame()
    assert answer[:14] == sock.mac + MAC.to_bytes(6, "big") + b"\x08\x06"
    assert answer[20:32] == b"\x00\x02" + MAC.to_bytes(6, "big") + socket.inet_aton(ADDRESS)


def test_what_is_no_v1_packet_for_us_is_not_taken(clients, dataplane):
    """A wrong IPv4 checksum, an address that no rank has; ports beyond 48879 do not get past the socket's filter."""
    sock = clients[0].sock
    received = dataplane.counters(1).ranks[0]["received_packets"]
    head = sock.switch_mac + sock.mac + b"\x08\x00"

    def frame(source: str, check: int, port: int) -> bytes:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + 266, 0, 0, 128, 17, check)
        udp = struct.pack("!HHHH", WORKER_PORT, port, 8 + 266, 0)
        return head + ip + socket.inet_aton(source) + socket.inet_aton(ADDRESS) + udp + b"\x11" + bytes(265)

    for source, check, port in ((sock.ip, 1, PORT), (sock.ip, 0, 48880), (sock.ip, 0, 48863), ("10.22.0.77", 0, PORT)):
        sock.send(frame(source, check, port))
    sock.send(frame(sock.ip, 0, 48879))  # in order: when this one has come, the others have
    deadline = time.monotonic() + 30
    while dataplane.counters(1).ranks[0]["received_packets"] == received and time.monotonic() < deadline:
        time.sleep(0.01)
    assert dataplane.counters(1).ranks[0]["received_packets"] == received + 1
    assert dataplane.refused()["refused_address"] == 1
