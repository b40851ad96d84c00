"""What is made of alternating iterations without and with a capture, on durations that are known."""

from __future__ import annotations

import numpy as np
import pytest

from host_agent.cli.trace_capture_cost import TIME, advice, measure, median, windows


def about(durations_s: list[tuple[str, float]], skip: int = 2) -> dict:
    iterations, at_ns = [], 0
    for kind, duration_s in [("plain", 9.0)] * skip + durations_s:
        length_ns = round(duration_s * 1e9)
        one = {"kind": kind, "start_unix_ns": at_ns, "end_unix_ns": at_ns + length_ns, "cpu_ns": length_ns // 2}
        iterations.append(one)
        at_ns += length_ns
    return {"skip": skip, "pairs": 1, "iterations": iterations}


def rank(cost: float, scatter: float, drift: float, seed: int = 0, pairs: int = 40) -> dict:
    """Of captures that cost so much, on a machine whose iterations scatter, and are slower by `drift` in the end."""
    draw = np.random.default_rng(seed)
    durations = []
    for kind, many, factor in [("plain", 5, 1.0), ("lead-in", 1, 7.0), ("captured", 5, 1 + cost)] * pairs:
        for _ in range(many):
            slow = 1 + drift * len(durations) / (11 * pairs)
            durations.append((kind, 0.05 * slow * factor * draw.lognormal(0, scatter)))
    return about(durations)


@pytest.mark.parametrize("drift", [0.0, 1.0])
@pytest.mark.parametrize("cost", [0.0, 0.05, 0.3])
def test_a_known_cost_is_found(cost, drift):
    found = measure([rank(cost, 0.02, drift, seed) for seed in range(2)], TIME)
    assert found.low <= cost + 0.005 and cost - 0.005 <= found.high
    assert found.cost == pytest.approx(cost, abs=0.01)
    assert len(found.pairs) == 40


def test_the_interval_holds_as_often_as_it_says():
    held = [one.low <= 0.1 <= one.high for seed in range(60) if (one := measure([rank(0.1, 0.1, 0, seed, 12)], TIME))]
    assert np.mean(held) > 0.85


def test_what_was_left_out_and_what_starting_cost_do_not_count():
    found = windows(rank(0.1, 0, 0, pairs=3))
    assert median(found["plain"], TIME) == pytest.approx(0.05)
    assert median(found["captured"], TIME) == pytest.approx(0.055)
    assert median(found["lead-in"], TIME) == pytest.approx(0.35)


def test_without_a_pair_nothing_is_said():
    assert measure([about([("captured", 0.1)] * 3)], TIME) is None
    assert measure([], TIME) is None


def test_more_pairs_are_advised_where_times_scatter():
    assert advice(measure([rank(0.05, 0.01, 0)], TIME)) is None
    noisy = measure([rank(0.05, 0.1, 0, pairs=6)], TIME)
    assert advice(noisy) > 6
    assert noisy.high - noisy.low > 0.06
