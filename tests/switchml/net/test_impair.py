"""The bad network: its rates, its determinism, and that it invents nothing and loses nothing but by its loss rate."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchml.errors import ConfigError
from switchml.net import udp
from switchml.net.impair import MAX_DELAYED, active, impair, new_impairment, next_release
from tests.support.examples import examples

MILLISECOND = 1_000_000
HOLD = 2 * MILLISECOND
NEVER = np.iinfo(np.int64).max


class Link:
    """An impairment, and numbered packets through it."""

    def __init__(self, *rates: float, seed: int = 0):
        self.impairment = new_impairment(*rates, seed=seed)
        self.sent = 0

    def pass_on(self, count: int, now: int, size: int = 64) -> list[int]:
        """`count` more packets at `now`; returns the numbers of what comes out, whose bytes have to be whole."""
        packets, output = udp.new_packets(max(count, 1)), udp.new_packets(2 * count + 2 * MAX_DELAYED)
        buffers = []
        for i in range(count):
            buffers.append(np.frombuffer(self.packet(self.sent + i, size), np.uint8))
            packets.address[i], packets.length[i] = buffers[i].ctypes.data, size
            packets.endpoint[i] = (self.sent + i) << 16 | 7
        self.sent += count
        n = impair(self.impairment, packets, count, now, output)
        numbers = []
        for i in range(n):
            data = udp.payload_of(output, i)
            number = int.from_bytes(data[:4], "big")
            assert data == self.packet(number, len(data)) and number < self.sent
            assert output.endpoint[i] == number << 16 | 7
            numbers.append(number)
        return numbers

    @staticmethod
    def packet(number: int, size: int) -> bytes:
        return number.to_bytes(4, "big") + bytes([number % 251]) * (size - 4)

    @property
    def counts(self) -> list[int]:
        """Packets lost, delayed, doubled."""
        return self.impairment.counts.tolist()


def near(count: int, rate: float, trials: int) -> bool:
    """Within five standard deviations of a binomial; the seeds are fixed, so this never flickers."""
    return abs(count - rate * trials) <= 5 * math.sqrt(trials * rate * (1 - rate)) + 1


@pytest.mark.parametrize("name", ["loss", "reorder", "duplicate"])
@pytest.mark.parametrize("rate", [-0.01, 1.0, 1.5, math.nan, math.inf])
def test_a_rate_is_a_probability_below_one(name, rate):
    with pytest.raises(ConfigError, match=f"{name} rate"):
        new_impairment(**{name: rate})


def test_a_good_network_changes_nothing():
    link = Link()
    assert not active(link.impairment)
    assert link.pass_on(500, 0) == list(range(500)) and link.pass_on(0, MILLISECOND) == []
    assert link.counts == [0, 0, 0] and next_release(link.impairment) == NEVER


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize(
    "rates", [(0.01, 0, 0), (0.3, 0, 0), (0, 0.01, 0), (0, 0.2, 0), (0, 0, 0.01), (0, 0, 0.5), (0.1, 0.1, 0.1)]
)
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_rates_are_met(rates, seed):
    """Of those that are not lost, the given shares are delayed and doubled, as long as there is room to hold them."""
    link, trials = Link(*rates, seed=seed), 20_000
    assert active(link.impairment)
    out = []
    for batch in range(trials // 100):
        out += link.pass_on(100, batch * MILLISECOND // 10)
    loss, reorder, duplicate = rates
    lost, late, doubled = link.counts
    arrived = trials - lost
    assert near(lost, loss, trials) and near(late, reorder, arrived) and near(doubled, duplicate, arrived)
    out += link.pass_on(0, NEVER)
    assert len(out) == arrived + doubled


def test_fates_are_independent():
    """The loss of one packet says nothing about the next (a weak generator would show here)."""
    link = Link(0.5, seed=3)
    survivors = set(link.pass_on(20_000, 0))
    pairs = Counter((i in survivors, i + 1 in survivors) for i in range(19_999))
    assert all(near(pairs[a, b], 0.25, 19_999) for a in (True, False) for b in (True, False))


@given(
    st.tuples(*[st.sampled_from([0.0, 0.1, 0.5, 0.95])] * 3),
    st.integers(0, 2**63),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, MILLISECOND)), max_size=30),
)
@examples(80)
@example((0.0, 0.95, 0.95), 1, [(40, 0)] * 30)
def test_every_packet_comes_out_in_the_end(rates, seed, batches):
    """Once, or twice if it was doubled, unless it was lost; nothing else comes, and the same seed does the same."""
    links = [Link(*rates, seed=seed) for _ in range(2)]
    outputs: list[list[int]] = [[], []]
    for link, out in zip(links, outputs, strict=True):
        now = 0
        for count, pause in batches:
            now += pause
            out += link.pass_on(count, now)
        out += link.pass_on(0, now + HOLD)
        assert next_release(link.impairment) == NEVER and link.pass_on(0, now + HOLD) == []
        lost, _, doubled = link.counts
        copies = Counter(out)
        assert set(copies.values()) <= {1, 2}
        assert len(copies) == link.sent - lost and len(out) == link.sent - lost + doubled
    assert outputs[0] == outputs[1] and links[0].counts == links[1].counts


def test_another_seed_is_another_fate():
    fates = {tuple(Link(0.5, seed=seed).pass_on(64, 0)) for seed in range(20)}
    assert len(fates) == 20


def test_a_held_packet_comes_out_after_two_milliseconds():
    link = Link(0, 0.99, 0, seed=1)
    assert link.pass_on(1, 5) == []
    assert next_release(link.impairment) == 5 + HOLD
    assert link.pass_on(0, 5 + HOLD - 1) == []
    assert link.pass_on(0, 5 + HOLD) == [0]
    assert next_release(link.impairment) == NEVER and link.pass_on(0, 5 + HOLD) == []


def test_a_held_packet_is_passed_by_32_others_at_most():
    """Reordering is real, and bounded; packets that are not delayed keep their order."""
    link = Link(0, 0.1, 0, seed=2)
    out = []
    for _ in range(100):
        out += link.pass_on(20, 0)
    place = {number: i for i, number in enumerate(out)}
    late = [place[number] - number for number in sorted(place)]
    delayed = link.counts[1]
    assert delayed > 100 and sum(by > 0 for by in late) > delayed / 2
    assert max(late) <= 32 + MAX_DELAYED
    passed = [sum(1 for other in out[: place[number]] if other > number) for number in sorted(place)]
    assert max(passed) <= 32 and sorted(set(p for p in passed if p))[-1] > 16
    straight = [number for number, p in zip(sorted(place), passed, strict=True) if p == 0]
    assert [number for number in out if number in set(straight)] == straight


def test_the_copy_of_a_held_packet_goes_at_once():
    link = Link(0, 0.99, 0.99, seed=4)
    first = link.pass_on(1, 0)
    assert first == [0] and link.counts == [0, 1, 1]
    assert link.pass_on(0, HOLD) == [0]


def test_what_finds_no_room_is_not_held():
    """More delayed packets than there is room for, and packets too large to copy, pass at once."""
    link = Link(0, 0.999, 0, seed=5)
    out = link.pass_on(1, 0, size=2049)
    assert out == [0] and link.counts[1] == 0
    assert link.pass_on(1, 0, size=2048) == [] and link.counts[1] == 1
    several = Link(0, 0.999, 0, seed=6)
    out = several.pass_on(3 * MAX_DELAYED, 0) + several.pass_on(0, HOLD)
    assert sorted(out) == list(range(3 * MAX_DELAYED))
