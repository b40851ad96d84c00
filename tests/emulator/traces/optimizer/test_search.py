import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.traces.optimizer import cuts, report
from emulator.traces.optimizer.machine import Machine, Memory
from emulator.traces.optimizer.objective import Objective
from emulator.traces.optimizer.passes import COMMUNICATION, TRACED, Setting, apply
from emulator.traces.optimizer.search import Allowed, runs, search
from emulator.traces.whatif import transfers
from emulator.traces.whatif.buckets import MIB, assign
from emulator.traces.whatif.codec_costs import CodecCost
from emulator.traces.whatif.gradients import gradients
from tests.support import ddp_jobs
from tests.support.examples import examples

CODECS = {"half": CodecCost(0.5, 2e8, lanes="int16"), "quarter": CodecCost(0.25, 5e7)}


def jobs(most=6, **others):
    return ddp_jobs.jobs(most, fixed_s=st.sampled_from([0.0, 1 / 512, 1 / 64]), **others)


DOUBTS = st.sampled_from([0.0, 1 / 512, 1 / 32])


def slowly(objective, allreduces, codecs):
    """At worst, the best of every way to cut and of the traced buckets as they are, whose all-reduces keep what they
    took beyond the model; with every allreduce, and every codec in every bucket."""
    present = gradients(objective.joined)
    best = objective(TRACED).worst_s
    for caps, allreduce in itertools.product(((), *runs(present.bytes)), allreduces):
        for chosen in itertools.product(("", *codecs), repeat=len(caps or present.transfers)):
            best = min(best, objective(Setting(buckets=caps, allreduce=allreduce, codec=chosen)).worst_s)
    return best


@pytest.mark.slow
@examples(15)
@given(jobs(most=4), DOUBTS)
def test_it_finds_the_best_buckets_placement_and_codec_of_each_bucket(job, uncertainty_s):
    machine = Machine.of(job, codecs=CODECS, uncertainty_s=uncertainty_s)
    allowed = Allowed(passes=("buckets", "allreduce", "codec"), allreduces=("ps",), codecs=tuple(CODECS))
    found = search(Objective(job, machine), allowed, trials=500)
    assert found.how.startswith("exact")
    assert found.best.worst_s == pytest.approx(slowly(Objective(job, machine), ("", "ps"), CODECS), rel=1e-5)


@examples(15)
@given(jobs(waits_for_own=st.booleans()), DOUBTS)
def test_it_finds_the_best_where_updates_wait_for_their_own_bucket(job, uncertainty_s):
    machine = Machine.of(job, uncertainty_s=uncertainty_s)
    found = search(Objective(job, machine), Allowed(passes=("buckets",)), trials=500)
    assert found.best.worst_s == pytest.approx(slowly(Objective(job, machine), ("",), ()), rel=1e-5)


@examples(20)
@given(jobs(), DOUBTS, st.sampled_from(["", "switchml"]), st.sampled_from([[""], ["half"], ["half", "quarter"]]))
def test_the_path_is_what_replay_says(job, uncertainty_s, allreduce, codecs):
    machine = Machine.of(job, codecs=CODECS, uncertainty_s=uncertainty_s)
    options = cuts.choices(machine, allreduce, codecs)
    caps, chosen = cuts.fastest(*cuts.ready(job), options, uncertainty_s)
    objective = Objective(job, machine)
    _, _, end_s = cuts.path(*cuts.ready(job), *cuts.columns(options), len(caps))
    worth = objective(Setting(buckets=caps, allreduce=allreduce, codec=chosen if any(chosen) else ()))
    assert worth.sample_s == pytest.approx(end_s[-1, -1] + 0.003, rel=1e-9)  # the optimizer comes after
    assert worth.worst_s == pytest.approx(worth.sample_s + uncertainty_s * len(caps), rel=1e-9)


def big(optimizer_s=(0.001,), **given):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 40, 40) * MIB / 8
    return ddp_jobs.ddp(sizes, rng.random(40) / 100, waits_for_own=True, optimizer_s=optimizer_s, **given)


