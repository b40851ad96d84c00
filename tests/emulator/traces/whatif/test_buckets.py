import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.checks import check
from emulator.traces.network import TransferCost
from emulator.traces.whatif.buckets import MIB, assign, caps_of, rebucket, regroup
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.transfers import fit
from switchml.errors import ConfigError, GraphError
from tests.support import ddp_jobs
from tests.support.examples import examples


def test_assignment_is_that_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(1, 2_000_000, 15)
        caps = [int(cap) for cap in rng.integers(1, 10 * MIB, rng.integers(1, 4))]
        tensors = [torch.empty(int(count)) for count in counts]
        groups, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, caps)
        of_torch = np.empty(len(counts), int)
        for number, members in enumerate(groups):
            of_torch[members] = number
        assert assign(4.0 * counts, caps).tolist() == of_torch.tolist()


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.data())
def test_caps_of_any_runs_give_these_runs(sizes, data):
    cuts = data.draw(st.lists(st.integers(0, 1), min_size=len(sizes), max_size=len(sizes)))
    bucket = np.cumsum([0, *cuts[1:]])
    assert assign(sizes, caps_of(sizes, bucket)).tolist() == bucket.tolist()


@examples(60)
@given(ddp_jobs.options(8, ranks=st.integers(1, 3), waits_for_own=st.booleans()), ddp_jobs.CAPS, ddp_jobs.CAPS)
def test_a_rebucketed_job_is_the_job_built_with_those_buckets(given, before, after):
    cost = TransferCost(given["fixed_s"], given["bytes_per_s"])
    changed = rebucket(ddp_jobs.ddp(**given, caps=before), after, cost)
    built = ddp_jobs.ddp(**given, caps=after)
    check(changed.graph)
    played = replay(changed.graph, changed.costs)
    whole = [len(set(assign(given["sizes"], after)[assign(given["sizes"], before) == old])) == 1 for old in range(8)]
    if given["waits_for_own"] and not all(whole[: 1 + assign(given["sizes"], before)[-1]]):
        # Who waited for an old bucket waits for all it is cut into: nothing says which gradient was wanted.
        assert played.makespan_s >= built.iteration_s * (1 - 1e-12)
    else:
        assert played.makespan_s == pytest.approx(built.iteration_s, rel=1e-12)
    assert len(changed.graph.transfers) == len(built.graph.transfers)
    assert gradients(changed).bucket.tolist() == gradients(built).bucket.tolist()


def test_what_it_costs_is_fitted_to_the_trace():
    job = ddp_jobs.ddp([4 * MIB] * 8, [0.002] * 8, fixed_s=0.004, bytes_per_s=5e7)
    found = fit(job)
    assert found.fixed_s == pytest.approx(0.004) and found.bytes_per_s == pytest.approx(5e7)
    changed = rebucket(job, [8 * MIB])
    built = ddp_jobs.ddp([4 * MIB] * 8, [0.002] * 8, fixed_s=0.004, bytes_per_s=5e7, caps=[8 * MIB])
    assert replay(changed.graph, changed.costs).makespan_s == pytest.approx(built.iteration_s)


def test_all_reduces_of_one_size_do_not_say_what_is_fixed():
    found = fit(ddp_jobs.ddp([4 * MIB] * 4, [0.1] * 4, fixed_s=0.0, bytes_per_s=1e8, caps=[MIB]))
    assert 0 < found.fixed_s < 0.001 and "do not tell latency from rate" in found.assumed
    assert found.seconds(4 * MIB) == pytest.approx(4 * MIB / 1e8)


def test_traces_that_name_no_gradients_allow_fusing_whole_buckets():
    job = ddp_jobs.ddp([2 * MIB] * 6, [0.002] * 6, caps=[2 * MIB])
    bare = dataclasses.replace(job, gradients=[])
    fused = rebucket(bare, [6 * MIB])
    assert len(fused.graph.transfers) == 2
    known = rebucket(job, [6 * MIB])
    assert replay(fused.graph, fused.costs).makespan_s == pytest.approx(replay(known.graph, known.costs).makespan_s)


def test_what_has_no_bytes_is_no_gradient():
    job = ddp_jobs.ddp([MIB, 0, MIB, 0, 2 * MIB], [0.01] * 5, caps=[MIB])
    assert gradients(job).bytes.tolist() == [MIB, MIB, 2 * MIB]
    assert gradients(rebucket(job, [4 * MIB])).bucket.tolist() == [0, 0, 0]
    unknown = dataclasses.replace(job, gradients=[(op, transfer, 0.0) for op, transfer, _ in job.gradients])
    assert gradients(unknown).bytes.tolist() == [MIB, MIB, 2 * MIB]  # whole buckets


def test_nonsense_is_refused_in_words():
    job = ddp_jobs.ddp([MIB] * 3, [0.001] * 3)
    with pytest.raises(ConfigError, match="above 0"):
        rebucket(job, [0])
    with pytest.raises(ConfigError, match="that rise by 1"):
        regroup(job, np.array([0, 2, 3]))
    with pytest.raises(GraphError, match="different numbers of gradients"):
        gradients(dataclasses.replace(job, gradients=job.gradients[:-1]))


def test_no_fit_is_faster_than_the_network():
    job = ddp_jobs.ddp([MIB, 3 * MIB], [0.3, 0.3], fixed_s=0.0, bytes_per_s=1e7, caps=[1])
    noisy = np.array([0.05, 0.0])  # the first met something else on its way
    costs = dataclasses.replace(job.costs, transfer_fixed_s=job.costs.transfer_fixed_s + noisy)
    job = dataclasses.replace(job, costs=costs)
    assert fit(job).bytes_per_s > 1.1e7
    bounded = fit(job, most_bytes_per_s=1e7)
    assert bounded.bytes_per_s == pytest.approx(1e7) and 0 < bounded.fixed_s < 0.03
