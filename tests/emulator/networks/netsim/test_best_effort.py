"""Simulated switches whose slots all jobs share: exact sums (which `run` checks), and what the slots are for."""

import dataclasses

import pytest

from emulator.networks.netsim.config import BehindConfig, JobConfig, LinkConfig, NetworkConfig, RackConfig, SwitchConfig
from emulator.networks.netsim.experiment import run
from emulator.networks.netsim.report import as_json
from switchml.errors import ConfigError

_LINK = LinkConfig(rate_bps=10e9, delay_s=5e-6)
_JOB = JobConfig(workers=3, size_bytes=1 << 17, repeats=2)


def _network(slots, *jobs, **options):
    options = {"link": _LINK, "behind": BehindConfig()} | options
    return NetworkConfig(jobs=jobs, switch=SwitchConfig(slots=slots), **options)


def test_a_job_alone_is_summed_in_the_switch():
    result = run(_network(1024, _JOB))
    rounds = result.best_effort["ended"]
    assert result.best_effort["summed"] == 3 * rounds == result.jobs[0].sent
    assert result.links["behind up"].packets == result.links["behind down"].packets == rounds
    assert result.jobs[0].median_s == pytest.approx(result.jobs[0].bound_s, rel=0.01)
    assert as_json(result)["best_effort"]["taken"] == 0


def test_what_finds_no_slot_is_summed_behind():
    late = dataclasses.replace(_JOB, late_ranks={1: 5e-5})
    result = run(_network(4, late, late))
    counts, links = result.best_effort, result.links
    assert counts["taken"] > 0 < counts["noted"] and counts["summed"] > 0
    assert links["behind up"].packets >= counts["ended"] + counts["taken"] + counts["noted"]
    assert links["behind down"].packets < links["behind up"].packets


def test_many_jobs_with_few_slots_are_faster_than_with_a_part_of_them_each():
    def slowest(slots, **options):
        jobs = [dataclasses.replace(_JOB, start_s=1e-4 * i, slots=slots) for i in range(8)]
        return max(job.median_s for job in run(_network(32, *jobs, **options)).jobs)

    assert slowest(0) < 0.6 * slowest(4, behind=None)


@pytest.mark.parametrize("collective", ["all_reduce", "fsdp"])
def test_sums_are_right_with_loss_and_copies_that_come_late(collective):
    link = dataclasses.replace(_LINK, loss=0.01, duplicate=0.02, late=0.02, late_s=1e-4)
    job = dataclasses.replace(_JOB, collective=collective, size_bytes=3 << 14)
    result = run(_network(16, job, job, link=link, behind=BehindConfig(loss=0.01)))
    assert sum(each.retransmitted for each in result.jobs) > 0
    assert collective == "fsdp" or result.best_effort["evicted"] > 0


def test_blocks_of_zeros_are_left_out_behind():
    result = run(_network(16, dataclasses.replace(_JOB, block=256, density=0.2)))
    assert result.best_effort["other"] > 0 == result.best_effort["summed"]


def test_wrong_networks_are_refused():
    with pytest.raises(ConfigError, match=r"switch.slots = 12: expected a power of two with `behind`"):
        _network(12, _JOB)
    with pytest.raises(ConfigError, match="racks that aggregate: expected one of them"):
        _network(16, _JOB, racks=RackConfig(hosts=2, aggregate=True))
