"""Intervals beside predicted iterations: which rows they come from, and that they say where there are none."""

import math

import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs import interval
from emulator.jobs.workload import models
from emulator.jobs.workload.job import Job


def of(job: Job, model: str = "gpt3-13b", cluster: str = "a100-dgx") -> interval.Interval:
    return interval.interval(10.0, models.load(model), job, clusters.load(cluster))


def test_an_interval_holds_the_prediction_and_names_its_rows():
    one = of(Job(gpus=64, tp=8, batch=64))
    assert one.low_s < 10.0 < one.high_s and "several nodes" in one.basis
    assert "one node" in of(Job(gpus=8, tp=8, batch=8)).basis


def test_jobs_unlike_the_measured_ones_get_a_wider_one_or_none():
    near, far = of(Job(gpus=64, tp=8, batch=64)), of(Job(gpus=131072, tp=8, batch=16384))
    assert far.high_s > near.high_s and "unlike" in far.basis
    for one in (of(Job(gpus=8), "resnet50"), of(Job(gpus=8), cluster="frontier"), of(Job(gpus=8), "mixtral-8x7b")):
        assert not one and "no measured job" in one.basis
    assert of(Job(gpus=8, cp=2, batch=4, implementation="torch")).high_s > far.high_s


def test_spread_is_what_four_of_five_rows_keep():
    assert interval.spread([math.exp(0.01 * number) for number in range(1, 10)]) == pytest.approx(math.exp(0.08))


def test_shipped_intervals_hold_what_they_should():
    """75 to 85 % of rows left out: of each group, and with whole models left out over all."""
    found = interval.groups().values()
    assert all(0.75 <= one.held_out <= 0.85 for one in found)
    for share in ("held_out", "held_out_models"):
        inside = sum(getattr(one, share) * one.rows for one in found) / sum(one.rows for one in found)
        assert 0.75 <= inside <= 0.85
