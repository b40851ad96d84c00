"""The choice of codecs, on networks that are made up: latency, rate and noise are known here, so what auto loses by
having to find them out can be told exactly."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from host_agent.compression.adaptive.compressor import LATEST_STEPS
from host_agent.compression.adaptive.network import GATHER, SUM, Network, Sample
from host_agent.compression.adaptive.policy import CHOICES, BucketPolicy, Costs, is_auto, parse_auto
from host_agent.compression.adaptive.schedule import MIN_PROBE_BYTES, Calendar, Prober, Watch
from switchml.errors import ConfigError

MEGABIT = 1e6 / 8
LATENCY_S = 1e-3
GATHER_LATENCY_S = 1.5e-3
"""Other sockets, more hops."""
COSTS = [
    Costs(1, 4_284_456, 0.002, 0.0), Costs(1, 2_142_228, 0.004, 2e-4), Costs(2, 1_071_114, 0.030, 0.15),
    Costs(2, 1_300_000, 0.020, 0.35), Costs(2, 400_000, 0.014, 0.45), Costs(2, 140_000, 0.012, 0.60),
    Costs(2, 45_000, 0.012, 0.75),
]  # fmt: skip
"""Of a million elements, about as rehearsals on a quiet machine find them."""


SMALL = [
    Costs(1, 87_000, 1e-4, 0.0), Costs(1, 43_500, 2e-4, 2e-4), Costs(2, 22_000, 1e-3, 0.15),
    Costs(2, 26_000, 6e-4, 0.35, GATHER), Costs(2, 8_100, 5e-4, 0.45, GATHER), Costs(2, 2_900, 5e-4, 0.60, GATHER),
    Costs(2, 1_000, 5e-4, 0.75, GATHER),
]  # fmt: skip
"""Of a network of 21 700 parameters: how many collectives follow each other counts as much as their bytes."""


def true_s(choice: int, rate_mbps: float, table: list[Costs] = COSTS) -> tuple[float, float]:
    """Seconds in the network, and of computing."""
    costs = table[choice]
    latency_s = LATENCY_S if costs.route == SUM else GATHER_LATENCY_S
    return costs.requests * latency_s + costs.wire_bytes / (rate_mbps * MEGABIT), costs.compute_s


class Run:
    """Training of one bucket with auto, a step at a time.

    `noise`: of all times, in their logarithm. `late`: the share of the steps that take several times as long, which
    comes over a machine for several steps on end.
    """

    def __init__(self, error=0.9, noise=0.0, costs: list[Costs] = COSTS, late=0.0, training_s=2e-3):
        self.network, self.policy = Network(), BucketPolicy(error)
        self.policy.costs = self.costs = costs
        self.training_s = training_s
        self.calendar, self.prober, self.watch = Calendar(), Prober(), Watch()
        self.unreported: list[tuple[int, int, float, float]] = []
        self.rng, self.noise, self.late, self.lateness = np.random.default_rng(3), noise, late, 1.0
        self.step, self.now_s, self.spent_s, self.decided_s = 0, 0.0, 0.0, 0.0
        self.taken: list[int] = []
        self.probed: tuple = ()

    def disturbance(self) -> float:
        return self.lateness * float(np.exp(self.noise * self.rng.standard_normal()))

    def next_step(self) -> None:
        if self.rng.random() < 0.3:
            self.lateness = float(self.rng.uniform(2.0, 5.0)) if self.rng.random() < self.late else 1.0

    def fixed(self, choice: int, count: int, rate_mbps: float) -> list[float]:
        """The same steps with one choice."""
        times = []
        for _ in range(count):
            self.next_step()
            times.append(sum(part * self.disturbance() for part in true_s(choice, rate_mbps, self.costs)))
        return times

    def steps(self, count: int, rate_mbps: float) -> list[float]:
        """As the compressor goes about it; seconds of each step's exchange, with all that auto itself takes."""
        times = []
        for _ in range(count):
            self.next_step()
            choice = self.policy.current
            network_s, compute_s = (part * self.disturbance() for part in true_s(choice, rate_mbps, self.costs))
            self.taken.append(choice)
            self.unreported.append((self.step, choice, network_s, compute_s))
            self.now_s += network_s + compute_s
            before_s = self.spent_s
            is_reported = self.calendar.is_reported(self.step)
            self.step += 1
            is_alarm = False
            if is_reported:
                self.spent_s += LATENCY_S / 4  # nobody waits for it
                is_alarm = self.watch.sees_change((choice,), network_s, self.network.latency_s)
            if is_alarm or self.step >= self.calendar.decide_at:
                self.decide(rate_mbps, is_alarm)
            times.append(network_s + compute_s + self.spent_s - before_s)
        return times

    def decide(self, rate_mbps: float, is_alarm: bool) -> None:
        """Learn from the steps since the last time and choose."""
        regime = self.network.regime
        latency_s = LATENCY_S * self.disturbance()
        self.spent_s += latency_s
        self.network.add_latency(latency_s)
        latest = self.unreported[-(1 if is_alarm else LATEST_STEPS) :]
        if self.probed:
            self.prober.record(*self.probed, latency_s, self.network)
            self.probed = ()
        used = [(choice, self.costs[choice], network_s) for _, choice, network_s, _ in latest]
        self.network.learn(
            self.step,
            [
                Sample(((0, choice),), each.requests, each.wire_bytes, seconds, each.route)
                for choice, each, seconds in used
            ],
        )
        steps_s = [network_s + compute_s for _, _, network_s, compute_s in self.unreported]
        self.unreported.clear()
        if is_alarm:
            self.probe(rate_mbps, MIN_PROBE_BYTES)
            self.prober.record(*self.probed, latency_s, self.network)
            self.probed = ()
        steps = max(1, self.step - self.calendar.decided_at)
        exchange_s = (self.now_s - self.decided_s) / steps
        self.decided_s = self.now_s
        if self.network.regime == regime:
            self.policy.record(self.step, float(np.median(steps_s)), steps)
        self.policy.decide(self.step, self.network, self.training_s)
        is_new = is_alarm or self.network.is_suspicious or self.network.regime != regime
        self.calendar.plan(self.step, exchange_s, self.network, is_new or self.policy.is_open)
        wire_bytes, wait_s = self.prober.due(self.network, self.now_s)
        if wire_bytes:
            self.probe(rate_mbps, wire_bytes)
        self.calendar.hasten(self.step, wait_s / exchange_s)

    def probe(self, rate_mbps: float, wire_bytes: int) -> None:
        probe_s = (LATENCY_S + wire_bytes / (rate_mbps * MEGABIT)) * self.disturbance()
        self.probed = wire_bytes, probe_s
        self.spent_s += probe_s


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
    auto_s = sum(sum(run.steps(1500, rate)) for rate in rates)
    assert auto_s < min(1500 * sum(sum(true_s(choice, rate)) for rate in rates) for choice in range(len(CHOICES)))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_small_model_within_a_tenth_in_each_phase_and_faster_than_any_single_choice_in_all(noise):
    """Here whole phases count, with what it takes to see that they have begun, and 2 ms of training in each step."""
    rates, steps, training_s = (1000, 20, 200), 400, 2e-3
    run = Run(noise=noise, costs=SMALL)
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


