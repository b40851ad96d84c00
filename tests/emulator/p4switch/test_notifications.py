"""What subscribers hear: written here as nanomsg's SUB socket would read it."""

import socket
import struct

import pytest

from emulator.p4switch.notifications import Notifications, Publisher
from switchml.errors import ConfigError


def exactly(sock: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        data += sock.recv(n - len(data))
    return data


class Subscriber:
    """A SUB socket at the other end of a Unix socket."""

    def __init__(self, path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(100)
        self.socket.connect(str(path))
        assert exactly(self.socket, 8) == b"\0SP\0\0\x20\0\0"
        self.socket.sendall(b"\0SP\0\0\x21\0\0")

    def read(self) -> bytes:
        kind, length = struct.unpack(">BQ", exactly(self.socket, 9))
        assert kind == 1
        return exactly(self.socket, length)


@pytest.fixture
def published(switch, tmp_path):
    """`published(program)` gives (switch, subscriber)."""
    stack = []

    def start(name: str):
        running = switch(name)
        publisher = Publisher(f"ipc://{tmp_path / 'n.ipc'}")
        notifications = Notifications(publisher, 7)
        stack.append(notifications)
        notifications.watch(running.state)
        subscriber = Subscriber(tmp_path / "n.ipc")
        while not publisher._peers:  # until it has read the greeting
            pass
        return running, notifications, subscriber

    yield start
    for notifications in stack:
        notifications.close()


def test_digests(published):
    running, _, subscriber = published("digest")
    frame = bytes.fromhex("020000000001 020000000002 0800") + bytes(46)
    running.receive(3, frame)
    running.now += 2_000_000
    running.poll()
    topic, device, context, list_id, buffer_id, n = struct.unpack("=4sQIiQI", (message := subscriber.read())[:32])
    (digest,) = running.state.digests
    assert (topic, device, context, list_id, buffer_id, n) == (b"LEA|", 7, 0, digest.list.id, 0, 1)
    assert len(message) - 32 == sum((width + 7) // 8 for width in digest.widths)
    assert bytes.fromhex("020000000002") in message[32:]


def test_aged_entries(published):
    running, notifications, subscriber = published("timeouts")
    handle = running.add("MyIngress.stations", [1], "MyIngress.send", (2,))
    running.state.table("MyIngress.stations").set_timeout(handle, 5000)
    running.now += 4_000_000
    notifications.publish_aged(running.state)
    running.now += 2_000_000
    notifications.publish_aged(running.state)
    notifications.publish_aged(running.state)  # once is enough
    running.now += 3_999_999
    notifications.publish_aged(running.state)
    table = running.state.table("MyIngress.stations").table.id

    def is_reported(number: int) -> bool:
        message = subscriber.read()
        header = struct.unpack("=4sQIQiI", message[:32])
        return (*header, *struct.unpack("=I", message[32:])) == (b"AGE|", 7, 0, number, table, 1, handle)

    assert is_reported(0)
    running.now += 1  # the time-out has run out a second time
    notifications.publish_aged(running.state)
    assert is_reported(1)
    running.state.table("MyIngress.stations").delete(handle)
    running.now += 5_000_000
    notifications.publish_aged(running.state)
    subscriber.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        subscriber.read()


def test_a_subscriber_that_goes_is_forgotten(published):
    running, notifications, subscriber = published("digest")
    subscriber.socket.close()
    for _ in range(3):
        notifications.publisher.publish(b"x")
    assert not notifications.publisher._peers


@pytest.mark.parametrize("address", ["nonsense", "ipc:///nonsense/x", "tcp://127.0.0.1:x", "tcp://127.0.0.1:99999"])
def test_addresses_that_make_no_sense(address):
    with pytest.raises(ConfigError, match="notifications can't be sent"):
        Publisher(address)
