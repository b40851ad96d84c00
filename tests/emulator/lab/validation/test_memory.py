"""Memory beside torchtitan's published figures, beside jobs that ran, and beside what torch allocates here."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.cluster import cluster as clusters
from emulator.jobs.workload import memory, models
from emulator.jobs.workload.job import Job
from emulator.lab.validation import throughput
from emulator.lab.validation.memory import published
from emulator.lab.validation.rows import mape, worst
from switchml.cli.main import cli

MEASURED = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "throughput" / "llm_foundry.csv"
"""Beside the checkout."""


def test_torchtitans_figures_within_ten_percent():
    rows = published.rows()
    assert len(rows) == 18 and mape(rows) < 0.05
    assert abs(worst(rows).error) < 0.1


def test_jobs_that_ran_fit():
    if not MEASURED.exists():
        pytest.skip(f"needs the measured data ../shared/data/throughput/{MEASURED.name}")
    asked = [row.request for row in throughput.read(MEASURED)]
    needed = [memory.memory(models.load(one.model), one.job).total for one in asked]
    shares = [size / clusters.load(one.cluster).device.memory_bytes for size, one in zip(needed, asked, strict=True)]
    assert sum(share > 1 for share in shares) <= 0.02 * len(shares)
    assert max(shares) > 0.8, "their micro-batches were chosen to fill the memory"


def test_the_command_without_torch():
    report = CliRunner().invoke(cli, ["validate", "memory", "--no-measure", "--json"])
    assert report.exit_code == 0, report.output
    assert json.loads(report.stdout)["mape"] < 0.05


@pytest.mark.parametrize("recompute", ["none", "full", "operators"])
def test_torch_allocates_what_is_predicted(recompute):
    pytest.importorskip("torch")
    from emulator.lab.validation.memory import measure

    case = measure.Case(measure.gpt(2, 64, 32, 256), "fp32", "adam", recompute, 4)
    assert measure.predicted(case) == pytest.approx(measure.measured(case), rel=0.02)


def test_a_convolutional_network():
    pytest.importorskip("torch")
    from emulator.lab.validation.memory import measure

    case = measure.Case(None, "fp32", "sgd", "none", 4)
    assert measure.predicted(case) == pytest.approx(measure.measured(case), rel=0.05)


def test_the_tracker_counts_storages_once_and_until_they_go():
    torch = pytest.importorskip("torch")
    from host_agent.memory.tracker import Tracker

    with Tracker() as tracker:
        one = torch.zeros(100)
        view = one[10:]
        assert tracker.now == 400
        del one
        assert tracker.now == 400, "the view keeps it"
        two = view + 1
        del view, two
        assert (tracker.now, tracker.peak) == (0, 760)


def test_jobs_of_the_cases_are_plain():
    from emulator.lab.validation.memory import measure

    jobs = [case.job for case in measure.cases()]
    assert all(isinstance(job, Job) and job.gpus == 1 for job in jobs)
    assert {job.recompute for job in jobs} == {"none", "operators", "full"}
