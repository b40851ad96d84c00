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


@pytest.mark.parametrize(("job", "model", "cluster", "reason"), [
    (Job(gpus=131072, tp=8, batch=16384), "gpt3-13b", "a100-dgx", "more than 3,072 accelerators"),
    (Job(gpus=8), "gpt3-13b", "frontier", "AMD MI250X"),
    (Job(gpus=8), "mixtral-8x7b", "a100-dgx", "experts on NVIDIA A100"),
    (Job(gpus=8, implementation="torch"), "gpt3-13b", "a100-dgx", "PyTorch, eager in fp16, zero 0, cp 1, attention"),
    (Job(gpus=8, schedule="gpipe", pp=2), "gpt3-13b", "a100-dgx", "schedule gpipe"),
])  # fmt: skip
def test_jobs_unlike_the_measured_ones_say_so_and_get_the_spread_of_what_was_new(job, model, cluster, reason):
    one = of(job, model, cluster)
    assert f"no measured job is like this one ({reason}" in one.basis
    assert one.high_s >= 10.0 * interval.groups()[interval.OTHERS].spread


def test_measured_kinds_have_their_own():
    h100, b200 = clusters.load("h100-dgx"), clusters.load("b200-dgx")
    core = Job(gpus=64, tp=4, precision="bf16", implementation="megatron-core")
    names = [interval.kind(core, models.load(model), h100) for model in ("llama3-70b", "mixtral-8x7b")]
    assert names == [interval.CORE, interval.EXPERTS]
    assert interval.kind(core, models.load("llama3-70b"), b200) == interval.CORE
    assert "no measured job" not in of(core, "llama3-70b", "h100-dgx").basis
    assert "no measured job" not in of(core.replace(ep=8), "mixtral-8x7b", "b200-dgx").basis


def test_a_table_of_layers_has_none():
    one = of(Job(gpus=8), "resnet50")
    assert not one and "no measured job" in one.basis


def test_spread_is_what_four_of_five_rows_keep():
    assert interval.spread([math.exp(0.01 * number) for number in range(1, 10)]) == pytest.approx(math.exp(0.08))


def test_shipped_intervals_hold_what_they_should():
    """75 to 85 % of rows left out: of each group, and with whole models left out over all. What was new has 13 rows of
    its own, of which 9 lie in the interval of the others: 80 % is within what so few can show."""
    found = interval.groups().values()
    assert all(0.75 <= one.held_out <= 0.85 for name, one in interval.groups().items() if name != interval.OTHERS)
    assert interval.groups()[interval.OTHERS].held_out >= 9 / 13 - 0.001
    for share in ("held_out", "held_out_models"):
        inside = sum(getattr(one, share) * one.rows for one in found) / sum(one.rows for one in found)
        assert 0.75 <= inside <= 0.85
