"""Networks that no machine can play are refused before anything is made; those of every page are not."""

from __future__ import annotations

import pytest

from emulator.networks.netsim import experiment, size
from emulator.networks.netsim.config import JobConfig, NetworkConfig
from switchml.errors import BudgetSpent, ConfigError
from tests.support.bounded import bounded


@pytest.mark.parametrize(("job", "problem"), [
    ({"size_bytes": 10**12}, "needs about 7,000.0 GB, but 1.0 GB are free"),
    ({"size_bytes": 10**12, "backend": "ring"}, "needs about 7,000.0 GB"),
    ({"workers": 256, "size_bytes": 10**8, "slots": 65_536}, "needs about .* GB, but 1.0 GB are free"),
    ({"workers": 1, "hosts": (65_535,)}, None),
])  # fmt: skip
def test_memory(job, problem):
    config = NetworkConfig(jobs=(JobConfig(**job),))
    with bounded(seconds=20):
        if problem is None:
            size.check(config, memory_bytes=1e9)
            return
        with pytest.raises(ConfigError, match=problem):
            experiment.run(config, memory_budget_bytes=1e9)


@pytest.mark.parametrize("job", [{"repeats": 1_000_000}, {"repeats": 1_000_000, "backend": "ring"}])
def test_time(job):
    config = NetworkConfig(jobs=(JobConfig(**job),))
    with bounded(seconds=20), pytest.raises(BudgetSpent, match="packets take more than .* s; 600 s are allowed"):
        experiment.run(config, time_budget_s=600)


@pytest.mark.slow
def test_what_takes_longer_than_estimated_is_ended(monkeypatch):
    monkeypatch.setattr(size, "check", lambda *_: None)
    monkeypatch.setattr(experiment, "PROGRESS_EVERY", 100)
    config = NetworkConfig(jobs=(JobConfig(size_bytes=4096, repeats=10_000),))
    with pytest.raises(BudgetSpent, match=r"% of the work was done after 1e-09 s of wall-clock time") as ended:
        experiment.run(config, time_budget_s=1e-9)
    assert ended.value.events == 100


def test_ranks_of_all_jobs_are_limited():
    with pytest.raises(ConfigError, match="jobs have 65,792 ranks together; expected 65,536 at most"):
        NetworkConfig(jobs=(JobConfig(workers=256),) * 257)
