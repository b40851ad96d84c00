"""What users' files did to Kineto traces: several ranks in one file, times that can't be, begins and ends."""

import random

import pytest
from click.testing import CliRunner

from emulator.surface.api.replaying import replay
from emulator.traces.diagnosis.checks import diagnose
from emulator.traces.events import What
from emulator.traces.join import join
from emulator.traces.readers.kineto import kineto
from emulator.traces.readers.read import read
from emulator.traces.summary import of_job
from switchml.cli.main import cli
from switchml.errors import TraceError
from tests.support.kineto_data import write
from tests.support.kineto_ddp import START_US, head, kernels, rank_events

pytest.importorskip("scipy", reason="needs scipy (pip install 'switchml[trace]')")


def one_file(path, events, ranks=2, **more):
    return kineto.read(write(path / "trace.json", events, **(head(ranks=ranks) | more)))


def each_rank(folder, change=lambda events, rank: events, ranks=2, **more):
    """The traces of a folder with a file for each rank."""
    for rank in range(ranks):
        events = change(rank_events(ranks=ranks, **more), rank)
        write(folder / f"rank-{rank}.json", events, **head(rank, ranks))
    return read(folder)


def is_the_job(traces, *, exact=True):
    """Whether traces say what the job did: 10 ms an iteration, 8 of them computing, 1 exposed communication."""
    played, found = replay(traces), of_job(traces)
    diagnosed = diagnose(join(traces))
    for times in (played.traced, played.replayed):
        assert times.iteration_s == pytest.approx(0.01, rel=1e-3)
        for row in times.as_json(range(len(traces)))["ranks"] if exact else ():
            assert row["parts_s"]["compute"] == pytest.approx(8e-3, rel=2e-3)
            assert row["parts_s"]["exposed communication"] == pytest.approx(1e-3, rel=2e-3)
    assert found["iteration_s"] == pytest.approx(played.traced.iteration_s)
    assert diagnosed.to_json()["iteration_s"] == pytest.approx(played.traced.iteration_s)
    return True


# Several ranks in one file


def merged(**second):
    return rank_events(1000) + rank_events(2000, **({"device": 1, "first": 5000} | second))


def shuffled(events):
    return random.Random(1).sample(events, len(events))


@pytest.mark.parametrize(
    ("events", "how"),
    [
        (merged(), "in the order of its devices"),
        (shuffled(merged()), "in the order of its devices"),
        (merged(first=1), "in the order of its devices"),  # both count launches from 1
        (merged(first=1, device=0), "in the order of the file"),  # and call their device 0, as two machines do
        (shuffled(merged(device=0)), "in the order of the file"),
    ],
)
def test_ranks_of_several_processes_in_one_file(events, how, tmp_path):
    traces = one_file(tmp_path, events)
    assert [(trace.rank, trace.world_size) for trace in traces] == [(0, 2), (1, 2)]
    assert all(how in trace.about["ranks"] for trace in traces)
    assert [len(trace.events) for trace in traces] == [68, 68]
    assert is_the_job(traces)


def test_processes_that_are_called_ranks(tmp_path):
    names = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"Rank {rank}"}}
             for pid, rank in ((1000, 3), (2000, 1))]  # fmt: skip
    traces = one_file(tmp_path, [*names, *merged()], ranks=4)
    assert [trace.rank for trace in traces] == [3, 1]
    assert traces[0].world_size == 4


def test_accelerators_of_one_process_that_communicate_are_ranks(tmp_path):
    """DataParallel: one process launches on both."""
    events = rank_events(1000) + rank_events(1000, device=1, first=5000)
    traces = one_file(tmp_path, events)
    assert [trace.rank for trace in traces] == [0, 1]
    assert [(trace.events.what == What.COLLECTIVE).sum() for trace in traces] == [4, 4]
    assert is_the_job(traces)


def test_accelerators_of_one_process_that_only_compute_are_one_rank(tmp_path):
    events = [*rank_events(1000), *kernels(rank_events(1000, device=1, first=5000, kernel="gemm"))]
    (trace,) = one_file(tmp_path, events)
    assert len({lane.name.split(" stream")[0] for lane in trace.lanes}) == 3  # the thread's and two devices'


