"""The choice of codecs, on networks that are made up: latency, rate and noise are known here, so what auto loses by
having to find them out can be told exactly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from host_agent.adaptive.network import GATHER, LEAST_PROBE_BYTES, SUM, Network, Prober, Sample, Watch
from host_agent.adaptive.policy import CHOICES, BucketPolicy, Costs, is_auto, parse_auto
from switchml.errors import ConfigError

MEGABIT = 1e6 / 8
LATENCY_S = 1e-3
GATHER_LATENCY_S = 1.5e-3
"""Other sockets, more hops."""
COSTS = [
    Costs(1, 4_284_456, 0.002, 0.0),
    Costs(1, 2_142_228, 0.004, 2e-4),
    Costs(2, 1_071_114, 0.030, 0.15),
    Costs(2, 1_300_000, 0.020, 0.35),
    Costs(2, 400_000, 0.014, 0.45),
    Costs(2, 140_000, 0.012, 0.60),
    Costs(2, 45_000, 0.012, 0.75),
]
"""Of a million elements, about as rehearsals on a quiet machine find them."""


SMALL = [
    Costs(1, 87_000, 1e-4, 0.0),
    Costs(1, 43_500, 2e-4, 2e-4),
    Costs(2, 22_000, 1e-3, 0.15),
    Costs(2, 26_000, 6e-4, 0.35, GATHER),
    Costs(2, 8_100, 5e-4, 0.45, GATHER),
    Costs(2, 2_900, 5e-4, 0.60, GATHER),
    Costs(2, 1_000, 5e-4, 0.75, GATHER),
]
"""Of a network of 21 700 parameters: how many collectives follow each other counts as much as their bytes."""


def true_s(choice: int, rate_mbps: float, table: list[Costs] = COSTS) -> tuple[float, float]:
    """Seconds in the network, and of computing."""
    costs = table[choice]
    latency_s = LATENCY_S if costs.way == SUM else GATHER_LATENCY_S
    return costs.requests * latency_s + costs.wire_bytes / (rate_mbps * MEGABIT), costs.compute_s


class Run:
    """Training of one bucket with auto, a step at a time."""

    def __init__(self, error: float = 0.9, noise: float = 0.0, costs: list[Costs] = COSTS, pause: int = 1):
        self.network, self.policy = Network(), BucketPolicy(error)
        self.policy.costs = self.costs = costs
        self.pause, self.decide_at, self.unheard = pause, 0, []
        self.rng, self.noise = np.random.default_rng(3), noise
        self.prober, self.watch = Prober(), Watch()
        self.step, self.now_s = 0, 0.0
        self.taken: list[int] = []

    def steps(self, count: int, rate_mbps: float) -> list[float]:
        """As the compressor goes about it: decides every `pause` steps, and after one that was out of proportion."""
        times = []
        for _ in range(count):
            choice = self.policy.current
            network_s, compute_s = (
                seconds * float(np.exp(self.noise * self.rng.standard_normal()))
                for seconds in true_s(choice, rate_mbps, self.costs)
            )
            self.taken.append(choice)
            self.unheard.append((self.step, choice, network_s, compute_s))
            self.now_s += network_s + compute_s
            self.step += 1
            is_odd = self.watch.sees_change((choice,), network_s, self.network.latency_s)
            extra_s = self.decide(rate_mbps) if is_odd or self.step >= self.decide_at else 0.0
            times.append(network_s + compute_s + extra_s)
        return times

    def decide(self, rate_mbps: float) -> float:
        """Learn from the steps since the last time and choose; seconds that it takes beyond one step's."""
        self.network.add_latency(LATENCY_S)
        for step, choice, network_s, compute_s in self.unheard[-4:]:
            costs = self.costs[choice]
            self.network.add(Sample(((0, choice),), costs.requests, costs.wire_bytes, network_s, costs.way))
            self.policy.took(step, choice, network_s + compute_s, self.network)
        self.unheard.clear()
        sure_s = self.probe(rate_mbps, LEAST_PROBE_BYTES) if self.network.is_suspicious else 0.0
        self.policy.decide(self.step, self.network)
        probe_s = self.probe(rate_mbps, self.prober.due(self.network, self.now_s))
        self.decide_at = self.step + (1 if probe_s else self.pause)
        return sure_s + probe_s + (LATENCY_S if self.pause > 1 else 0.0)

    def probe(self, rate_mbps: float, wire_bytes: int) -> float:
        if not wire_bytes:
            return 0.0
        probe_s = LATENCY_S + wire_bytes / (rate_mbps * MEGABIT)
        self.prober.took(wire_bytes, probe_s, self.network)
        self.now_s += probe_s
        return probe_s