def test_where_the_space_is_large_optuna_proposes_and_a_seed_repeats_it():
    job = big(fixed_s=0.003, optimizer_s=[0.02])
    allowed = Allowed(passes=("buckets", "priority", "accumulate"), lists=True)
    first, again = (search(Objective(job, Machine.of(job)), allowed, trials=150, seed=7) for _ in range(2))
    assert first.best.setting == again.best.setting and "Optuna" in first.how
    assert first.evaluated <= 150
    alone = search(Objective(job, Machine.of(job)), Allowed(passes=("priority",)), trials=150)
    assert first.best.sample_s < alone.best.sample_s < first.traced.sample_s


def test_urgent_buckets_first_gains_only_where_updates_wait_for_their_own():
    job = ddp_jobs.ddp([MIB, 8 * MIB, MIB], [0.001] * 3, caps=[1], optimizer_s=[0.05], waits_for_own=True)
    objective = Objective(job, Machine.of(job))
    assert objective(Setting(priority=True)).iteration_s < objective(TRACED).iteration_s - 0.04
    everyone = ddp_jobs.ddp([8 * MIB, MIB], [0.001, 0.001], caps=[1])
    objective = Objective(everyone, Machine.of(everyone))
    assert objective(Setting(priority=True)).iteration_s == objective(TRACED).iteration_s


def test_a_batch_grows_as_far_as_memory_goes():
    job = ddp_jobs.ddp([4 * MIB] * 4, [0.01] * 4)
    states = 16 * MIB / 4 * 12
    roomy = Machine.of(job, memory=Memory(limit=states + 4.5e9, activations=1e9))
    found = search(Objective(job, roomy), Allowed(passes=("batch",)))
    assert found.best.setting.batch == 4 and found.best.memory_bytes <= roomy.memory.limit
    tight = Machine.of(job, memory=Memory(limit=states + 4.5e9, activations=9e9))
    found = search(Objective(job, tight), Allowed(passes=("batch", "recompute")))
    assert found.best.fits and not found.traced.fits


def test_the_budget_and_ctrl_c_end_it_with_the_best_so_far():
    job = big()
    found = search(Objective(job, Machine.of(job)), Allowed(passes=("buckets",)), trials=40)
    assert found.evaluated <= 40 and found.best.sample_s < found.traced.sample_s

    def stop(evaluated, best_s):
        if evaluated > 30:
            raise KeyboardInterrupt

    found = search(Objective(job, Machine.of(job)), Allowed(passes=("buckets",)), progress=stop)
    assert found.interrupted and found.best.sample_s < found.traced.sample_s


def test_a_budget_that_the_critical_path_has_used_up_leaves_nothing_for_optuna():
    job = ddp_jobs.ddp([MIB, MIB], [0.01, 0.01], caps=[2 * MIB])
    whole = search(Objective(job, Machine.of(job)), Allowed(passes=("allreduce",)))
    assert whole.how.startswith("exact")
    short = search(Objective(job, Machine.of(job)), Allowed(passes=("allreduce",)), trials=whole.evaluated)
    assert short.evaluated == whole.evaluated and short.how == "the budget ended before the space did"


def test_more_gradients_than_a_float_counts_ways_to_cut():
    job = ddp_jobs.ddp([MIB / 64] * 1100, [1e-4] * 1100, caps=[20 * MIB])
    found = search(Objective(job, Machine.of(job)), Allowed(passes=("buckets",)), trials=60)
    assert found.gain > 0 and found.how == "exact: every combination, each with the best buckets, at most 64"


def test_nothing_to_gain_leaves_everything_as_traced():
    job = ddp_jobs.ddp([MIB / 64] * 3, [0.1] * 3, fixed_s=0.0, bytes_per_s=1e12, optimizer_s=[0.1])
    found = search(Objective(job, Machine.of(job)), Allowed(passes=("buckets",)))
    assert found.best.setting == TRACED and found.gain == 0


@pytest.mark.parametrize("waits_for_own", [False, True])
def test_gradients_without_bytes_are_in_nobodys_way(waits_for_own):
    options = dict(caps=[MIB], waits_for_own=waits_for_own, optimizer_s=[0.0])
    job = ddp_jobs.ddp([MIB, 0, MIB, 0, MIB], [0.01, 0, 0.01, 0, 0.01], **options)
    bare = ddp_jobs.ddp([MIB] * 3, [0.01] * 3, **options)
    found, other = (search(Objective(one, Machine.of(one)), Allowed(passes=("buckets",))) for one in (job, bare))
    assert found.best.worst_s == pytest.approx(other.best.worst_s) and found.best.setting == other.best.setting