def test_processes_whose_launches_nothing_tells_apart_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"2 processes \(.*\), and nothing tells who launched what on device 0"):
        one_file(tmp_path, shuffled(merged(first=1, device=0)))
    with pytest.raises(TraceError, match="2 ranks; --rank is for a file of one"):
        kineto.read(write(tmp_path / "t.json", merged(), **head()), rank=1)


# Times that can't be


def first_kernel(events, **changed):
    kernels(events)[5].update(changed)
    return events


@pytest.mark.parametrize(("changed", "note"), [
    ({"ts": 0, "dur": 0}, "1 event that begins over an hour from all others (forward)"),
    ({"ts": START_US + 10**11}, "1 event that begins over an hour from all others (forward)"),
    ({"dur": -5}, "1 event that lasts less than nothing (forward)"),
    ({"dur": 2**64 / 1000}, "1 event that lasts longer than an hour (forward)"),
    ({"ts": "inf"}, "1 event that has no finite times (forward)"),
    ({"ts": START_US - 700_000}, "1 event that begins before its launch (forward)"),
])  # fmt: skip
def test_an_event_with_an_impossible_time_is_left_out_and_named(changed, note, tmp_path):
    traces = each_rank(tmp_path, lambda events, rank: first_kernel(events, **changed))
    assert [trace.about["dropped"] for trace in traces] == [note, note]
    assert [len(trace.events) for trace in traces] == [67, 67]
    assert is_the_job(traces, exact=False)
    joined = join(traces)
    assert f"dropped: {note}" in joined.assumptions
    assert diagnose(joined).to_json()["ranks"][0]["causes_s"]["compute"] == pytest.approx(8e-3, rel=2e-3)


def test_a_host_event_at_0_is_left_out(tmp_path):
    (trace,) = one_file(tmp_path, [{**event, "ts": 0} if number == 4 else event
                                   for number, event in enumerate(rank_events())])  # fmt: skip
    assert trace.about["dropped"] == "1 event that begins over an hour from all others (aten::mm)"
    assert trace.epoch_s == pytest.approx(START_US * 1e-6)


def test_times_may_be_texts(tmp_path):
    texts = [{**event, "ts": f"{event['ts']}.0", "dur": str(event["dur"])} for event in rank_events()]
    assert is_the_job(one_file(tmp_path, texts, ranks=1))
    for wrong in ("12:30:01", None):
        texts[3]["ts"] = wrong
        with pytest.raises(TraceError, match=f"'forward' .ts '{wrong}', dur '3000'. is not as expected"):
            one_file(tmp_path, texts)


@pytest.mark.parametrize("early_us", [200, 5000])
def test_a_devices_clock_that_is_behind_its_hosts_is_put_right(early_us, tmp_path):
    """Its kernels begin before their launches, all of them that a device without work begins with by the same."""

    def early(events, _):
        for event in kernels(events):
            event["ts"] -= early_us
        return events

    traces = each_rank(tmp_path, early)
    assert f"up to {early_us - 19:,} µs before its launch" in traces[0].about["clock"]
    assert is_the_job(traces)


def test_launches_without_kernels_are_no_job_of_the_host(tmp_path):
    events = [event for event in rank_events() if event["cat"] != "kernel"]
    traces = one_file(tmp_path, events)
    assert any("20 launches on an accelerator, but no kernel" in one for one in of_job(traces)["ranks"][0]["missing"])
    with pytest.raises(TraceError, match="20 launches on an accelerator, but no kernel: profile with"):
        join(traces)
    late = [event for event in rank_events() if event["cat"] != "kernel" and event["cat"] != "cuda_runtime"]
    with pytest.raises(TraceError, match="communicate over nccl, but it has no kernel"):
        join(one_file(tmp_path, late))
    far = [{**event, "ts": event["ts"] + 10**11} if event["cat"] == "kernel" else event for event in rank_events()]
    with pytest.raises(TraceError, match="no kernel; dropped: 20 events that begin over an hour from all others"):
        join(one_file(tmp_path, far))


