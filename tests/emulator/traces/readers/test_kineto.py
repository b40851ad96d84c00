"""Kineto traces: what stands in the file stands in the RankTrace."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import LaneKind, What
from emulator.traces.readers.kineto import kineto
from switchml.errors import TraceError
from tests.support.kineto_data import published, span, write


def read(path):
    """The trace of a file of one rank."""
    (trace,) = kineto.read(path)
    return trace


PUBLISHED = ["alexnet", "mi250", "nccl_data", "sampled_rank-0", "sampled_rank-1", "simple_add"]


def plain(name):
    return json.loads(gzip.open(published(f"{name}.json.gz")).read())


@pytest.mark.parametrize("name", PUBLISHED)
def test_events_and_launches_of_published_traces_are_all_there(name):
    trace = read(published(f"{name}.json.gz"))
    events = [e for e in plain(name)["traceEvents"] if e["ph"] == "X"]
    kept = [e for e in events if e["cat"] not in ("Trace", "gpu_user_annotation", "cuda_sync")]
    assert sorted(trace.names[i] for i in trace.events.name) == sorted(e["name"] for e in kept)
    assert trace.events.duration_s.sum() == pytest.approx(sum(e["dur"] for e in kept) * 1e-6, rel=1e-9)
    runtime = {e["args"]["correlation"] for e in events if e["cat"].endswith("_runtime")}
    on_device = [e for e in kept if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    device_lane = np.array([lane.kind == LaneKind.DEVICE for lane in trace.lanes])
    launched = device_lane[trace.events.lane[trace.causes[:, 1]]]
    launched &= trace.events.what[trace.causes[:, 0]] == What.LAUNCH
    assert launched.sum() == sum(e["args"]["correlation"] in runtime for e in on_device)


@pytest.mark.parametrize("name", PUBLISHED)
def test_events_are_in_order_and_nest(name):
    events = read(published(f"{name}.json.gz")).events
    order = np.lexsort((events.start_s, events.lane))
    assert np.array_equal(events.start_s[order], events.start_s)
    child = np.flatnonzero(events.parent >= 0)
    parent = events.parent[child]
    assert np.all(parent < child)
    assert np.array_equal(events.lane[parent], events.lane[child])
    assert np.all(events.start_s[parent] <= events.start_s[child])
    assert np.all(events.end_s[parent] >= events.end_s[child] - 3e-9)


def test_nccl_operations_equal_the_files():
    trace = read(published("nccl_data.json.gz"))
    kernels = [e for e in plain("nccl_data")["traceEvents"] if e["ph"] == "X" and e["name"].startswith("nccl")]
    kernels = sorted((e for e in kernels if e["cat"] == "kernel"), key=lambda e: e["ts"])
    at = np.flatnonzero(trace.events.what == What.COLLECTIVE)
    assert len(at) == len(kernels) == 21
    item = {"Float": 4, "Long": 8, "Byte": 1, "Char": 1}
    sizes = [e["args"]["In msg nelems"] * item[e["args"]["dtype"]] for e in kernels]
    assert trace.events.bytes[at].tolist() == sizes
    names = {
        "allreduce": Collective.ALL_REDUCE,
        "broadcast": Collective.BROADCAST,
        "_broadcast_oop": Collective.BROADCAST,
    }
    assert trace.events.collective[at].tolist() == [names[e["args"]["Collective name"]] for e in kernels]
    assert trace.events.sequence[at].tolist() == list(range(21))
    assert trace.groups[0].ranks == (0, 1)
    assert len(trace.steps) == 3


def gloo_trace(path, numbered=True):
    float_ = {"Input type": ["float"]}
    lists = {"Input type": ["TensorList"], "Concrete Inputs": [""]}
    events = [
        span("ProfilerStep#1", 0, 1000, cat="user_annotation", args={"Record function id": 1}),
        span("torch::autograd::AccumulateGrad", 10, 5,
             args={"Record function id": 2, "Input Dims": [[100]], **float_}),
        span("c10d::allreduce_", 20, 10, args={"Record function id": 3, "Input Dims": [[[100]]], **lists}),
        span("c10d::allreduce_", 40, 10, args={"Record function id": 5, "Input Dims": [[[7]]], **lists}),
        span("gloo:all_reduce", 300, 100, tid=2, cat="user_annotation",
             args={"Record function id": 4, "Input Dims": [[100]], **float_}),
        span("gloo:all_reduce", 60, 100, tid=3, cat="user_annotation",
             args={"Record function id": 6, "Input Dims": [[7]], **float_}),
        span("c10d::send", 500, 50,
             args={"Record function id": 7, "Input Dims": [[[9]]], "Input type": ["TensorList", "", "Scalar", "Scalar"],
                   "Concrete Inputs": ["", "", "1", "0"]}),
        span("gloo:send", 510, 30, cat="user_annotation",
             args={"Record function id": 8, "Input Dims": [[9]], **float_}),
    ]  # fmt: skip
    for event in events if not numbered else []:
        event["args"]["Record function id"] = 0
    return write(path, events)


@pytest.mark.parametrize("numbered", [True, False])
def test_gloo_work_is_numbered_by_its_calls(numbered, tmp_path):
    """Two threads do the work; the second all-reduce may begin first. Without numbers their sizes tell."""
    trace = read(gloo_trace(tmp_path / "t.json", numbered))
    events = trace.events
    names = [trace.names[i] for i in events.name]
    found = {float(events.bytes[i]): int(events.sequence[i]) for i, n in enumerate(names) if n == "gloo:all_reduce"}
    assert found == {400.0: 0, 28.0: 1}
    sent = names.index("gloo:send")
    assert (events.what[sent], events.peer[sent], events.bytes[sent]) == (What.SEND, 1, 36)
    calls = [i for i, n in enumerate(names) if n == "c10d::allreduce_"]
    works = [i for i, n in enumerate(names) if n == "gloo:all_reduce"]
    works.sort(key=lambda i: events.sequence[i])
    assert all([call, work] in trace.causes.tolist() for call, work in zip(calls, works, strict=True))
    assert events.what[calls].tolist() == [What.LAUNCH] * 2
    assert events.bytes[events.gradient].tolist() == [400.0]
    assert [lane.kind for lane in trace.lanes] == [LaneKind.HOST, LaneKind.TRANSPORT, LaneKind.TRANSPORT]
    assert trace.steps.tolist() == [[0, pytest.approx(1e-3)]]


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_cause_contradicts_the_times(name):
    trace = read(published(f"{name}.json.gz"))
    events = trace.events
    cause, effect = trace.causes.T
    happened = np.where(events.what[cause] == What.LAUNCH, events.start_s[cause], events.end_s[cause])
    needed = np.where(events.what[effect] == What.SYNC, events.end_s[effect], events.start_s[effect])
    assert len(cause)
    assert np.all(happened <= needed + 2e-6)


def test_streams_wait_for_communication_and_communication_for_kernels():
    trace = read(published("nccl_data.json.gz"))
    what = trace.events.what
    pairs = trace.causes[(what[trace.causes] == What.COLLECTIVE).any(axis=1)]
    collectives = set(np.flatnonzero(what == What.COLLECTIVE).tolist())
    after_a_kernel = {effect for cause, effect in pairs.tolist() if what[cause] == What.COMPUTE}
    awaited = {cause for cause, effect in pairs.tolist() if what[effect] == What.COMPUTE}
    assert after_a_kernel == collectives
    # Streams keep their order, so waiting for a step's last all-reduce is waiting for all of them.
    at = trace.events.start_s
    for start, end in trace.steps:
        in_step = [event for event in collectives if start < at[event] < end]
        assert max(in_step, key=lambda event: at[event]) in awaited


@pytest.mark.parametrize("name", ["alexnet", "simple_add"])
def test_recorded_synchronization_names_the_stream(name):
    """CUDA's own `Stream Sync` says which stream; the host waits for the last thing that was launched on it."""
    trace = read(published(f"{name}.json.gz"))
    events = trace.events
    syncs = [i for i in np.flatnonzero(events.what == What.SYNC) if "Stream" in trace.names[events.name[i]]]
    told = [e for e in plain(name)["traceEvents"] if e.get("cat") == "cuda_sync" and e["name"] == "Stream Sync"]
    causes = {effect: cause for cause, effect in trace.causes.tolist()}
    waited = {trace.lanes[events.lane[causes[sync]]].name.split()[-1] for sync in syncs if sync in causes}
    assert waited <= {str(e["args"]["stream"]) for e in told}
    assert sum(sync in causes for sync in syncs) >= len(syncs) // 2


