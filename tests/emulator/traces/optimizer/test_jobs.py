import dataclasses
import itertools

import pytest

from emulator import datafile
from emulator.jobs.description import request
from emulator.jobs.emulate import emulate
from emulator.traces.optimizer import jobs
from switchml.errors import ConfigError, OutOfMemory

GIVEN = {
    "model": "gpt3-1.3b",
    "cluster": "a100-dgx",
    "job": {"gpus": 8, "batch": 32, "tp": 2, "micro_batch": 2, "zero": 0},
}
ASKED = request(GIVEN)


def test_the_best_of_a_small_space_is_the_best_of_all():
    found = jobs.search(ASKED, ("micro-batch", "recompute", "zero"))
    assert found.how.startswith("exact")
    times = []
    for micro_batch, recompute, zero in itertools.product(jobs.POWERS, ("none", "selective", "full"), range(4)):
        try:
            job = ASKED.job.replace(micro_batch=micro_batch, recompute=recompute, zero=zero)
            times.append(1 / emulate(dataclasses.replace(ASKED, job=job)).samples_per_s)
        except (ConfigError, OutOfMemory):
            continue
    assert found.best.sample_s == pytest.approx(min(times)) and found.gain > 0
    assert found.best.emulation.plan.job.global_batch == 32


def test_what_is_written_is_the_job_that_was_found():
    found = jobs.search(ASKED, ("split", "micro-batch"))
    again = emulate(request(jobs.tables(GIVEN, ASKED, found.best.change)))
    assert 1 / again.samples_per_s == pytest.approx(found.best.sample_s)
    assert "schedule" not in found.best.change


@pytest.mark.slow
def test_large_spaces_are_sampled_and_repeat_with_a_seed():
    first, again = (jobs.search(ASKED, trials=60, seed=3) for _ in range(2))
    assert first.best.change == again.best.change and "Optuna" in first.how
    assert first.best.sample_s <= min(one.sample_s for one in first.alone.values())


@pytest.mark.slow
def test_a_job_that_does_not_fit_is_made_to():
    big = request(datafile.merge(GIVEN, {"model": "megatron-22b", "job": {"tp": 1, "pp": 1, "recompute": "none"}}))
    found = jobs.search(big, ("split", "recompute", "zero"))
    assert found.requested is None and found.best.emulation.memory.total <= 80e9
    limit = found.best.emulation.memory.total * 0.9
    assert jobs.search(big, ("split", "recompute", "zero"), memory_bytes=limit).best.emulation.memory.total <= limit
    with pytest.raises((ConfigError, OutOfMemory)):
        jobs.search(big, ("buckets",))


def test_unknown_changes_are_refused():
    with pytest.raises(ConfigError, match="unknown change of a job 'bukket'"):
        jobs.search(ASKED, ("bukket",))


def test_ctrl_c_leaves_the_best_so_far():
    def stop(evaluated, best_s):
        if evaluated == 5:
            raise KeyboardInterrupt

    assert jobs.search(ASKED, progress=stop).interrupted
