"""Timelines, the page, tables: what is in them, and that a browser shows the page."""

import gzip
import json
import re

import numpy as np
import pytest
from rich.console import Console

from emulator.jobs.replay.conditions import Conditions
from emulator.jobs.replay.critical import critical_path
from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.parts import parts
from emulator.jobs.replay.perfetto import shown_ranks, write_timeline
from emulator.jobs.replay.report import critical_table, operation_text, parts_table, shares_table
from emulator.jobs.workload.graph import Kind
from emulator.lab.bench.replay import Shape, job
from emulator.surface.report.page import Page, write_page
from emulator.surface.report.tracks import lanes, phase_of
from emulator.traces.whatif.faster import what_if
from switchml.errors import ConfigError
from switchml.pages.charts import Line
from switchml.pages.panels import Curves
from switchml.units import TimeUnit, bytes_text, time_text
from tests.support.html_pages import Seen, our_code, without_our_code

SHAPE = Shape(tensor=2, stages=4, replicas=2, layers=8, micro_batches=6)


@pytest.fixture(scope="module")
def played():
    """Sixteen ranks, every other one 20 % slower."""
    return replay(*job(SHAPE), Conditions(slowness=dict.fromkeys(range(0, 16, 2), 1.2)))


# Timelines


def test_timeline_has_every_op_and_no_overlap(played, tmp_path):
    about = write_timeline(played, tmp_path / "out.json")
    trace = json.loads((tmp_path / "out.json").read_text())
    assert trace["otherData"] == about
    assert about["ranks_shown"] == list(range(16))
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    ops = [event for event in slices if event["cat"] != "wait"]
    assert sorted(event["args"]["op"] for event in ops) == list(range(len(played.graph.ops)))
    waits_us = sum(event["dur"] for event in slices if event["cat"] == "wait")
    assert waits_us == pytest.approx(played.wait_s().sum() * 1e6)
    for event in ops:
        op = event["args"]["op"]
        assert event["ts"] + event["dur"] == pytest.approx(played.end_s[op] * 1e6)
        assert event["name"] == played.graph.op_types.name[played.graph.ops.op_type[op]]
        assert (event["pid"], event["tid"]) == (played.graph.op_rank()[op], played.graph.ops.stream[op])
    # Perfetto drops slices that overlap on a thread.
    by_thread = {}
    for event in slices:
        by_thread.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_thread.values():
        spans.sort()
        assert all(one[1] <= other[0] + 1e-6 for one, other in zip(spans, spans[1:], strict=False))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[4] == "job rank 4, stage 1"
    threads = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert threads >= set(by_thread)


def test_arrows_join_sends_to_receives(played, tmp_path):
    write_timeline(played, tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    ends = {phase: sorted(event["id"] for event in events if event["ph"] == phase) for phase in "sf"}
    # Six micro-batches over three boundaries, there and back, of four pipelines.
    assert len(ends["s"]) == 6 * 3 * 2 * 4
    assert ends["s"] == ends["f"]


def test_critical_path_is_a_track_with_arrows(played, tmp_path):
    path = critical_path(played)
    write_timeline(played, tmp_path / "out.json", critical=path, source="switchml trace diagnose")
    trace = json.loads((tmp_path / "out.json").read_text())
    assert trace["otherData"]["source"] == "switchml trace diagnose"
    track = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 16]
    assert sum(event["dur"] for event in track) == pytest.approx(played.makespan_s * 1e6)
    assert all(one["ts"] + one["dur"] <= other["ts"] + 1e-6 for one, other in zip(track, track[1:], strict=False))
    arrows = [event for event in trace["traceEvents"] if event.get("cat") == "critical"]
    starts = {event["id"]: event for event in arrows if event["ph"] == "s"}
    ends = {event["id"]: event for event in arrows if event["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == len(track) - 1
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] != "wait"]
    by_op = {event["args"]["op"]: event for event in slices if event["pid"] < 16}
    for (before, after), number in zip(zip(track, track[1:], strict=False), sorted(starts), strict=True):
        for end, place in ((starts[number], before), (ends[number], after)):
            slice_ = by_op[place["args"]["op"]]
            assert (end["pid"], end["tid"]) == (slice_["pid"], slice_["tid"])
            assert slice_["ts"] <= end["ts"] <= slice_["ts"] + slice_["dur"]


