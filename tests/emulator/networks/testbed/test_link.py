"""Links of our own between datagram sockets on loopback: what goes in comes out, or is counted as lost."""

import contextlib
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.networks.testbed import link
from emulator.networks.testbed.link import COUNTS, FAILED, FRAME_BYTES, LOST, RECEIVED, SENT, move, new_links, next_due
from switchml.errors import ConfigError
from tests.switchml.net.test_lossy_trains import UDP, train

NEVER = 2**63 - 1


class Wire:
    """Sockets in front of a link and behind it."""

    def __init__(self, stack: contextlib.ExitStack):
        self.source, self.inlet, self.outlet, self.sink = (
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(4)
        )
        for a, b in ((self.source, self.inlet), (self.outlet, self.sink)):
            b.bind(("127.0.0.1", 0))
            a.connect(b.getsockname())
        self.sink.setblocking(False)

    @property
    def pair(self) -> tuple[int, int]:
        return self.inlet.fileno(), self.outlet.fileno()

    def arrived(self) -> list[bytes]:
        frames = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frames.append(self.sink.recv(FRAME_BYTES))
        return frames


@pytest.fixture
def wires():
    with contextlib.ExitStack() as stack:
        yield lambda count: [Wire(stack) for _ in range(count)]


def numbered(count: int) -> list[bytes]:
    return [struct.pack("<I", i) for i in range(count)]


def send_through(wire: Wire, links: link.Links, frames: list[bytes]) -> list[bytes]:
    out = []
    for frame in frames:
        wire.source.send(frame)
        move(links, 0)
        out += wire.arrived()
    return out


@given(st.integers(0, 150), st.floats(0, 0.99), st.integers(0, 2**32))
def test_all_that_is_not_lost_arrives_in_order(count, loss, seed):
    with contextlib.ExitStack() as stack:
        wire = Wire(stack)
        links = new_links([wire.pair], loss=loss, seed=seed)
        frames = numbered(count)
        arrived = send_through(wire, links, frames)
        counts = dict(zip(COUNTS, links.counts[0].tolist(), strict=True))
        assert counts == {"received": count, "lost": count - len(arrived), "sent": len(arrived), "failed": 0}
        assert arrived == sorted(arrived) and set(arrived) <= set(frames)
        assert loss or arrived == frames


def test_share_lost_and_seed(wires):
    fates = []
    for seed, number in ((1, 0), (1, 0), (1, 1), (2, 0)):
        (wire,) = wires(1)
        links = new_links([wire.pair], loss=0.2, seed=seed, numbers=[number])
        fates.append(send_through(wire, links, numbered(2000)))
        assert 300 < links.counts[0, LOST] < 500
    assert fates[0] == fates[1]
    assert fates[0] != fates[2] != fates[3] != fates[0]


def test_packets_of_a_train_meet_the_fate_of_single_ones(wires):
    alone, together = wires(2)
    links = new_links([alone.pair, together.pair], loss=0.3, seed=3, numbers=[5, 5])
    payloads = [bytes([i]) * 100 for i in range(40)]
    survivors = []
    for i, payload in enumerate(payloads):
        alone.source.send(train(UDP, payload, 100))
        move(links, 0)
        survivors += [payloads[i]] * len(alone.arrived())
    together.source.send(train(UDP, b"".join(payloads), 100))
    move(links, 0)
    (left,) = together.arrived()
    assert left.endswith(b"".join(survivors))
    assert 0 < len(survivors) < 40
    assert links.counts[0].tolist() == links.counts[1].tolist()


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=40))
def test_delay(gaps):
    delay_ns = 1_000_000
    with contextlib.ExitStack() as stack:
        wire = Wire(stack)
        links = new_links([wire.pair], delay_s=delay_ns / 1e9)
        assert next_due(links) == NEVER
        now, due, arrived = 0, [], []
        for i, gap in enumerate(gaps):
            now += gap
            wire.source.send(struct.pack("<I", i))
            move(links, now)
            due.append(now + delay_ns)
            arrived += wire.arrived()
            assert len(arrived) == sum(time <= now for time in due)
            left = [time for time in due if time > now]
            assert next_due(links) == (left[0] if left else NEVER)
        move(links, now + delay_ns)
        assert arrived + wire.arrived() == numbered(len(gaps))


def test_full_link_takes_no_more_until_there_is_room(wires):
    (wire,) = wires(1)
    links = new_links([wire.pair], delay_s=1e-3, capacity_bytes=3 * FRAME_BYTES)
    frames = [bytes([i]) * 50_000 for i in range(12)]
    arrived, now = [], 0
    for frame in frames[:3]:
        wire.source.send(frame)
    while len(arrived) < len(frames):
        move(links, now)
        assert links.ends[0, 1] - links.ends[0, 0] <= 4
        batch = wire.arrived()
        for i in range(len(batch)):
            if len(arrived) + 3 + i < len(frames):
                wire.source.send(frames[len(arrived) + 3 + i])
        arrived += batch
        now += 300_000
        assert now < 1e9
    assert arrived == frames
    assert links.counts[0].tolist() == [12, 0, 12, 0]


def test_refused_frames_are_counted(wires):
    (wire,) = wires(1)
    links = new_links([wire.pair])
    wire.sink.close()
    for frame in numbered(10):
        wire.source.send(frame)
        move(links, 0)
    assert links.counts[0, RECEIVED] == 10
    assert links.counts[0, SENT] + links.counts[0, FAILED] == 10
    assert links.counts[0, FAILED] > 0  # "connection refused", reported by the next send


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"loss": 1.0}, "loss 1.0"), ({"loss": -0.1}, "loss"), ({"delay_s": -1}, "delay"), ({"capacity_bytes": 5}, "5")],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        new_links([(0, 1)], **arguments)