def test_collectives_that_name_no_group_are_counted_where_there_are_several(tmp_path):
    groups = [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "5", "pg_size": 1, "ranks": [0]}]
    told = json.loads(gloo_trace(tmp_path / "t.json").read_text())
    distributed = {"rank": 0, "world_size": 2, "pg_config": groups}
    trace = read(write(tmp_path / "t.json", told["traceEvents"], distributedInfo=distributed))
    assert [group.name for group in trace.groups] == ["0", "5"]
    assert set(trace.events.group[trace.events.collective > 0].tolist()) == {0}
    assert trace.about["groups"].startswith("3 collectives do not say")


def kernel(name, start_us, correlation, **args):
    return span(name, start_us, 10, cat="kernel", pid=0, tid=7, args={"correlation": correlation, **args})


def test_nccl_arguments_of_every_collective(tmp_path):
    """Names as c10d gives them; sizes as Collective counts them; groups by name, also where ranks are cut short."""
    cases = [
        ("_allgather_base", 10, 40, Collective.ALL_GATHER, 160),
        ("_reduce_scatter_base", 40, 10, Collective.REDUCE_SCATTER, 160),
        ("all_to_allv", 40, 40, Collective.ALL_TO_ALL, 160),
        ("broadcast", 8, 8, Collective.BROADCAST, 32),
        ("barrier", 1, 1, Collective.BARRIER, 0),
        ("allreduce_coalesced", 6, 6, Collective.ALL_REDUCE, 24),
    ]
    events = [span("aten::mm", 0, 5)]
    for at, (name, sent, received, _, _) in enumerate(cases):
        args = {"Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "dtype": "Float",
                "Group size": 4, "Process Group Name": "7", "Process Group Ranks": "[0, 8, ...]",
                "Global rank start": 0, "Global rank stride": 8}  # fmt: skip
        events.append(kernel("ncclDevKernel_Generic", 20 * at + 10, at + 1, **args))
        events.append(span("cudaLaunchKernel", 20 * at + 6, 1, cat="cuda_runtime", args={"correlation": at + 1}))
    distributed = {"backend": "nccl", "rank": 8, "world_size": 32}
    trace = read(write(tmp_path / "t.json", events, distributedInfo=distributed))
    at = np.flatnonzero(trace.events.collective)
    assert trace.events.collective[at].tolist() == [int(kind) for *_, kind, _ in cases]
    assert trace.events.bytes[at].tolist() == [size for *_, size in cases]
    assert trace.groups[trace.events.group[at[0]]].ranks == (0, 8, 16, 24)
    assert trace.events.sequence[at].tolist() == list(range(len(cases)))