def test_timeline_of_some_ranks_compressed(played, tmp_path):
    write_timeline(played, tmp_path / "out.json.gz", ranks=[5, 2])
    trace = json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes()))
    assert {event["pid"] for event in trace["traceEvents"]} == {2, 5}
    assert trace["otherData"]["ranks"] == 16
    for wrong in ([16], [-1], []):
        with pytest.raises(ConfigError, match="the job has ranks 0 to 15"):
            write_timeline(played, tmp_path / "no.json", ranks=wrong)


def test_long_timelines_show_one_rank_of_each_stage(played):
    assert shown_ranks(played.graph).tolist() == list(range(16))
    assert shown_ranks(played.graph, most_ops=100).tolist() == [0, 4, 8, 12]


# Lanes


@pytest.mark.parametrize(("name", "kind", "phase"), [
    ("layer 3 forward", Kind.COMPUTE, "forward"), ("layer 3 backward", Kind.COMPUTE, "backward"),
    ("layer 3 recompute", Kind.COMPUTE, "recompute"), ("Adam", Kind.COMPUTE, "optimizer"),
    ("gradients", Kind.COLLECTIVE, "communication"), ("quantize", Kind.CODEC, "compression"),
    ("batch", Kind.LOAD, "loading"),
])  # fmt: skip
def test_phases(name, kind, phase):
    assert phase_of(name, kind) == phase


def test_lanes_cover_what_the_rank_does(played):
    found = lanes(played, np.array([0]), columns=200)
    assert [lane.name for lane in found] == ["stage 0, rank 0", ""]
    runs = found[0].runs
    assert all(one.first + one.columns <= other.first for one, other in zip(runs, runs[1:], strict=False))
    busy = np.zeros(200, bool)
    for run in runs:
        busy[run.first : run.first + run.columns] = True
    computed = (played.graph.ops.stream == 0) & (played.graph.op_kind() == Kind.COMPUTE)
    for start_s, end_s in zip(played.start_s[computed], played.end_s[computed], strict=True):
        middle = int((start_s + end_s) / 2 / played.makespan_s * 200)
        assert busy[middle]
    assert runs[-1].phase == "optimizer"


# The page


@pytest.fixture(scope="module")
def page(played, tmp_path_factory):
    pytest.importorskip("jinja2", reason="needs jinja2 (pip install 'switchml[report]')")
    path = tmp_path_factory.mktemp("page") / "out.html"
    gpus = [64, 128, 256]
    write_page(
        Page(
            "GPT <3> & others",
            played,
            headline={"iteration": "1.2 s"},
            settings={"model": "gpt3"},
            memory_bytes={"weights": 3e9, "activations": 1e9},
            memory_limit_bytes=80e9,
            speedups=what_if(played),
            charts=[
                Curves("Throughput", "GPUs", "samples/s", [Line("ring", gpus, [1, 1.9, 3.5])], x_log=2),
                Curves("One point", "GPUs", "s", [Line("ring", [8], [2.0])], x_log=2),
            ],
            assumptions=["Links are shared fairly."],
        ),
        path,
    )
    return path


def test_page_is_whole_and_stands_alone(page, played):
    seen = Seen()
    seen.feed(page.read_text())
    assert seen.open == []
    assert seen.links == []
    assert seen.code == our_code()
    text = re.sub(r"\s+", " ", " ".join(seen.words))
    for words in (
        "GPT <3> & others",
        "nothing here was measured on the machines it names",
        "Where the time goes",
        "stage 3",
        "exposed communication",
        "On the critical path",
        "What would help",
        "3.7 GiB",
        "of 74.5 GiB",
        "samples/s",
        "Links are shared fairly.",
    ):
        assert words in text
    assert "nan" not in text and "None" not in text


