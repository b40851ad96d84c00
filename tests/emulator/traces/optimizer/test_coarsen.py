import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.checks import check
from emulator.traces.optimizer.coarsen import coarsen, folded, frozen, merged
from emulator.traces.optimizer.machine import Machine, Memory
from emulator.traces.optimizer.objective import Objective
from emulator.traces.optimizer.passes import Setting
from emulator.traces.whatif.buckets import MIB, rebucket
from emulator.traces.whatif.codec_costs import CodecCost
from emulator.traces.whatif.fusion import continues_run
from tests.support import ddp_jobs
from tests.support.ddp_jobs import CAPS
from tests.support.examples import examples

CODECS = {"half": CodecCost(0.5, 2e9), "top": CodecCost(0.02, 2e8, gathers=True)}


JOBS = ddp_jobs.jobs(
    7,
    ranks=st.integers(2, 3),
    waits_for_own=st.booleans(),
    caps=CAPS,
    slowness=st.lists(st.sampled_from([1.0, 1.5]), min_size=3, max_size=3),
)
SETTINGS = st.builds(
    Setting, buckets=st.one_of(st.just(()), CAPS), allreduce=st.sampled_from(["", "ps"]),
    codec=st.lists(st.sampled_from(["", *CODECS]), max_size=2).map(tuple), priority=st.booleans(),
    precision=st.sampled_from(["", "half"]), recompute=st.booleans(), fuse=st.booleans(), accumulate=st.integers(1, 3),
    batch=st.sampled_from([1.0, 2.0]),
)  # fmt: skip


def end_s(joined):
    return replay(joined.graph, joined.costs).makespan_s


@examples(60)
@given(JOBS, CAPS)
def test_each_way_of_making_it_smaller_is_exact(job, caps):
    whole_s = end_s(rebucket(job, caps))
    for smaller in (frozen, merged, folded, coarsen):
        small = smaller(job)
        check(small.graph)
        assert end_s(small) == pytest.approx(job.iteration_s, rel=1e-12), smaller.__name__
        assert end_s(rebucket(small, caps)) == pytest.approx(whole_s, rel=1e-12), smaller.__name__


@examples(80)
@given(JOBS, SETTINGS)
def test_a_setting_is_worth_the_same_on_the_whole_job(job, setting):
    machine = Machine.of(job, codecs=CODECS, memory=Memory(limit=1e12, activations=1e9), half_speed=2.0)
    objective = Objective(job, machine)
    assert objective(setting).iteration_s == pytest.approx(end_s(objective.whole(setting)), rel=1e-9)


def test_it_gets_smaller():
    job = ddp_jobs.ddp([MIB] * 50, [0.001] * 50, ranks=8, optimizer_s=[0.001] * 100)
    small = coarsen(job)
    assert len(small.graph.ranks) == 1 and small.graph.ranks.weight.tolist() == [8]
    assert len(small.graph.ops) < 60 < len(job.graph.ops) / 20


def test_a_run_ends_where_somebody_looks():
    job = ddp_jobs.ddp([MIB, MIB], [0.001, 0.001], ranks=1, caps=[1])
    names = [job.graph.op_types.name[work] for work in job.graph.ops.op_type]
    joins = continues_run(job.graph)
    # backward 0 is waited for by its bucket, and the first update waits for buckets
    assert [name for name, joined in zip(names, joins, strict=True) if joined] == ["backward 0", "optimizer 1"]
    assert np.flatnonzero(joins).size == 2