def best_s(rate_mbps: float) -> float:
    return min(sum(true_s(choice, rate_mbps)) for choice in range(len(CHOICES)))


@pytest.mark.parametrize(("noise", "allowed"), [(0.0, 1.1), (0.1, 1.1), (0.25, 1.2)])
def test_each_phase_within_a_tenth_of_the_best_fixed_choice_once_the_change_was_seen(noise, allowed):
    run = Run(noise=noise)
    for rate_mbps in (1000, 20, 200, 5000, 20, 1000):
        times = run.steps(500, rate_mbps)
        # A slower network is seen in a step; that it is much faster, while little is sent, by probes of it.
        assert np.mean(times[250:]) <= allowed * best_s(rate_mbps) * np.exp(noise**2 / 2)


def test_faster_than_any_single_choice_where_phases_have_different_best_ones():
    rates = (5000, 20, 200)
    run = Run()
    auto_s = sum(sum(run.steps(400, rate)) for rate in rates)
    assert auto_s < min(400 * sum(sum(true_s(choice, rate)) for rate in rates) for choice in range(len(CHOICES)))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_small_model_within_a_tenth_in_each_phase_and_faster_than_any_single_choice_in_all(noise):
    """Here whole phases count, with what it takes to see that they have begun, and 2 ms of training in each step."""
    rates, steps, training_s = (1000, 20, 200), 400, 2e-3
    run = Run(noise=noise, costs=SMALL, pause=16)
    run.steps(30, rates[0])
    spent_s = [steps * training_s + sum(run.steps(steps, rate)) for rate in rates]
    mean_noise = np.exp(noise**2 / 2)
    fixed_s = [
        [steps * (training_s + mean_noise * sum(true_s(choice, rate, SMALL))) for rate in rates]
        for choice in range(len(SMALL))
    ]
    best = [min(phases) for phases in zip(*fixed_s, strict=True)]
    assert all(mine <= 1.1 * least for mine, least in zip(spent_s, best, strict=True)), (spent_s, best)
    assert sum(spent_s) < min(sum(phases) for phases in fixed_s)
    assert len({run.taken[at] for at in (400, 800, 1200)}) > 1


@pytest.mark.parametrize("error", [1e-3, 0.2, 0.4, 0.9])
def test_no_choice_breaks_the_bound(error):
    run = Run(error=error)
    run.steps(100, 10)
    assert all(choice == 0 or COSTS[choice].error <= error for choice in run.taken)
    assert run.taken[-1] > 0  # and it does compress


def test_a_slow_network_is_noticed_by_the_next_step():
    run = Run()
    run.steps(50, 5000)
    before = run.taken[-1]
    assert before in (0, 1)
    run.steps(2, 20)
    assert run.policy.current > before


def test_stays_put_in_a_network_that_stays_the_same():
    run = Run(noise=0.1)
    run.steps(50, 100)
    tail = run.taken[20:]
    assert sum(a != b for a, b in pairwise(tail)) <= 2


def test_every_rank_decides_alike():
    first, second = Run(noise=0.2), Run(noise=0.2)
    for rate in (1000, 20):
        first.steps(50, rate)
        second.steps(50, rate)
    assert first.taken == second.taken