def test_iterations_whose_kernels_are_lost_count_for_nothing(tmp_path):
    def lost(events, _):
        return [event for event in events if event["cat"] != "kernel" or event["ts"] < START_US + 20_000]

    traces = each_rank(tmp_path, lost)
    assert is_the_job(traces)
    assert "iterations 2, 3 of 4 have launches, but no kernel: 0 to 1 are taken" in join(traces).assumptions
    with pytest.raises(TraceError, match="iteration 3 has launches, but no kernel; 0 to 1 are whole"):
        join(traces, iteration=3)


# Begins and ends


def halves(events, name=True):
    found = []
    for event in events:
        begin = {key: value for key, value in event.items() if key != "dur"} | {"ph": "B"}
        end = begin if name else {"pid": event["pid"], "tid": event["tid"]}
        found += [begin, end | {"ph": "E", "ts": event["ts"] + event["dur"]}]
    return found


@pytest.mark.parametrize("name", [True, False])
def test_begins_and_ends_are_events(name, tmp_path):
    halved = sorted(halves(rank_events(), name), key=lambda half: (half["ts"], half["ph"] == "B"))
    (trace,) = one_file(tmp_path, halved)
    (whole,) = one_file(tmp_path, rank_events())
    assert trace.events.start_s.tolist() == whole.events.start_s.tolist()
    assert trace.events.duration_s == pytest.approx(whole.events.duration_s)
    assert "unpaired" not in trace.about
    assert is_the_job([trace])


def test_begins_without_an_end_are_named(tmp_path):
    halved = halves(rank_events())
    del halved[-1]
    (trace,) = one_file(tmp_path, halved)
    assert trace.about["unpaired"] == "1 begins or ends of events without the other: left out (cudaDeviceSynchronize)"
    assert len(trace.events) == 67


def test_old_torch_puts_annotations_among_operators(tmp_path):
    """torch 1.8 and 1.9: `Operator` is the category of all that a host does."""
    events = [dict(event, cat="Operator") if event["cat"] in ("cpu_op", "user_annotation") else event
              for event in rank_events()]  # fmt: skip
    load = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events.append(dict(events[0], name=load, ts=START_US + 9050, dur=900))
    (trace,) = one_file(tmp_path, events)
    what = {trace.names[name]: What(kind) for name, kind in zip(trace.events.name, trace.events.what, strict=True)}
    assert what["ProfilerStep#0"] == What.SCOPE
    assert what[load] == What.LOAD
    assert what["aten::mm"] == What.COMPUTE
    assert len(trace.steps) == 4


# Kernels of communication


@pytest.mark.parametrize("kernel", [
    "void dpsk::ep::internode::dispatch<false, 8, false, 12288, 4>(int4*, float*)",
    "void nvshmemi_alltoall_on_stream_kernel<char>(int)", "void mscclpp::allreduce7<__half>(__half*, int)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(int)",
])  # fmt: skip
def test_kernels_of_other_libraries_communicate(kernel, tmp_path):
    assert is_the_job(each_rank(tmp_path, kernel=kernel))


@pytest.mark.parametrize("command", ["info", "replay", "diagnose"])
def test_commands_salvage_a_broken_file(command, tmp_path):
    text = write(tmp_path / "rank-0.json", rank_events(), **head(ranks=1)).read_text()
    place = text.rindex("ProfilerStep")
    (tmp_path / "rank-0.json").write_text(f'{text[:place]}"quoted" {text[place:]}')
    refused, read_on = (
        CliRunner().invoke(cli, ["trace", command, str(tmp_path / "rank-0.json"), *more])
        for more in ([], ["--salvage"])
    )
    assert refused.exit_code == 1
    assert "event 52: a string has a quotation mark without a backslash; --salvage" in " ".join(refused.output.split())
    assert read_on.exit_code == 0, read_on.output
    assert "broken at byte" in " ".join(read_on.output.split())
