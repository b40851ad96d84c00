"""Two runs of a job beside each other: what differs is found, and the accounts add up."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.traces.diagnosis.diff import difference, mean
from tests.support.traced_jobs import Job, traced

NOISE = np.random.default_rng(7).lognormal(0.0, 0.02, (4, 40))
JOB = Job(slowness=lambda rank, name, iteration: NOISE[rank, iteration])


def compared(b, a=JOB, iterations=8):
    return difference(traced(a, iterations=iterations), traced(b, iterations=iterations))


def assert_adds_up(found):
    for rows in (found.parts, found.path):
        explained_s = sum(row.difference_s for row in rows) + found.unexplained_s
        assert explained_s == pytest.approx(found.iteration.difference_s, abs=1e-12)


def test_slower_operation_is_found():
    def slowness(rank, name, iteration):
        return NOISE[rank, 20 + iteration] * (1.5 if name == "backward 3" else 1.0)

    found = compared(replace(JOB, slowness=slowness))
    assert_adds_up(found)
    assert found.operations[0].name == "backward 3"
    assert found.operations[0].difference_s == pytest.approx(0.002, rel=0.1)
    assert found.operations[0].is_significant
    assert max(found.path, key=lambda row: row.difference_s).name == "backward 3"
    assert not any(row.is_significant for row in found.operations[1:] if abs(row.difference_s) < 1e-5)
    assert not found.appeared and not found.disappeared


@pytest.mark.parametrize("backward", [1.0, 4.0])
def test_pairs_in_turns_tell_a_change_from_a_busy_machine(backward):
    """Each run has a load of its own, in all of its iterations alike."""
    load = iter([1.0, 1.08, 1.06, 0.98, 1.02, 1.05, 1.08, 1.04])

    def run(factor):
        busy = next(load)
        slowness = lambda rank, name, iteration: busy * (factor if name == "backward 3" else 1.0)  # noqa: E731
        return traced(replace(JOB, slowness=slowness), iterations=4)

    pairs = [difference(run(1.0), run(backward)) for _ in range(4)]
    assert all(pair.iteration.is_significant for pair in pairs), "whatever the cause"
    found = mean(pairs)
    assert_adds_up(found)
    assert found.iteration.is_significant is (backward > 1)
    assert [row.name for row in found.operations if row.is_significant] == ["backward 3"] * (backward > 1)
    assert found.iteration.a_s == pytest.approx(np.mean([pair.iteration.a_s for pair in pairs]))
    assert mean(pairs[:2]).iteration.is_significant is None, "too few to tell"
    assert mean(pairs).to_json()["pairs"] == 4


def test_noise_is_not_significant():
    found = compared(replace(JOB, slowness=lambda rank, name, iteration: NOISE[rank, 20 + iteration]))
    assert_adds_up(found)
    assert found.iteration.is_significant is False
    assert not any(row.is_significant for row in found.operations)


def test_operations_come_and_go():
    found = compared(replace(JOB, load_s=0.003, layers=7, buckets=(2, 2, 3)))
    assert_adds_up(found)
    assert [row.name for row in found.appeared] == ["DataLoader.__next__"]
    assert {row.name for row in found.disappeared} == {"forward 7", "backward 7"}
    assert found.appeared[0].b_s == pytest.approx(0.003, rel=0.05)


def test_collectives_by_size():
    found = compared(replace(JOB, buckets=(4, 4)))
    assert_adds_up(found)
    rows = {row.name: row for row in found.collectives}
    four, eight = rows["all-reduce of 4,000,000 bytes"], rows["all-reduce of 8,000,000 bytes"]
    assert (four.a_count, four.b_count) == (4, 0)
    assert (eight.a_count, eight.b_count) == (0, 2)
    assert four.a_s == pytest.approx(4 * (50e-6 + 2e-3))


def test_few_iterations_tell_nothing_about_chance():
    found = compared(replace(JOB, load_s=0.003), iterations=2)
    assert found.iteration.p is None
    assert all(row.is_significant is None for row in found.operations)
    assert_adds_up(found)


def test_different_numbers_of_ranks():
    found = compared(replace(JOB, ranks=2))
    assert_adds_up(found)
    assert found.to_json()["a"]["ranks"] == 4 and found.to_json()["b"]["ranks"] == 2
