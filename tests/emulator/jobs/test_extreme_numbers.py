"""Descriptions with extreme numbers are answered or refused, each within a budget of time and memory, by an error of
ours. A number within its range may still have products that no machine can hold."""

import math
import resource

import pytest

from emulator.jobs import choice, size
from emulator.jobs.description import request
from emulator.jobs.emulate import emulate, load_kernels
from switchml.errors import BudgetSpent, ConfigError, SwitchMLError
from tests.support import extremes

LARGE = {"model": "gpt3-13b", "ignore_memory": True}
SECONDS = 3.0
MEMORY_BYTES = 500e6


@pytest.mark.parametrize(("job", "error"), [
    ({"gpus": 8, "pp": 8, "batch": 10**8, "micro_batch": 1}, "operations; playing them needs more than"),
    ({"gpus": 8, "batch": 10**8, "micro_batch": 1, "zero": 3}, "operations; playing them needs more than"),
    ({"gpus": 10**6, "bucket_bytes": 1}, "operations; playing them needs more than"),
])  # fmt: skip
def test_what_is_too_large_is_refused_before_it_is_made(job, error):
    with pytest.raises(ConfigError, match=error):
        emulate(request({**LARGE, "job": job}), memory_budget_bytes=20e6)


def test_ranks_are_counted_before_they_are_made():
    with pytest.raises(ConfigError, match="1,000,000 ranks have .* operations"):
        emulate(request({**LARGE, "job": {"gpus": 10**6}, "fold": "none"}), memory_budget_bytes=20e6)


@pytest.mark.parametrize("loader", ["pytorch", "lru", "nopfs", "solar"])
def test_loaders_are_costed_before_they_are_played(loader):
    load_kernels(False)
    data = {"loader": loader, "samples": 200_000, "epochs": 1000}
    with pytest.raises(ConfigError, match="200,000 samples in 1000 epochs on 8 ranks need about"):
        emulate(request({**LARGE, "job": {"batch": 8}, "data": data}), memory_budget_bytes=500e6)


def test_time_counts_from_the_start():
    budget = size.Budget(seconds=0.0)
    with pytest.raises(BudgetSpent, match="not built after 0 s"):
        budget.check_time()
    with pytest.raises(BudgetSpent, match="takes about 20 s; 0 s are allowed"):
        budget.check_steps(1e10, "playing the loader lru")


def test_a_large_batch_gets_the_largest_micro_batch_that_fits():
    small = request({"model": "gpt2-124m", "job": {"gpus": 1, "batch": 720_720}})
    assert 720_720 % small.job.micro_batch == 0 and small.job.micro_batch > 1


def test_candidates_with_tiny_buckets_are_ranked_without_their_graphs(monkeypatch):
    monkeypatch.setattr(choice.iteration, "build", lambda costed: pytest.fail("built a graph of 3 million buckets"))
    job = {"gpus": 128, "tp": 2, "pp": 1, "bucket_bytes": 1024}
    spec = request({"model": "mpt-3b", "cluster": "gb200-nvl72", "job": job, "ignore_memory": True})
    assert spec.job.zero < 3 and spec.job.bucket_bytes == 1024


def test_layers_are_limited_before_candidates_are_costed(tmp_path):
    sizes = {
        "title": "'t'", "source": "'s'", "layers": 10_000, "hidden": 64, "heads": 2, "vocabulary": 99, "sequence": 8,
    }  # fmt: skip
    (tmp_path / "deep.toml").write_text("\n".join(f"{name} = {value}" for name, value in sizes.items()))
    with pytest.raises(ConfigError, match="layers is 10000; expected 1 to 1,000"):
        request({"model": str(tmp_path / "deep.toml")})


@pytest.mark.slow
def test_random_descriptions(tmp_path):
    load_kernels(True)
    load_kernels(False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answered = 0
    for seed in range(300):
        described = extremes.description(seed, tmp_path)
        try:
            emulation = emulate(request(described), time_budget_s=SECONDS, memory_budget_bytes=MEMORY_BYTES)
            assert 0 < emulation.iteration_s < math.inf, described
            emulation.to_json()
            answered += 1
        except SwitchMLError:
            continue
    assert answered >= 30
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 1e9