def test_cudas_records_of_waits_name_stream_and_event(tmp_path):
    """Stream 20 and the host wait for what stream 7 had been given when the event was recorded, no more."""

    def call(name, start_us, correlation):
        return span(name, start_us, 1, cat="cuda_runtime", args={"correlation": correlation})

    def on_stream(name, stream, start_us, duration_us, correlation):
        return span(name, start_us, duration_us, cat="kernel", pid=0, tid=stream, args={"correlation": correlation})

    def wait(kind, correlation, **args):
        return span(kind, 0, 1, cat="cuda_sync", pid=0, tid=20,
                    args={"cuda_sync_kind": kind, "correlation": correlation, **args})  # fmt: skip

    recorded = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    events = [
        call("cudaLaunchKernel", 0, 1), on_stream("first", 7, 5, 40, 1),
        call("cudaEventRecord", 10, 2),
        call("cudaLaunchKernel", 15, 3), on_stream("second", 7, 50, 100, 3),
        call("cudaStreamWaitEvent", 20, 4), wait("Stream Wait Event", 4, stream=20, **recorded),
        call("cudaLaunchKernel", 25, 5), on_stream("other", 20, 46, 10, 5),
        span("cudaEventSynchronize", 30, 17, cat="cuda_runtime", args={"correlation": 6}),
        wait("Event Sync", 6, stream=20, **recorded),
        span("cudaDeviceSynchronize", 60, 95, cat="cuda_runtime", args={"correlation": 7}),
        wait("Context Sync", 7),
    ]  # fmt: skip
    trace = read(write(tmp_path / "t.json", events, distributedInfo={"rank": 0}))
    names = [trace.names[name] for name in trace.events.name]
    found = {(names[a], names[b]) for a, b in trace.causes.tolist() if names[a] != "cudaLaunchKernel"}
    assert found == {
        ("first", "other"),
        ("first", "cudaEventSynchronize"),
        ("second", "cudaDeviceSynchronize"),
        ("other", "cudaDeviceSynchronize"),
    }
    assert "inferred" not in trace.about


