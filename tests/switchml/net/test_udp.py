"""Batches of datagrams over loopback sockets: what is sent arrives, complete, in order, from the right sender.

Every test of sending runs twice, with the kernel's segmentation offload and without; receiving runs with and without
GRO. A kernel without them runs the same tests on the plain path.
"""

import os
import socket
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.net import libc, sockets, udp
from tests.support.examples import examples
from tests.support.started import started

MILLISECOND = 1_000_000


class End:
    """A bound socket with its buffers; `gro` and `segmentation` switch the kernel's offloads off."""

    def __init__(self, gro: bool = True, segmentation: bool = True):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        sockets.grow_buffers(self.socket, 4 << 20)
        self.io = udp.new_udp_io(self.socket)
        self.endpoint = udp.endpoint(*self.socket.getsockname())
        if not gro and udp.probe_offload(self.socket)[1]:
            self.socket.setsockopt(libc.SOL_UDP, libc.UDP_GRO, 0)
        if not segmentation:
            self.io.config[1] = 0
        self.incoming = udp.new_packets(udp.RECEIVE_PACKETS)

    def send(self, datagrams: list[tuple[int, bytes]]) -> int:
        """Send (endpoint, bytes) pairs as one batch; returns how many messages failed."""
        packets = udp.new_packets(max(len(datagrams), 1))
        buffers = [np.frombuffer(data or b"\0", np.uint8) for _, data in datagrams]
        for i, ((to, data), buffer) in enumerate(zip(datagrams, buffers, strict=True)):
            packets.address[i], packets.length[i], packets.endpoint[i] = buffer.ctypes.data, len(data), to
        return udp.send_batch(self.io, packets, len(datagrams))

    def take(self) -> list[tuple[int, bytes]]:
        """One batch of what has arrived, as (sender's endpoint, bytes)."""
        count = udp.receive_batch(self.io, self.incoming)
        return [(int(self.incoming.endpoint[i]), udp.payload_of(self.incoming, i)) for i in range(count)]

    def take_all(self, count: int) -> list[tuple[int, bytes]]:
        """Batches until `count` datagrams are here; loopback delivers while the sender sends, so no waiting."""
        received = []
        while len(received) < count:
            batch = self.take()
            assert batch, f"{len(received)} of {count} datagrams arrived"
            received += batch
        assert self.take() == []
        return received

    def needs_room(self, count: int) -> None:
        """Skip if the receive buffer can't hold `count` small datagrams: the kernel counts 2,304 bytes for each."""
        if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < 2304 * count:
            pytest.skip(f"needs a receive buffer for {count} datagrams (raise net.core.rmem_max, or run as root)")

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def ends():
    """Makes ends, and closes them after the test."""
    yield from started(End, End.close)


@pytest.fixture(params=[True, False], ids=["segmentation", "one-by-one"])
def segmentation(request) -> bool:
    return request.param


@pytest.fixture(params=[True, False], ids=["gro", "no-gro"])
def gro(request) -> bool:
    return request.param


def numbered(count: int, size: int) -> list[bytes]:
    return [i.to_bytes(4, "big") + bytes([i & 0xFF]) * (size - 4) for i in range(count)]


# -- endpoints and offload --


@given(st.ip_addresses(v=4), st.integers(0, 65535))
def test_an_endpoint_is_address_and_port_in_one_number(ip, port):
    value = udp.endpoint(str(ip), port)
    assert value == int(ip) << 16 | port
    assert udp.endpoint_text(value) == udp.endpoint_text(np.uint64(value)) == (str(ip), port)


def test_a_socket_says_what_offload_it_has(ends):
    end = ends()
    segment, gro = udp.probe_offload(end.socket)
    assert end.io.config.tolist() == [end.socket.fileno(), segment]
    if gro:
        assert end.socket.getsockopt(libc.SOL_UDP, libc.UDP_GRO) == 1
    if segment:  # asking must leave no segment size behind for plain sends
        assert end.socket.getsockopt(libc.SOL_UDP, libc.UDP_SEGMENT) == 0


# -- batches --


@pytest.mark.parametrize("count", [1, 2, 59, 60, 61, 64, 121, 700])
@pytest.mark.parametrize("size", [4, 266, 1034])
def test_a_train_arrives_complete_and_in_order(ends, segmentation, gro, count, size):
    """Trains longer than one message holds; a system call sends 64 messages, and one takes 16."""
    sender, receiver = ends(segmentation=segmentation), ends(gro=gro)
    receiver.needs_room(count)
    datagrams = numbered(count, size)
    assert sender.send([(receiver.endpoint, data) for data in datagrams]) == 0
    assert receiver.take_all(count) == [(sender.endpoint, data) for data in datagrams]


