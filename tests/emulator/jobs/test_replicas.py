"""Slow ranks in large jobs: replicas that stand for others, and graphs that are too large for this machine."""

import psutil
import pytest

from emulator.cluster import cluster as clusters
from emulator.jobs import iteration, replicas, size
from emulator.jobs.costing import plan
from emulator.jobs.description import request
from emulator.jobs.emulate import emulate
from emulator.jobs.emulation import Emulation
from emulator.jobs.workload import models
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError

GPT = models.Transformer("gpt", "a small GPT", "made up", 8, 1024, 16, 51200, 512)


def emulated(fold: str, seed: int, **job) -> Emulation:
    table = {"model": "gpt3-125m", "job": {"gpus": 64, "batch": 64, "micro_batch": 1, **job}, "fold": fold}
    return emulate(request(table | {"noise": {"stragglers": 0.05, "seed": seed}}))


@pytest.mark.parametrize("job", [{"tp": 2, "pp": 2}, {"cp": 2, "pp": 2}, {"zero": 3}])
def test_one_replica_of_each_kind_gives_what_all_give(job):
    for seed in (0, 1):
        whole, tensor, few = (emulated(fold, seed, **job) for fold in ("none", "tensor", "all"))
        assert few.iteration_s == pytest.approx(tensor.iteration_s, rel=1e-9)
        assert few.iteration_s == pytest.approx(whole.iteration_s, rel=0.002)
        assert few.parts == pytest.approx(tensor.parts, rel=1e-6)
        assert len(few.played.graph.ranks) < len(tensor.played.graph.ranks)
        assert any("data-parallel ranks stand for" in line for line in few.assumptions())


def test_a_sample_of_the_kinds_keeps_the_iteration_and_averages(monkeypatch):
    whole = emulated("tensor", 3, gpus=512, pp=4, batch=512)
    monkeypatch.setattr(replicas, "PLAYED_OPS", 0)
    monkeypatch.setattr(replicas, "LEAST", 6)
    few = emulated("all", 3, gpus=512, pp=4, batch=512)
    assert len(few.played.graph.ranks) <= 6 * 4
    assert sum(few.played.graph.ranks.weight) == pytest.approx(512)
    assert few.iteration_s == pytest.approx(whole.iteration_s, rel=0.005)
    assert few.parts["compute"] == pytest.approx(whole.parts["compute"], rel=0.02)


def test_large_jobs_are_sampled_unless_asked_otherwise(monkeypatch):
    monkeypatch.setattr(replicas, "PLAYED_OPS", 0)
    assert emulated("", 0, pp=2).fold == "all"
    assert emulated("tensor", 0, pp=2).fold == "tensor"


def test_a_graph_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    memory = psutil.virtual_memory()._replace(total=4_000_000, available=2_000_000)
    monkeypatch.setattr(size.psutil, "virtual_memory", lambda: memory)
    costed = plan(GPT, Job(gpus=1024, tp=8, batch=1024), clusters.load("a100-dgx"))
    with pytest.raises(ConfigError, match=r"1,024 ranks have .* but 2 MB are free.*--fold tensor"):
        iteration.build(costed, "none")
    iteration.build(costed)
