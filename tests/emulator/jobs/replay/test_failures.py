"""Runs with checkpoints and failures, against Daly's exact mean and by hand."""

import math

import numpy as np
import pytest

from emulator.jobs.replay.failures import Run, expected_s, simulate, young_daly_s
from switchml.errors import ConfigError, EmulationError


@pytest.mark.parametrize("restart_s", [0.0, 300.0])
@pytest.mark.parametrize("every", [None, 10, 64])
def test_mean_is_dalys(every, restart_s):
    run = Run(
        steps=1000, iteration_s=10.0, mtbf_s=3600.0, checkpoint_s=30.0, checkpoint_steps=every, restart_s=restart_s
    )
    found = simulate(run, runs=4000, seed=1)
    assert found.wall_s.mean() == pytest.approx(expected_s(run), rel=0.02)
    # Failures keep their rate, whatever the run does with them.
    assert found.failures.mean() == pytest.approx(found.wall_s.mean() / 3600, rel=0.05)
    assert found.goodput == pytest.approx(10_000 / found.wall_s.mean())


def test_without_failures_only_checkpoints_cost():
    """Ten steps, one saved after every four; none after the last."""
    run = Run(steps=10, iteration_s=2.0, checkpoint_s=5.0, checkpoint_steps=4)
    assert simulate(run, runs=2).wall_s.tolist() == [30.0, 30.0] == [expected_s(run)] * 2
    assert expected_s(Run(steps=8, iteration_s=2.0, checkpoint_s=5.0, checkpoint_steps=4)) == 21.0
    assert simulate(Run(steps=10, iteration_s=2.0)).goodput == 1.0


def test_youngs_interval_is_near_the_best():
    assert young_daly_s(30.0, 3600.0) == pytest.approx(math.sqrt(2 * 30 * 3600))
    chosen = Run(steps=5000, iteration_s=1.0, mtbf_s=36_000.0, checkpoint_s=20.0)
    assert chosen.interval_steps() == 1200
    costs = [
        expected_s(Run(steps=5000, iteration_s=1.0, mtbf_s=36_000.0, checkpoint_s=20.0, checkpoint_steps=every))
        for every in (300, 600, 1000, 1250, 1700, 2500)
    ]
    assert expected_s(chosen) <= min(costs) * 1.003


def test_seeds():
    run = Run(steps=100, iteration_s=10.0, mtbf_s=500.0, checkpoint_s=3.0)
    same, other = simulate(run, runs=50, seed=7), simulate(run, runs=50, seed=8)
    np.testing.assert_array_equal(simulate(run, runs=50, seed=7).wall_s, same.wall_s)
    assert not np.array_equal(other.wall_s, same.wall_s)
    assert np.median(same.wall_s) <= np.quantile(same.wall_s, 0.95)


def test_runs_that_never_end_are_refused():
    with pytest.raises(
        EmulationError, match="makes next to no progress: an interval between checkpoints takes 1e.03 s"
    ):
        simulate(Run(steps=100, iteration_s=10.0, mtbf_s=60.0, checkpoint_s=3.0, checkpoint_steps=100))


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"iteration_s": 0.0}, {"mtbf_s": 0.0}, {"checkpoint_steps": 0}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError):
        Run(**{**dict(steps=1, iteration_s=1.0), **wrong})


def test_too_many_checkpoints_are_refused():
    with pytest.raises(EmulationError, match="let checkpoints be further apart"):
        simulate(Run(steps=10**12, iteration_s=1.0, mtbf_s=1e15, checkpoint_steps=1))