def test_nothing_is_decided_before_costs_and_network_are_known():
    policy = BucketPolicy(0.9)
    assert policy.decide(1, Network()) == 0
    policy.costs = COSTS
    assert policy.decide(1, Network()) == 0


def test_the_rate_is_not_lost_where_little_is_sent():
    network = Network()
    for _ in range(5):
        network.add_latency(1e-3)
        network.add(Sample(((0, 0),), 1, 1_250_000, 0.101))
    assert network.goodput_bps == pytest.approx(100e6)
    for _ in range(20):  # 100 bytes tell nothing of the rate
        network.add(Sample(((0, 6),), 1, 100, 0.0011))
    assert network.goodput_bps == pytest.approx(100e6)
    assert not network.is_rate_visible


def test_a_step_that_met_with_an_accident_changes_nothing():
    run = Run()
    run.steps(50, 1000)
    before = run.taken[-1]
    run.steps(1, 20)
    run.steps(20, 1000)
    assert run.taken[-1] == before
    assert sum(choice != before for choice in run.taken[50:]) <= 5


def test_what_gathers_take_longer_for_is_not_put_down_to_their_bytes():
    network = Network()
    network.add_latency(1e-3)
    network.add(Sample(((0, 0),), 1, 1_250_000, 0.101))
    for _ in range(3):
        network.add(Sample(((0, 6),), 2, 1000, 0.0081, GATHER))
    assert network.goodput_bps == pytest.approx(100e6) and network.latency_of(GATHER) == pytest.approx(4e-3, rel=0.01)
    assert network.seconds(2, 1000, GATHER) == pytest.approx(0.0081, rel=0.01) and network.latency_s == 1e-3
    assert network.regime == 0
    network.add(Sample(((0, 6),), 2, 100_000, 0.4, GATHER))  # but this is the network
    assert network.regime == 1 or network.s_per_byte(GATHER) > 3e-6


def test_a_slower_network_does_not_pass_for_latency():
    network = Network()
    network.add_latency(1e-3)
    network.add(Sample(((0, 0),), 1, 1_250_000, 0.011))  # 1 Gbit/s
    for _ in range(5):
        network.add(Sample(((0, 3),), 2, 26_000, 0.0032, GATHER))
    for _ in range(20):
        network.add(Sample(((0, 3),), 2, 26_000, 0.0134, GATHER))  # 20 Mbit/s
    assert network.is_suspicious and network.latency_of(GATHER) < 2e-3
    Prober().took(8192, 1e-3 + 8192 * 8 / 20e6, network)
    assert network.goodput_bps == pytest.approx(20e6, rel=0.05)


def test_probes_are_few_and_find_out_how_fast_bytes_go():
    network, prober = Network(), Prober()
    network.add_latency(1e-3)
    network.add(Sample(((0, 0),), 1, 50_000, 0.021))  # 20 Mbit/s
    network.add(Sample(((0, 6),), 2, 1000, 0.003, GATHER))
    spent_s, now_s = 0.0, 0.0
    while network.goodput_bps < 400e6:
        now_s += 0.004
        if wire_bytes := prober.due(network, now_s):
            probe_s = 1e-3 + wire_bytes * 8 / 500e6
            prober.took(wire_bytes, probe_s, network)
            spent_s += probe_s
        assert now_s < 5
    assert spent_s < 0.05 * now_s and network.goodput_bps == pytest.approx(500e6, rel=0.1)


def test_texts():
    assert is_auto("auto") and is_auto("auto:error=0.5") and not is_auto("topk:ratio=0.01")
    assert parse_auto("auto:error=0.5").error == 0.5
    wrong = {"auto:error=2": "at most 1", "auto:ratio=1": "no setting 'ratio'", "auto:error=x": "number"}
    for text, says in wrong.items():
        with pytest.raises(ConfigError, match=says):
            parse_auto(text)
