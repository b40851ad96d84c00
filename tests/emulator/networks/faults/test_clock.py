"""Clocks that differ: what they show, and when."""

import pytest

from emulator.networks.faults.clock import TRUE, Clock, draw_clocks


@pytest.mark.parametrize("clock", [TRUE, Clock(7, 0), Clock(3_600_000_000_000, 200), Clock(5, -50_000)])
def test_a_time_comes_when_the_clock_shows_it_and_not_before(clock):
    for true_ns in (0, 1, 1_000_000_007, 123_456_789_012):
        due = clock.to_local(true_ns) + 1_234_567
        assert clock.to_local(clock.to_true(due)) >= due > clock.to_local(clock.to_true(due) - 1)
    assert abs(clock.to_true(clock.to_local(10**9) + 10**6) - 10**9 - clock.true_duration(10**6)) <= 1


def test_hosts_differ_and_a_seed_repeats_itself():
    clocks = [draw_clocks(seed, 3) for seed in range(20)]
    assert clocks == [draw_clocks(seed, 3) for seed in range(20)]
    assert {len(set(each)) for each in clocks} >= {1, 3} and any(each[0].gain_ppm < 0 for each in clocks)
