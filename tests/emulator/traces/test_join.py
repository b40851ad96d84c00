"""Traces of all ranks as one graph: structure, waiting, times, and what does not belong together."""

import dataclasses

import numpy as np
import pytest

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.graph import NO_TRANSFER, Kind
from emulator.traces.events import LaneKind, What
from emulator.traces.iterations import chain
from emulator.traces.join import MEAN, join, join_each
from emulator.traces.joined import GAP
from emulator.traces.whatif.predict import as_replayed, predicted, traced
from switchml.errors import TraceError
from tests.support import ddp_traces as traces


def test_a_graph_replays_to_what_was_traced():
    given = traces.ddp(ranks=3, slowness=[1.0, 1.2, 0.9])
    joined = join(given)
    played = replay(joined.graph, joined.costs)
    assert played.makespan_s == pytest.approx(max(trace.steps[0, 1] for trace in given), rel=1e-6)
    assert joined.iteration_s == pytest.approx(np.mean([trace.steps[0, 1] for trace in given]))
    assert played.start_s == pytest.approx(joined.start_s, abs=1e-4)


def test_ops_know_their_events_and_gaps():
    given = traces.ddp()
    joined = join(given)
    ops, op_types = joined.graph.ops, joined.graph.op_types
    for op in range(len(ops)):
        rank = joined.graph.op_rank()[op]
        if joined.event[op] == GAP:
            assert op_types.kind[ops.op_type[op]] == Kind.DELAY
        else:
            events = given[rank].events
            assert op_types.name[ops.op_type[op]] == given[rank].names[events.name[joined.event[op]]]
    assert np.all(np.isfinite(joined.start_s)) and np.all(joined.end_s >= joined.start_s)


def test_all_reduces_meet_and_cost_what_was_left_after_the_last_had_come():
    joined = join(traces.ddp(slowness=[1.0, 1.5]))
    assert len(joined.graph.transfers) == 2
    assert joined.costs.transfer_fixed_s == pytest.approx([12e-3, 20e-3], rel=1e-6)
    assert joined.graph.op_types.bytes[joined.graph.transfers.op_type].tolist() == [2e6, 2e6]


def test_gradients_stand_in_their_buckets():
    joined = join(traces.ddp())
    rank = joined.graph.op_rank()
    for number in range(2):
        mine = [(transfer, size) for op, transfer, size in joined.gradients if rank[op] == number]
        assert mine == [(0, 1e6), (0, 1e6), (1, 1e6), (1, 1e6)]


def test_each_copy_back_waits_for_its_own_bucket():
    """DDP waits for the buckets one by one; only a gap shows it."""
    joined = join(traces.ddp(dataclasses.replace(traces.Job(), reduce=(12.0, 200.0))))
    slower = dataclasses.replace(joined.costs, transfer_fixed_s=np.array([12e-3, 0.5]))
    played = replay(joined.graph, slower)
    copies = [op for op in range(len(joined.graph.ops)) if _name(joined, op) == traces.COPY_BACK]
    first, second = copies[:2], copies[2:4]
    assert max(played.end_s[op] for op in first) < 0.2
    assert min(played.start_s[op] for op in second) > 0.5


def test_without_copies_the_optimizer_waits_for_all_buckets():
    job = dataclasses.replace(traces.Job(), reduce=(12.0, 20.0))
    given = [_without(trace, traces.COPY_BACK) for trace in traces.ddp(job)]
    joined = join(given)
    played = replay(joined.graph, dataclasses.replace(joined.costs, transfer_fixed_s=np.array([12e-3, 0.5])))
    steps = [op for op in range(len(joined.graph.ops)) if _name(joined, op) == "aten::add_"]
    assert min(played.start_s[op] for op in steps) > 0.5


def test_backward_does_not_wait_for_communication():
    joined = join(traces.ddp())
    played = replay(joined.graph, dataclasses.replace(joined.costs, transfer_fixed_s=np.array([9.0, 9.0])))
    layers = [op for op in range(len(joined.graph.ops)) if _name(joined, op) == "aten::mm"]
    assert max(played.end_s[op] for op in layers) < 0.1


def test_means_of_iterations_are_means():
    fast, slow = traces.ddp(slowness=[1.0, 1.0]), traces.ddp(slowness=[1.2, 1.2])
    both = [_appended(a, b) for a, b in zip(fast, slow, strict=True)]
    joined = join(both)
    assert joined.iteration == MEAN
    alone = [join(both, iteration=i) for i in range(2)]
    total_s = [
        np.nansum(one.costs.op_type_s[one.graph.ops.op_type[one.graph.ops.transfer == NO_TRANSFER]]) for one in alone
    ]
    mean_s = np.nansum(joined.costs.op_type_s[joined.graph.ops.op_type[joined.graph.ops.transfer == NO_TRANSFER]])
    assert mean_s == pytest.approx(np.mean(total_s), rel=1e-6)
    assert joined.iteration_s == pytest.approx(np.mean([one.iteration_s for one in alone]))


