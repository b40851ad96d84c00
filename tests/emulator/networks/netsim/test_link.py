"""One direction of a cable: when packets arrive, what waits, and what is lost."""

import random
from dataclasses import dataclass

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from emulator.networks.netsim.config import LinkConfig
from emulator.networks.netsim.link import Link, Server, at
from tests.support.examples import examples


@dataclass
class Packet:
    number: int
    length: int
    count: int = 1


def carry(config: LinkConfig, sends: list[tuple[int, int]], seed: int = 1):
    """Send packets of (time in ns, length); returns the link and (time, number) of what arrived."""
    env, arrived = simpy.Environment(0), []
    link = Link(env, config, random.Random(seed), lambda packet: arrived.append((env.now, packet.number)))
    for number, (time_ns, length) in enumerate(sends):
        at(env, time_ns, link.send, Packet(number, length))
    env.run()
    return link, arrived


def test_packets_take_their_time_one_after_the_other():
    config = LinkConfig(rate_bps=8e9, delay_s=1e-6, framing_bytes=0)  # a byte a nanosecond
    _, arrived = carry(config, [(0, 1000), (0, 500), (5000, 100)])
    assert arrived == [(2000, 0), (2500, 1), (6100, 2)]


def test_framing_counts():
    link, arrived = carry(LinkConfig(rate_bps=8e9, delay_s=0, framing_bytes=66), [(0, 1034)])
    assert arrived == [(1100, 0)]
    assert link.counts.bytes == 1100


def test_a_full_queue_drops_and_says_what_it_held():
    config = LinkConfig(rate_bps=8e9, delay_s=0, queue_bytes=2500, framing_bytes=0)
    link, arrived = carry(config, [(0, 1000)] * 4 + [(1600, 1000)])
    assert [number for _, number in arrived] == [0, 1, 4]
    assert (link.counts.dropped, link.counts.most_queued_bytes) == (2, 2000)
    # 1000 bytes for 1 µs, 1000 for 2 µs, 1000 from 1.6 to 3 µs.
    assert link.counts.queued_byte_s == pytest.approx((1000 * 1 + 1000 * 2 + 1000 * 1.4) * 1e-6)


def test_a_token_bucket_lets_a_burst_pass_and_keeps_the_rate():
    config = LinkConfig(rate_bps=8e9, delay_s=0, burst_bytes=2000, framing_bytes=0)
    _, arrived = carry(config, [(0, 1000)] * 4 + [(100_000, 1000)] * 3)
    assert [time for time, _ in arrived] == [0, 0, 1000, 2000, 100_000, 100_000, 101_000]


def test_a_slow_handler_is_slower_than_the_line():
    _, arrived = carry(LinkConfig(rate_bps=8e9, delay_s=0, packet_s=5e-6, framing_bytes=0), [(0, 1000)] * 2)
    assert [time for time, _ in arrived] == [5000, 10_000]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("burst", [1.0, 10.0])
def test_losses_have_their_share_and_come_in_bursts(burst):
    count = 40_000
    config = LinkConfig(rate_bps=1e12, loss=0.05, burst_packets=burst)
    link, arrived = carry(config, [(i, 100) for i in range(count)])
    assert link.counts.lost == count - len(arrived)
    assert link.counts.lost / count == pytest.approx(0.05, rel=0.3)
    got = {number for _, number in arrived}
    runs = sum(1 for i in range(1, count) if i not in got and i - 1 in got)
    assert link.counts.lost / runs == pytest.approx(max(burst, 1 / 0.95), rel=0.2)


def test_jitter_keeps_the_order_and_lateness_does_not():
    sends = [(1000 * i, 100) for i in range(300)]
    _, jittery = carry(LinkConfig(jitter_s=1e-5), sends)
    assert [number for _, number in jittery] == list(range(300))
    link, late = carry(LinkConfig(late=0.2, late_s=1e-4, duplicate=0.1), sends)
    numbers = [number for _, number in late]
    assert numbers != sorted(numbers)
    assert set(numbers) == set(range(300)) and len(numbers) == 300 + link.counts.duplicated > 300


def test_what_a_cut_link_is_given_is_lost():
    env, arrived = simpy.Environment(0), []
    link = Link(env, LinkConfig(), random.Random(1), arrived.append)
    link.is_cut = True
    assert link.send(Packet(0, 100))
    link.is_cut = False
    link.send(Packet(1, 100))
    env.run()
    assert [packet.number for packet in arrived] == [1]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 1500)), min_size=1, max_size=40),
    st.sampled_from([1e6, 1e9, 1e11]),
    st.sampled_from([0, 5000]),
)
@examples(60)
def test_a_link_is_never_faster_than_its_rate(sends, rate_bps, burst_bytes):
    """Against the slow definition of a token bucket: in no interval more than the burst and the interval's share."""
    sends.sort()
    config = LinkConfig(rate_bps=rate_bps, delay_s=0, burst_bytes=burst_bytes)
    _, arrived = carry(config, sends)
    assert len(arrived) == len(sends)
    sizes = [length + config.framing_bytes for _, length in sends]
    for first in range(len(arrived)):
        for last in range(first, len(arrived)):
            interval_s = (arrived[last][0] - arrived[first][0]) / 1e9
            between = sum(sizes[number] for _, number in arrived[first + 1 : last + 1])
            assert 8 * between <= rate_bps * interval_s + 8 * burst_bytes + rate_bps * 2e-9


def test_a_server_takes_packets_in_turn():
    env, done = simpy.Environment(0), []
    server = Server(env, 1e6, 5e-6, lambda packet: done.append(env.now))
    for _ in range(3):
        server.send(Packet(0, 0))
    env.run()
    assert done == [6000, 7000, 8000]
    assert (server.handled, server.most_waiting) == (3, 3)