def test_gradients_of_two_buckets_may_come_in_turns():
    job = ddp_jobs.ddp([MIB] * 4, [0.01] * 4, caps=[2 * MIB])
    first, second = gradients(job).transfers.tolist()
    turns = [(op, (first, second)[i % 2], size) for i, (op, _, size) in enumerate(job.gradients)]
    machine, setting = Machine.of(job), Setting(allreduce="switchml")
    there = apply(COMMUNICATION, dataclasses.replace(job, gradients=turns), setting, machine)
    transfer, (ready_s, _) = machine.transfer("switchml"), cuts.ready(job)
    lost_s = transfers.repeated_s(transfer, ready_s[2:], np.full(2, 2.0 * MIB))
    assert lost_s[0] > 0
    elapsed_s = transfers.transfer_s(there.costs)[[first, second]]
    assert elapsed_s == pytest.approx(transfer.seconds(2.0 * MIB) + lost_s)


def test_the_larger_the_doubt_the_fewer_buckets():
    job = ddp_jobs.ddp([MIB] * 16, [0.02] * 16, fixed_s=1e-5, bytes_per_s=8e7, caps=[16 * MIB])
    counts = []
    for uncertainty_s in (0.0, 0.002, 0.008, 0.02, 1.0):
        found = search(Objective(job, Machine.of(job, uncertainty_s=uncertainty_s)), Allowed(passes=("buckets",)))
        counts.append(int(assign([MIB] * 16, found.best.setting.buckets or [16 * MIB])[-1]) + 1)
        assert found.best.sample_s <= found.best.worst_s <= found.traced.sample_s
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[2] > counts[-1] == 1


def test_a_tiny_first_bucket_must_be_worth_an_all_reduce():
    """The network is idle until the second gradient: the first one's bytes could go for nothing, an all-reduce not."""
    sizes, backward_s = [MIB / 64] + [MIB] * 8, [0.01] + [0.02] * 8
    job = ddp_jobs.ddp(sizes, backward_s, fixed_s=0.0, bytes_per_s=1e7, caps=[9 * MIB])
    tempted = search(Objective(job, Machine.of(job, uncertainty_s=0.0)), Allowed(passes=("buckets",))).best
    found = search(Objective(job, Machine.of(job, uncertainty_s=0.003)), Allowed(passes=("buckets",))).best
    assert tempted.setting.buckets[0] == sizes[0] < found.setting.buckets[0]
    assert found.sample_s <= tempted.sample_s + 0.003


def test_a_gain_that_the_replay_is_off_by_is_none():
    job = ddp_jobs.ddp([MIB] * 4, [0.02] * 4, fixed_s=0.001, bytes_per_s=1e8, caps=[4 * MIB])
    sure = search(Objective(job, Machine.of(job)), Allowed(passes=("buckets",)))
    assert sure.gain_of(sure.best, at_worst=True) > 0.02
    longer = dataclasses.replace(job, iteration_s=job.iteration_s * 1.5)
    objective = Objective(longer, Machine.of(longer))
    found = search(objective, Allowed(passes=("buckets",)))
    assert found.best.setting == TRACED and found.predicted_speedup == 1
    (said,) = report.too_little(found, objective, Allowed(passes=("buckets",)))
    assert "buckets of gradients as it is" in said and "33.3% off" in said


def test_an_all_reduce_costs_something_even_where_the_trace_says_nothing_of_it():
    job = ddp_jobs.ddp([MIB] * 8, [0.001] * 8, fixed_s=0.0, bytes_per_s=1e8)
    assert Machine.of(job).transfer("").fixed_s == transfers.MIN_FIXED_S
    fast = ddp_jobs.ddp([MIB / 1024, MIB], [0.001] * 2, fixed_s=2e-5, bytes_per_s=1e10, caps=[1])
    assert Machine.of(fast).transfer("").fixed_s == pytest.approx(2e-5, rel=0.01)


def test_where_size_makes_no_difference_no_link_speed_is_named():
    job = ddp_jobs.ddp([MIB / 1024, MIB], [0.001] * 2, fixed_s=0.002, bytes_per_s=1e18, caps=[1])
    said = " ".join(Machine.of(job).assumptions())
    assert "no link speed could be fitted" in said and "whatever its size" in said and "Mbit/s" not in said