def test_smallest_page(played, tmp_path):
    pytest.importorskip("jinja2", reason="needs jinja2 (pip install 'switchml[report]')")
    write_page(Page("job", played), tmp_path / "out.html")
    text = without_our_code(tmp_path / "out.html")
    assert "Scaling" not in text and "Memory of" not in text and "Assumptions" not in text


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
def test_browser_draws_the_page(page, browser):
    """Every chart is drawn, no text of one leaves the page or lies on another of the same chart, at any width; the
    legend, the theme and the copy button work, and the console stays empty."""
    for width in (1280, 400):
        browser.open(page.as_uri(), width)
        found = browser.charts()
        assert len(found) == 5
        for chart in found:
            assert chart["width"] > min(300, width - 120) and chart["height"] > 40 and chart["texts"] > 3
            assert chart["outside"] == 0 and chart["touching"] == 0, chart
        assert browser.fits(), "the page is wider than the window"
    before = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.click("button.theme")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != before
    assert browser.problems() == []


# Tables


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0 s"), (1.234, "1.23 s"), (0.0456, "45.6 ms"), (0.000789, "789 µs"), (2e-9, "2.00 ns"), (90, "90.0 s"),
    (150, "2.50 min"), (86400, "24.0 h"), (86400 * 34.25, "34.2 d"), (86400 * 2000, "2,000 d"),
])  # fmt: skip
def test_times_in_words(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(12, "12 B"), (1.5e3, "1.50 kB"), (56.2e9, "56.2 GB"), (2e15, "2.00 PB")])
def test_bytes_in_words(count, text):
    assert bytes_text(count) == text


def test_tables_say_the_same_as_the_figures(played):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    found, path = parts(played), critical_path(played)
    console.print(parts_table(found, played.makespan_s))
    console.print(critical_table(path))
    text = console.export_text()
    unit = TimeUnit([played.makespan_s])
    for name, seconds in found.mean().items():
        assert re.search(rf"{name}\W+{re.escape(unit.text(seconds))}", text)
    assert next(iter(path.by_op_type)) in text
    shares = [float(share) for share in re.findall(r" ([\d.]+)\n", text.split("Communication behind")[0])]
    assert sum(shares) == pytest.approx(200, abs=0.5)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::"
            "Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)",
            "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, at::detail::Array<char*, 3> >",
        ),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("gap before void (anonymous namespace)::elementwise_kernel_with_index<int>()",
         "gap before elementwise_kernel_with_index<int>"),
        ("Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pageable)"),
        ("aten::mm", "aten::mm"),
        (")", ")"),
        ("(x)", "(x)"),
    ],
)  # fmt: skip
def test_names_of_kernels_without_what_distinguishes_none(name, short):
    assert operation_text(name) == short
    assert operation_text(name, 20) == (short if len(short) <= 20 else short[:19] + "…")


def test_a_long_name_folds():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    name = "cutlass::Kernel2<" + "x" * 200 + ">"
    console.print(shares_table("operation", [(name, 1.5)], 3.0))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80 and lines[3].endswith("1.500   50.0")
    assert lines[3].split()[0] + "".join(lines[4:]) == name


@pytest.mark.parametrize(("longest_s", "name", "text", "signed"), [
    (2e-3, "ms", "1.000", "−1.000"), (0.5, "ms", "1.0", "−1.0"), (12.0, "s", "0.00", "−0.00"),
    (0.0, "s", "0.001", "−0.001"),
])  # fmt: skip
def test_a_column_of_times_has_one_unit(longest_s, name, text, signed):
    unit = TimeUnit([0.0, longest_s])
    assert (unit.name, unit.text(1e-3), unit.signed(-1e-3)) == (name, text, signed)