def test_iterations_that_do_other_things_are_left_out_and_said_so():
    given = traces.ddp(iterations=4)
    events = given[0].events
    first = np.flatnonzero(events.name == given[0].names.index("aten::linear"))[0]
    odd = dataclasses.replace(given[0], names=[*given[0].names, "aten::odd"])
    names = events.name.copy()
    names[first] = len(odd.names) - 1
    odd = dataclasses.replace(odd, events=dataclasses.replace(events, name=names))
    joined = join([odd, given[1]])
    assert any("1 of 4 iterations" in line for line in joined.assumptions)


def test_an_iteration_in_which_profilers_start_is_left_out():
    slow, usual = traces.ddp(slowness=[4.0, 1.0]), traces.ddp(iterations=1)
    several = [_appended(_appended(a, b), b) for a, b in zip(slow, usual, strict=True)]
    several = [_appended(one, b) for one, b in zip(several, usual, strict=True)]
    assert [one.iteration for one in join_each(several)] == [1, 2, 3]
    joined = join(several)
    assert joined.iteration_s == pytest.approx(join(usual).iteration_s, rel=1e-6)
    assert any("the first of 4 iterations" in line for line in joined.assumptions)


def test_iterations_one_after_the_other_take_what_they_took():
    """Ranks are late in turn: each iteration by itself hides that, the chain does not."""
    given = traces.ddp(iterations=5, slowness=[1.0, 1.3], jitter=0.5, seed=3)
    each = join_each(given)
    graph, _ = chain(each)
    check(graph)
    was, again = traced(each), predicted(each)
    assert again.iteration_s == pytest.approx(was.iteration_s, rel=0.01)
    assert again.by_rank.sum(axis=1) == pytest.approx(again.iteration_s, rel=1e-9)
    assert again.mean()["compute"] == pytest.approx(was.mean()["compute"], rel=1e-6)


def test_the_trace_as_if_replayed_has_its_waits():
    joined = join(traces.ddp(slowness=[1.0, 1.5]))
    waits = as_replayed(joined.graph, joined.costs, joined.start_s, joined.end_s).wait_s()
    rank = joined.graph.op_rank()
    assert waits[rank == 0].sum() > 10 * waits[rank == 1].sum()


def test_a_late_record_of_an_end_does_not_delay_who_was_woken_before():
    given = traces.ddp(late_end=[0.0, 1.0])
    joined = join(given)
    assert replay(joined.graph, joined.costs).makespan_s == pytest.approx(joined.iteration_s, rel=0.03)


def test_host_ops_of_a_rank_with_a_device_are_the_hosts_time():
    recorder = traces.Recorder(0, 1)
    recorder.lanes = [traces.Lane("main", LaneKind.HOST), traces.Lane("stream 7", LaneKind.DEVICE)]
    at = 0.0
    kernels = []
    for _ in range(3):
        recorder.add("aten::mm", What.COMPUTE, at, at + 30e-6)
        launch = recorder.add("cudaLaunchKernel", What.LAUNCH, at + 10e-6, at + 20e-6)
        kernels.append(recorder.add("gemm", What.COMPUTE, at + 25e-6, at + 425e-6, lane=1))
        recorder.causes.append((launch, kernels[-1]))
        at += 440e-6
    sync = recorder.add("cudaDeviceSynchronize", What.SYNC, at - 400e-6, at)
    recorder.causes.append((kernels[-1], sync))
    recorder.steps = [(0.0, at)]
    joined = join([recorder.trace()])
    kinds = {_name(joined, op): joined.graph.op_kind()[op] for op in range(len(joined.graph.ops))}
    assert kinds["gemm"] == Kind.COMPUTE and kinds["aten::mm"] == Kind.DELAY
    halved = dataclasses.replace(
        joined.costs, op_type_s=np.where(_is(joined, "gemm"), 0.5, 1.0) * joined.costs.op_type_s
    )
    assert replay(joined.graph, joined.costs).makespan_s == pytest.approx(joined.iteration_s, rel=1e-6)
    # What waits for the device waits less; the host's own time stays.
    assert replay(joined.graph, halved).makespan_s == pytest.approx(joined.iteration_s - 200e-6, abs=2e-6)


def test_communication_that_an_earlier_iteration_launched_begins_with_this_one():
    given = []
    for rank in range(2):
        recorder = traces.Recorder(rank, 2)
        recorder.add("gather", What.COLLECTIVE, 0.0, 5e-3, 1, collective=3, group=0, sequence=0, bytes=1e6)
        recorder.add("aten::mm", What.COMPUTE, 1e-3, 9e-3)
        recorder.steps = [(0.0, 10e-3)]
        given.append(recorder.trace())
    joined = join(given)
    assert "2 communications have no producer here" in joined.assumptions[-1]
    assert replay(joined.graph, joined.costs).makespan_s == pytest.approx(10e-3)