def test_a_thousand_messages_in_one_batch(ends):
    """No two neighbours have one length, so that each is a message of its own."""
    sender, receiver = ends(), ends()
    receiver.needs_room(1000)
    datagrams = [bytes([i & 0xFF]) * (10 + i % 2) for i in range(1000)]
    assert sender.send([(receiver.endpoint, data) for data in datagrams]) == 0
    assert receiver.take_all(1000) == [(sender.endpoint, data) for data in datagrams]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 10, 42, 266, 266, 1034, 1034, 1400])), max_size=150),
    st.booleans(),
    st.booleans(),
)
@examples(40)
def test_mixed_lengths_and_destinations(plan, segmentation, gro):
    """Each receiver gets its datagrams in the order in which they were listed, with the sender's endpoint."""
    sender, receivers = End(segmentation=segmentation), [End(gro=gro) for _ in range(3)]
    try:
        datagrams = [(to, bytes([i & 0xFF]) * size) for i, (to, size) in enumerate(plan)]
        assert sender.send([(receivers[to].endpoint, data) for to, data in datagrams]) == 0
        for number, receiver in enumerate(receivers):
            mine = [(sender.endpoint, data) for to, data in datagrams if to == number]
            assert receiver.take_all(len(mine)) == mine
    finally:
        for end in (sender, *receivers):
            end.close()


def test_senders_are_told_apart(ends, gro):
    receiver, senders = ends(gro=gro), [ends() for _ in range(5)]
    for turn in range(3):
        for number, sender in enumerate(senders):
            sender.send([(receiver.endpoint, bytes([turn, number]) * 133)] * 4)
    expected = [(senders[n].endpoint, bytes([turn, n]) * 133) for turn in range(3) for n in range(5) for _ in range(4)]
    assert receiver.take_all(60) == expected


def test_datagrams_larger_than_any_of_ours(ends, segmentation):
    """A train must stay below what one message may hold, whatever the length of its packets."""
    sender, receiver = ends(segmentation=segmentation), ends()
    for size, count in ((1472, 100), (9000, 16), (40_000, 4), (65_507, 2)):
        datagrams = numbered(count, size)
        assert sender.send([(receiver.endpoint, data) for data in datagrams]) == 0
        assert receiver.take_all(count) == [(sender.endpoint, data) for data in datagrams]


def test_what_can_not_be_sent_is_counted_and_the_rest_goes_on(ends):
    """A datagram that is too large, and one to port 0, in the midst of good ones."""
    sender, receiver = ends(), ends()
    nowhere = udp.endpoint("127.0.0.1", 0)
    batch = [
        (receiver.endpoint, b"a"),
        (receiver.endpoint, bytes(65_508)),
        (receiver.endpoint, b"b"),
        (nowhere, b"c"),
        (receiver.endpoint, b"d"),
    ]
    assert sender.send(batch) == 2
    assert [data for _, data in receiver.take_all(3)] == [b"a", b"b", b"d"]


def test_a_plain_socket_understands_a_train(ends):
    """What leaves as one message is separate datagrams on the wire."""
    sender = ends()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.bind(("127.0.0.1", 0))
        plain.settimeout(60)
        datagrams = numbered(100, 266)
        sender.send([(udp.endpoint(*plain.getsockname()), data) for data in datagrams])
        assert [plain.recv(2000) for _ in range(100)] == datagrams


def test_packets_stay_valid_until_the_next_batch(ends):
    sender, receiver = ends(), ends()
    sender.send([(receiver.endpoint, data) for data in numbered(130, 266)])
    first = udp.receive_batch(receiver.io, receiver.incoming)
    sender.send([(receiver.endpoint, b"later" * 20)] * 50)
    assert [udp.payload_of(receiver.incoming, i) for i in range(first)] == numbered(130, 266)[:first]


# -- sleeping --


def wait(fd_a: int, fd_b: int, timeout_ns: int) -> int:
    return libc.wait_readable(fd_a, fd_b, timeout_ns, np.zeros(8, np.int64))


def test_wait_readable_wakes_by_either_descriptor(ends):
    end, other = ends(), ends()
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        fd = end.socket.fileno()
        assert wait(fd, wake, 0) == 0
        other.send([(end.endpoint, b"x")])
        assert wait(fd, wake, 10_000 * MILLISECOND) == 1
        os.eventfd_write(wake, 1)
        assert wait(fd, wake, -1) == 3
        end.take()
        assert wait(fd, wake, -1) == 2
        assert wait(wake, fd, -1) == 1
        os.eventfd_read(wake)
        assert wait(fd, wake, 0) == 0
    finally:
        os.close(wake)


@pytest.mark.parametrize("milliseconds", [0, 1, 20, 1100])
def test_wait_readable_ends_by_its_timeout(ends, milliseconds):
    """The kernel gets the seconds and nanoseconds of a timespec, both; while it waits nothing becomes readable."""
    timeout_ns, scratch = milliseconds * MILLISECOND, np.zeros(8, np.int64)
    assert libc.wait_readable(ends().socket.fileno(), ends().socket.fileno(), timeout_ns, scratch) == 0
    assert tuple(scratch[2:4]) == divmod(timeout_ns, 1000 * MILLISECOND)


def test_now_is_the_monotonic_clock():
    before = time.monotonic_ns()
    now = libc.now_ns(np.zeros(2, np.int64))
    assert before <= now <= time.monotonic_ns()


def test_grow_buffers_says_what_the_kernel_gave(ends):
    end = ends()
    size_bytes = sockets.grow_buffers(end.socket, 1 << 16)
    assert size_bytes == end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 1 << 16