STRANGE = st.one_of(st.none(), st.integers(-3, 3), st.text(max_size=3), st.floats(), st.just([]), st.just({"a": 1}))


def test_work_of_other_accelerators_is_on_their_streams(tmp_path):
    """MTIA's, by the name of its category; and what a category that nobody knows yet has on a stream."""
    on_stream = {"device": 0, "stream": 3}
    events = [
        span("aten::mm", 0, 20),
        span("mtiaLaunchKernel", 5, 5, cat="mtia_runtime", correlation=1),
        span("enqueue", 12, 5, cat="npu_driver", correlation=2),
        span("gemm", 30, 40, cat="mtia_ccp_events", tid=3, pid=0, correlation=1, args=on_stream),
        span("softmax", 80, 10, cat="npu_task", tid=3, pid=0, correlation=2, args=on_stream),
        span("gemm", 30, 40, cat="mtia_counters", tid=4, pid=0, args=on_stream),
        span("wait", 30, 40, cat="xpu_sync", tid=4, pid=0, args=on_stream),
        span("phase", 0, 90, cat="mtia_insight", tid=5, pid=0),
    ]
    trace = read(write(tmp_path / "t.json", events))
    names = [trace.names[name] for name in trace.events.name]
    lanes = [trace.lanes[lane].kind for lane in trace.events.lane]
    assert [name for name, lane in zip(names, lanes, strict=True) if lane == LaneKind.DEVICE] == ["gemm", "softmax"]
    launched = {(names[cause], names[caused]) for cause, caused in trace.causes.tolist()}
    assert launched == {("mtiaLaunchKernel", "gemm"), ("enqueue", "softmax")}
    assert (trace.events.what[[names.index("enqueue"), names.index("mtiaLaunchKernel")]] == What.LAUNCH).all()
    assert trace.about["left out"] == "1 mtia_counters, 1 mtia_insight, 1 xpu_sync"


@given(data=st.data())
def test_events_with_anything_in_them_are_read_or_refused(tmp_path_factory, data):
    events = json.loads(gloo_trace(tmp_path_factory.mktemp("t") / "t.json").read_text())["traceEvents"]
    for _ in range(data.draw(st.integers(1, 4))):
        event = data.draw(st.sampled_from(events))
        place = data.draw(st.sampled_from([event, event["args"]]))
        key = data.draw(st.sampled_from([key for key in place if key != "args"]))
        place[key] = data.draw(STRANGE)
    path = write(tmp_path_factory.mktemp("t") / "t.json", events)
    try:
        traces = kineto.read(path)
    except TraceError as error:
        assert "t.json" in str(error)
    else:
        assert all(len(trace.events) <= len(events) for trace in traces)
