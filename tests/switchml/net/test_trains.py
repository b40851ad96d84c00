"""Trains are cut into the packets that Linux would have sent, and joined from packets that belong together."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch.ports.interpreted import interpreted
from switchml.net import checksum, packet_io, trains
from switchml.runtime.memory import u8_at

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
from scapy.layers.inet import IP, TCP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.layers.l2 import Dot1Q, Ether  # noqa: E402

ETHER = Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02")
NETWORKS = {
    "ipv4": ETHER / IP(src="10.0.0.1", dst="10.0.0.2", id=65534),
    "vlan": ETHER / Dot1Q(vlan=5) / IP(src="10.0.0.1", dst="10.0.0.2", id=7),
    "options": ETHER / IP(src="10.0.0.1", dst="10.0.0.2", options=b"\x01" * 8),
    "ipv6": ETHER / IPv6(src="fd00::1", dst="fd00::2"),
}
TRANSPORTS = {
    "udp": (UDP(sport=1, dport=2), 6),
    "tcp": (TCP(sport=1, dport=2, seq=2**32 - 100, flags="CPA", options=[("Timestamp", (1, 2))]), 16),
}


def raw(data: bytes) -> np.ndarray:
    """The bytes, with room behind them."""
    return np.frombuffer(bytearray(data + bytes(64)), np.uint8)


def text(at: int, length: int) -> bytes:
    return u8_at(int(at), int(length)).tobytes()


def one_s_sum(data: bytes) -> int:
    total = int.from_bytes(data + b"\0" * (len(data) % 2), "big") % 0xFFFF
    return total or (0xFFFF if any(data) else 0)


def cut(frame: np.ndarray, length: int, size: int, start: int, offset: int, kernel=trains.cut) -> list[bytes]:
    out = np.zeros(2_000_000, np.uint8)
    places, lengths = np.zeros(4096, np.int64), np.zeros(4096, np.int64)
    n, _ = kernel(frame.ctypes.data, length, size, start, offset, out.ctypes.data, out.size, places, lengths)
    return [text(places[i], lengths[i]) for i in range(n)]


@given(st.binary(max_size=300), st.integers(0, 0xFFFF))
def test_checksum(data, start):
    memory = raw(data)
    total = checksum.ones_sum(memory.ctypes.data, len(data), start)
    assert total % 0xFFFF == (one_s_sum(data) + start) % 0xFFFF
    assert (total == 0) == (not any(data) and start == 0)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("n_bytes", "size"), [(3000, 1000), (2999, 1000), (50, 7), (1, 1000)])
def test_cut(network, transport, n_bytes, size):
    header, offset = TRANSPORTS[transport]
    payload = bytes(i % 251 for i in range(n_bytes))
    whole = NETWORKS[network] / header / payload
    frame = bytearray(bytes(whole))
    start = len(frame) - n_bytes - len(header)
    # Linux leaves the sum of the pseudo header in the checksum's place, which is what the rest must add up to.
    frame[start + offset : start + offset + 2] = bytes(2)
    partial = (-int.from_bytes(bytes(whole)[start + offset :][:2], "big") - one_s_sum(bytes(frame[start:]))) % 0xFFFF
    frame[start + offset : start + offset + 2] = partial.to_bytes(2, "big")
    packets = cut(raw(bytes(frame)), len(frame), size, start, offset)
    expected = []
    for at in range(0, n_bytes, size):
        layers = NETWORKS[network].copy()
        if IP in layers:
            layers[IP].id = (layers[IP].id + at // size) & 0xFFFF
        last = at + size >= n_bytes
        part = header.copy()
        if transport == "tcp":
            part.seq = (part.seq + at) & 0xFFFFFFFF
            part.flags = ("C" if at == 0 else "") + ("PA" if last else "A")
        expected.append(bytes(layers / part / payload[at : at + size]))
    assert packets == expected
    assert cut(raw(bytes(frame)), len(frame), size, start, offset, interpreted(trains.cut)) == expected


@given(st.binary(min_size=60, max_size=200), st.integers(0, 300), st.integers(0, 300), st.integers(0, 20))
def test_frames_that_make_no_sense_are_not_cut(data, size, start, offset):
    packets = cut(raw(data), len(data), size, start, offset)
    assert all(len(packet) <= len(data) for packet in packets)
    assert packets == cut(raw(data), len(data), size, start, offset, interpreted(trains.cut))


@given(st.binary(max_size=64), st.integers(0, 70), st.integers(0, 70))
def test_completed_checksums(data, start, offset):
    frame, plainly = raw(data), raw(data)
    checksum.complete(frame.ctypes.data, len(data), start, offset)
    interpreted(checksum.complete)(plainly.ctypes.data, len(data), start, offset)
    assert bytes(frame) == bytes(plainly)


def datagrams(n: int, size: int, *, first_id: int = 65530, last: int | None = None, **udp) -> list[bytes]:
    sizes = [size] * (n - 1) + [size if last is None else last]
    return [
        bytes(ETHER / IP(src="10.0.0.1", dst="10.0.0.2", id=(first_id + i) & 0xFFFF) / UDP(**udp) / bytes([i] * length))
        for i, length in enumerate(sizes)
    ]


def joined(packets: list[bytes]) -> int:
    """How many of the packets would go into one train."""
    frames = [raw(packet) for packet in packets]
    places = [(frame.ctypes.data, len(packet)) for frame, packet in zip(frames, packets, strict=True)]
    if not trains.is_joinable(*places[0]):
        return 1
    n = 1
    while n < len(places) and places[n][1] <= places[0][1] and trains.is_joinable(*places[n]):
        if not trains.follows(places[0][0], n, places[n][0]):
            break
        n += 1
    return n


def test_what_is_joined():
    assert joined(datagrams(5, 100)) == 5
    assert joined(datagrams(5, 100, last=3)) == 5
    assert joined(datagrams(3, 100) + datagrams(2, 100, sport=9)) == 3
    assert joined(datagrams(3, 100) + datagrams(2, 101, first_id=65533)) == 3
    assert joined(datagrams(3, 100) + datagrams(2, 100)) == 3  # identification does not go on
    assert joined([bytes(ETHER / IP(flags="MF") / UDP() / b"x")] * 2) == 1
    damaged = bytearray(datagrams(1, 100)[0])
    damaged[-1] ^= 1
    assert joined([bytes(damaged)] * 2) == 1
    assert joined([bytes(ETHER / IP() / TCP() / b"x")] * 2) == 1
    assert joined(datagrams(5, 100, chksum=0)) == 5


@pytest.mark.parametrize("last", [1000, 1, 999])
def test_joined_packets_are_cut_into_the_same(last):
    packets = datagrams(40, 1000, last=last)
    payload = b"".join(packet[42:] for packet in packets)
    headers, first = np.zeros(64, np.uint8), raw(packets[0])
    trains.join_headers(headers.ctypes.data, first.ctypes.data, len(packets[0]) - 42, len(payload))
    frame = headers[10:52].tobytes() + payload
    flags, segmentation, size, start, offset = trains.virtio_fields(headers.ctypes.data)
    assert (flags, segmentation, size) == (trains.NEEDS_CHECKSUM, trains.UDP_SEGMENTS, 1000)
    assert cut(raw(frame), len(frame), size, start, offset) == packets


@pytest.mark.parametrize("run", [lambda kernel: kernel, interpreted], ids=["compiled", "interpreted"])
def test_a_vlan_tag_comes_back(run):
    io, batch = packet_io.new_packet_io(1), packet_io.new_batch()
    packet = bytes(ETHER / b"payload")
    message = u8_at(int(io.incoming.iovecs[0, 0]), 10 + len(packet))

    def take() -> tuple[int, bytes]:
        message[:] = np.frombuffer(bytes(10) + packet, np.uint8)
        count, _ = run(packet_io.take_message)(io, 0, batch, 0, 0)
        return count, text(batch.address[0], batch.length[0])

    io.incoming.headers[0, 5], io.incoming.headers[0, 7] = 36, len(message)
    io.incoming.control[0, :2] = 36, 263 | (8 << 32)
    data = io.incoming.control[0].view(np.uint8)
    data[16] = 0x50
    data[32:36] = 0x05, 0x20, 0xA8, 0x88  # tag 0x2005, kind 0x88a8
    assert take() == (1, packet[:12] + b"\x88\xa8\x20\x05" + packet[12:])
    data[16] = 0
    assert take() == (1, packet)