def test_nothing_comes_after_the_last_all_reduce():
    """Of a rank whose host left no events, the iteration ends where it did, not a whole one later."""
    given = []
    for rank in range(2):
        recorder = traces.Recorder(rank, 2)
        for step in range(2):
            row = {"collective": 1, "group": 0, "sequence": step, "bytes": 1e6}
            recorder.add("switchml:all_reduce", What.COLLECTIVE, step * 10e-3 + 2e-3, step * 10e-3 + 9e-3, 1, **row)
            recorder.steps.append((step * 10e-3, step * 10e-3 + 10e-3))
        given.append(recorder.trace())
    assert predicted(join_each(given)).iteration_s == pytest.approx(10e-3, rel=1e-6)
    joined = join(given)
    assert replay(joined.graph, joined.costs).makespan_s == pytest.approx(10e-3, rel=1e-6)


def test_calls_whose_work_nobody_saw_are_told_of():
    given = []
    for rank in range(2):
        recorder = traces.Recorder(rank, 2)
        recorder.add("c10d::allreduce_", What.SCOPE, 1e-3, 2e-3)
        recorder.add("aten::mm", What.COMPUTE, 5e-3, 9e-3)
        recorder.steps = [(0.0, 10e-3)]
        given.append(recorder.trace())
    assert any("2 calls of torch.distributed have left no work" in line for line in join(given).assumptions)


# What does not belong together


def test_a_rank_without_its_part():
    given = traces.ddp()
    lost = _without(given[1], "gloo:all_reduce", only=1)
    with pytest.raises(TraceError, match=r"rank 1 has no part in 'gloo:all_reduce' number 1"):
        join([given[0], lost])


def test_ranks_that_disagree_about_sizes():
    given = traces.ddp()
    events = given[1].events
    other = dataclasses.replace(given[1], events=dataclasses.replace(events, bytes=events.bytes * 2))
    with pytest.raises(TraceError, match="disagree about .* 2000000 and 4000000 bytes"):
        join([given[0], other])


def test_two_traces_of_one_rank():
    given = traces.ddp()
    with pytest.raises(TraceError, match="both of rank 0"):
        join([given[0], given[0]])
    with pytest.raises(TraceError, match="no traces"):
        join([])
    with pytest.raises(TraceError, match="no iteration 5"):
        join(given, iteration=5)


def test_ranks_that_were_not_traced_are_counted():
    given = traces.ddp(ranks=4)[:2]
    joined = join(given)
    assert joined.graph.ranks.weight.tolist() == [2.0, 2.0]
    assert joined.graph.groups.size.tolist() == [4]
    assert any("2 ranks were not traced" in line for line in joined.assumptions)


def _name(joined, op: int) -> str:
    return joined.graph.op_types.name[joined.graph.ops.op_type[op]]


def _is(joined, name: str) -> np.ndarray:
    return np.array([op_type == name for op_type in joined.graph.op_types.name])


def _without(trace, name: str, only: int | None = None):
    """The trace without events of this name, or without the one of that sequence number."""
    events = trace.events
    gone = events.name == trace.names.index(name)
    if only is not None:
        gone &= events.sequence == only
    kept = np.flatnonzero(~gone)
    place = np.full(len(gone) + 1, -1)
    place[kept] = np.arange(len(kept))
    columns = {name: getattr(events, name)[kept] for name in events.__dataclass_fields__}
    columns["parent"] = place[columns["parent"]].astype(np.int32)
    causes = trace.causes[~gone[trace.causes].any(axis=1)]
    return dataclasses.replace(
        trace, events=dataclasses.replace(events, **columns), causes=place[causes].astype(np.int32).reshape(-1, 2)
    )


def _appended(first, second):
    """Two traces of one iteration each as one of two."""
    until_s = first.steps[-1, 1]
    a, b = first.events, second.events
    shift = {"start_s": until_s, "parent": len(a)}
    columns = {}
    for name in a.__dataclass_fields__:
        more = getattr(b, name)
        if name == "parent":
            more = np.where(more >= 0, more + len(a), more)
        elif name == "sequence":
            more = np.where(more >= 0, more + 1 + a.sequence.max(), more)
        elif name in shift:
            more = more + shift[name]
        columns[name] = np.concatenate([getattr(a, name), more])
    order = np.lexsort((np.arange(len(a) + len(b)), columns["start_s"], columns["lane"]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    parent = columns["parent"][order]
    columns = {name: values[order] for name, values in columns.items()}
    columns["parent"] = np.where(parent >= 0, place[parent], -1).astype(np.int32)
    causes = place[np.concatenate([first.causes, second.causes + len(a)])]
    return dataclasses.replace(
        first,
        events=dataclasses.replace(a, **columns),
        causes=causes.astype(np.int32),
        steps=np.concatenate([first.steps, second.steps + until_s]),
    )