def test_a_slow_network_is_noticed_by_the_next_step_that_is_reported():
    run = Run()
    run.steps(50, 5000)
    before = run.taken[-1]
    assert before in (0, 1)
    run.steps(6, 20)
    assert run.policy.current > before


def test_stays_put_in_a_network_that_stays_the_same():
    run = Run(noise=0.1)
    run.steps(50, 100)
    tail = run.taken[20:]
    assert sum(a != b for a, b in pairwise(tail)) <= 2


def test_nothing_is_decided_before_costs_and_network_are_known():
    policy = BucketPolicy(0.9)
    assert policy.decide(1, Network()) == 0
    policy.costs = COSTS
    assert policy.decide(1, Network()) == 0


def known(rate_mbps: float = 100) -> Network:
    """A network of 1 ms and that rate, and learned to be so."""
    network = Network()
    for step in range(5):
        network.add_latency(1e-3)
        network.learn(step, [Sample(((0, 0),), 1, 1_250_000, 1e-3 + 10 / rate_mbps)])
    assert network.goodput_bps == pytest.approx(rate_mbps * 1e6)
    return network


def test_the_rate_is_not_lost_where_little_is_sent():
    network = known()
    for step in range(20):  # 100 bytes tell nothing of the rate
        network.learn(step, [Sample(((0, 6),), 1, 100, 0.0011)])
    assert network.goodput_bps == pytest.approx(100e6)
    assert not network.is_rate_visible


def test_a_step_that_met_with_an_accident_changes_nothing():
    run = Run()
    run.steps(300, 1000)
    regime, probe = run.network.regime, run.probe
    run.probe = lambda rate_mbps, wire_bytes: probe(1000, wire_bytes)
    run.steps(1, 20)
    run.steps(20, 1000)
    assert run.network.regime == regime
    assert run.network.goodput_bps == pytest.approx(1e9, rel=0.1)


