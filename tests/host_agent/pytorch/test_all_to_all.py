"""Embedding exchange: the rows that arrive, their errors and bounds, and gradients."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from host_agent.pytorch.all_to_all import BoundSchedule  # noqa: E402 (needs torch)
from switchml.errors import ConfigError  # noqa: E402
from tests.support.ranks import run_ranks  # noqa: E402

SCRIPT = Path(__file__).parent / "all_to_all_script.py"
BOUNDS = [0.01, 0.0, 0.1, 0.03]


def test_bounds_decay_in_steps():
    schedule = BoundSchedule([0.03, 0.01], start=2, iterations=100, steps=4)
    factors = [schedule.factor(iteration) for iteration in range(120)]
    assert sorted(set(factors), reverse=True) == [2.0, 1.75, 1.5, 1.25, 1.0]
    assert all(later <= earlier for earlier, later in pairwise(factors))
    assert (factors[0], factors[24], factors[25], factors[99], factors[100]) == (2.0, 2.0, 1.75, 1.25, 1.0)
    assert schedule.bound(1, 0) == pytest.approx(0.02) and schedule.bound(0, 1000) == 0.03
    assert BoundSchedule([0.5], iterations=0).bound(0, 0) == 0.5


@pytest.mark.parametrize(
    "wrong", [dict(tables=[]), dict(tables=[-1.0]), dict(tables=[0.1], start=0.5), dict(tables=[0.1], steps=0)]
)
def test_bounds_that_make_no_sense(wrong):
    with pytest.raises(ConfigError, match="expected"):
        BoundSchedule(**wrong)


def test_rows_arrive_within_their_bounds_and_gradients_exactly(tmp_path):
    reports = [json.loads(rank.out.splitlines()[-1]) for rank in run_ranks(SCRIPT, 3, tmp_path, timeout_s=200)]
    for rank, report in enumerate(reports):
        assert report["exact"] and report["gradients_exact"]
        for errors, factor in zip(report["errors"], (2.0, 2.0, 1.5, 1.5, 1.0), strict=True):
            assert all(error <= bound * factor for error, bound in zip(errors, BOUNDS, strict=True))
        assert report["errors"][0][1] == 0.0  # a bound of 0 loses nothing
        assert report["errors"][0][2] > 0.03  # but the others do use theirs
        assert report["bytes_sent"] < report["bytes_plain"] or rank == 2  # rank 2 holds the lossless table alone
        assert "shape" in report["wrong_shape"]
    # Whoever hears from rank 0, or is it, notices that the batches differ.
    assert all("table" in report["odd_batch"] and "one size" in report["odd_batch"] for report in reports)