@pytest.mark.parametrize("table", [COSTS, SMALL])
def test_a_machine_that_is_busy_now_and_then_does_not_pass_for_another_network(table):
    """All times are two to five times as long for some steps on end, a tenth of the time."""
    run = Run(noise=0.15, late=0.1, costs=table)
    times = run.steps(1500, 200)
    fixed = [Run(noise=0.15, late=0.1, costs=table) for _ in CHOICES]
    best_s = min(sum(run.fixed(choice, 1500, 200)) for choice, run in enumerate(fixed))
    assert sum(times) <= 1.25 * best_s  # and a tenth of it is chance
    assert sum(a != b for a, b in pairwise(run.taken)) <= 40  # trials, and back


def test_what_gathers_take_longer_for_is_not_put_down_to_their_bytes():
    network = known()
    for step in range(3):
        network.learn(step, [Sample(((0, 6),), 2, 1000, 0.0081, GATHER)])
    assert network.goodput_bps == pytest.approx(100e6) and network.latency_of(GATHER) == pytest.approx(4e-3, rel=0.01)
    assert network.seconds(2, 1000, GATHER) == pytest.approx(0.0081, rel=0.01) and network.latency_s == 1e-3
    assert network.regime == 0


def test_a_slower_network_does_not_pass_for_latency():
    network = known(1000)
    for step in range(5):
        network.learn(step, [Sample(((0, 3),), 2, 26_000, 0.0032, GATHER)])
    for step in range(20):
        network.learn(step, [Sample(((0, 3),), 2, 26_000, 0.0134, GATHER)])  # 20 Mbit/s
    assert network.latency_of(GATHER) < 2e-3
    for _ in range(2):
        Prober().record(8192, 1e-3 + 8192 * 8 / 20e6, 1e-3, network)
    assert network.goodput_bps == pytest.approx(20e6, rel=0.05)


def test_three_samples_make_a_slower_network_if_they_lie_apart():
    def learn(steps, times):
        network = known()
        for step in steps:
            network.learn(step, [Sample(((0, 0),), 1, 1_250_000, times * 0.1)])
        return network.regime

    assert learn([10, 11, 12], 4) == 0 and learn([10, 11], 20) == 0
    assert learn([10, 11, 12], 20) == 1 and learn([10, 20, 30], 4) == 1


def test_a_probe_right_after_a_slow_request_says_less():
    late, slow = known(), known()
    for _ in range(2):
        late.learn_probe(8192, 5e-3, 4.5e-3)
        slow.learn_probe(8192, 5e-3, 1e-3)
    assert late.regime == 0 and slow.regime == 1


def test_probes_are_few_and_find_out_how_fast_bytes_go():
    network, prober = known(20), Prober()
    network.learn(5, [Sample(((0, 6),), 2, 1000, 0.003, GATHER)])
    spent_s, now_s = 0.0, 0.0
    while network.goodput_bps < 400e6:
        now_s += 0.004
        wire_bytes, wait_s = prober.due(network, now_s)
        assert bool(wire_bytes) == (wait_s == 0)
        if wire_bytes:
            probe_s = 1e-3 + wire_bytes * 8 / 500e6
            prober.record(wire_bytes, probe_s, 1e-3, network)
            spent_s += probe_s
        assert now_s < 5
    assert spent_s < 0.05 * now_s and network.goodput_bps == pytest.approx(500e6, rel=0.1)


def test_the_calendar_decides_less_often_while_nothing_changes():
    calendar, network = Calendar(), known()
    pauses = []
    for is_open in (True, False, False, False, False, False, True):
        step = calendar.decide_at
        calendar.plan(step, 0.01, network, is_open)
        pauses.append(calendar.decide_at - step)
    assert pauses[0] == pauses[-1] == 4 and pauses[1:5] == [8, 16, 32, 64] and pauses[5] == 64
    step = calendar.decided_at
    calendar.hasten(step, 0.2)
    assert calendar.decide_at == step + 1


def test_an_alarm_takes_two_odd_steps_or_one_that_is_very_odd():
    watch = Watch()
    assert not any(watch.sees_change(("a",), 0.01, 1e-3) for _ in range(5))
    assert not watch.sees_change(("a",), 0.03, 1e-3) and not watch.sees_change(("a",), 0.01, 1e-3)
    assert not watch.sees_change(("a",), 0.03, 1e-3) and watch.sees_change(("a",), 0.03, 1e-3)
    assert not any(watch.sees_change(("b",), 0.01, 1e-3) for _ in range(5))
    assert watch.sees_change(("b",), 0.1, 1e-3)
    assert not watch.sees_change(("a",), 1.0, 1e-3)  # other choices: nothing to compare with


def test_texts():
    assert is_auto("auto") and is_auto("auto:error=0.5") and not is_auto("topk:ratio=0.01")
    assert parse_auto("auto:error=0.5").error == 0.5
    wrong = {"auto:error=2": "at most 1", "auto:ratio=1": "no setting 'ratio'", "auto:error=x": "number"}
    for text, says in wrong.items():
        with pytest.raises(ConfigError, match=says):
            parse_auto(text)
