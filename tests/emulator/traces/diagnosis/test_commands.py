"""`switchml trace diagnose` and `switchml trace diff` on files of a job with known troubles."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.surface.report.diagnosis import write_page, write_report
from emulator.traces.diagnosis.checks import diagnose
from emulator.traces.diagnosis.context import iterations
from emulator.traces.events import LaneKind, What
from emulator.traces.join import join
from emulator.traces.readers import native
from emulator.traces.readers.read import read as read_traces
from switchml.cli.main import cli
from tests.support.commands import told
from tests.support.html_pages import read_page
from tests.support.kineto_data import published
from tests.support.traced_jobs import Job, traced

pytest.importorskip("scipy", reason="needs scipy (pip install 'switchml[trace]')")
pytest.importorskip("jinja2", reason="needs jinja2 (pip install 'switchml[report]')")

TROUBLED = Job(
    ranks=6,
    bytes_per_s=1e9,
    load_s=0.004,
    gap_s=2e-4,
    slowness=lambda rank, name, iteration: 1.35 if rank == 2 else 3.0 if (rank, name) == (4, "backward 5") else 1.0,
    metrics=10,
    metric_s=3e-4,
)


@pytest.fixture(scope="module")
def found():
    return diagnose(traced(TROUBLED, iterations=6))


def write(job, folder, iterations=5):
    folder.mkdir()
    for trace in traced(job, iterations=iterations).traces:
        native.write(trace, folder / f"rank-{trace.rank}.npz")
    return folder


def run(*arguments):
    return CliRunner().invoke(cli, ["trace", *map(str, arguments)])


# Commands


def test_diagnose(tmp_path):
    folder = write(TROUBLED, tmp_path / "run")
    page, timeline = tmp_path / "out.html", tmp_path / "out.json"
    done = run("diagnose", folder, "--json", "--report", page, "--timeline", timeline)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    gains = [finding["gain_s"] for finding in said["findings"]]
    assert gains == sorted(gains, reverse=True)
    assert {"straggler", "loading"} <= {finding["kind"] for finding in said["findings"]}
    for rank in said["ranks"]:
        assert sum(rank["causes_s"].values()) == pytest.approx(said["replayed_s"])
    segments = said["critical_path"]["segments"]
    assert sum(segment["until_s"] - segment["from_s"] for segment in segments) == pytest.approx(said["replayed_s"])
    assert sum(said["critical_path"]["by_stream_s"].values()) == pytest.approx(said["replayed_s"])
    assert sum(said["critical_path"]["by_part_s"].values()) == pytest.approx(said["replayed_s"])
    assert "Diagnosis of run" in page.read_text()
    assert f"wrote {page}" in done.stderr and f"wrote {timeline}" in done.stderr
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {"name": "process_name", "ph": "M", "pid": 6, "args": {"name": "critical path"}} in events


def test_diff(tmp_path):
    a = write(replace(TROUBLED, load_s=0.001), tmp_path / "a")
    b = write(TROUBLED, tmp_path / "b")
    said = told("trace", "diff", a, b)
    whole_s = said["iteration"]["difference_s"]
    for rows in (said["parts"], said["critical_path"]):
        assert sum(row["difference_s"] for row in rows) + said["unexplained_s"] == pytest.approx(whole_s)
    assert said["operations"][0]["name"] == "DataLoader.__next__"
    assert "too few pairs" in run("diff", a, b, a, b).output
    assert "expected pairs" in run("diff", a, b, a).output


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ["nccl_data.json.gz", "alexnet.json.gz", "mi250.json.gz"])
def test_published_traces(name, tmp_path):
    """Of accelerators that their hosts don't keep busy; what a start-up takes is seen for what it is."""
    path = published(name)
    said = told("trace", "diagnose", path, "--report", tmp_path / "out.html")
    assert said["replay_error"] == pytest.approx(0, abs=0.03)
    first = "starved accelerator" if name.startswith("nccl") else "first use"  # the others are of first iterations
    assert said["findings"][0]["kind"] == first
    assert ("allocations" in [finding["kind"] for finding in said["findings"]]) == name.startswith("alexnet")
    for rank in said["ranks"]:
        assert sum(rank["causes_s"].values()) == pytest.approx(said["replayed_s"])


def test_compute_is_what_kernels_cover():
    """The trace says so itself, without graph or replay: how much of each iteration its kernels cover."""
    (trace,) = read_traces(published("nccl_data.json.gz"))
    events, own = trace.events, iterations(trace)
    lanes = np.array([lane.kind for lane in trace.lanes])
    kernels = np.flatnonzero((events.what == What.COMPUTE) & (lanes[events.lane] == LaneKind.DEVICE))
    kernels = kernels[np.argsort(events.start_s[kernels])]
    reach_s = np.maximum.accumulate(events.end_s[kernels])
    begin_s = np.maximum(events.start_s[kernels][1:], reach_s[:-1])
    covered_s = events.duration_s[kernels[0]] + np.maximum(events.end_s[kernels][1:] - begin_s, 0).sum()
    found = diagnose(join([trace]))
    compute_s = found.context.causes.parts.mean()["compute"]
    assert compute_s == pytest.approx(covered_s / own.count, rel=0.05)


# Terminal and page


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_picture_of_what_was_found(found, tmp_path, ending):
    pytest.importorskip("vl_convert", reason="needs vl-convert (pip install 'switchml[plot]')")
    path = tmp_path / f"out.{ending}"
    write_report(found, path, "Diagnosis of <run>")
    assert path.stat().st_size > 1000
    if ending == "svg":
        assert "What would help" in path.read_text() and "waiting for peers" in path.read_text()


def test_page_says_what_was_found(found, tmp_path):
    write_page(found, tmp_path / "out.html", "Diagnosis of <run>")
    text = " ".join(" ".join(read_page(tmp_path / "out.html")).split())
    assert "Diagnosis of <run>" in text and "nan" not in text and "None" not in text
    for finding in found.findings:
        for words in (finding.title, *finding.evidence, *finding.settings):
            assert words in text
    assert "Who waits for whom" in text and "critical path" in text and "What would help" in text


def test_path_on_the_page_is_the_critical_path(found):
    """Every corner lies on a lane of its rank, times rise, and the path spans the iteration."""
    from emulator.surface.report.diagnosis import _path
    from emulator.surface.report.tracks import cause_of, lanes

    drawn = [(lane, f"lane {n}") for n, lane in enumerate(lanes(found.context.played, np.arange(6), phase_of=cause_of))]
    corners = _path(found, drawn)
    across = [x for x, _ in corners]
    assert across == sorted(across)
    assert across[0] == 0 and across[-1] == pytest.approx(found.context.iteration_s)
    assert {lane for _, lane in corners} <= {name for _, name in drawn}


@pytest.mark.parametrize("job", [Job(bytes_per_s=5e10, latency_s=2e-5), Job(ranks=1), Job(ranks=40, load_s=0.01)])
def test_pages_of_other_jobs(job, tmp_path):
    write_page(diagnose(traced(job)), tmp_path / "out.html", "a job")
    text = " ".join(" ".join(read_page(tmp_path / "out.html")).split())
    assert ("24 further ranks are not shown" in text) == (job.ranks == 40)


@pytest.mark.slow
@pytest.mark.needs("chromium", "chromedriver")
def test_browser_draws_the_page(found, tmp_path, browser):
    """All of the charts are drawn, no text of theirs leaves the page, and the page fits its window."""
    write_page(found, tmp_path / "out.html", "Diagnosis of a run")
    for width in (1280, 400):
        browser.open((tmp_path / "out.html").as_uri(), width)
        parts, timeline, helps = browser.charts()
        assert timeline["width"] > width * 0.65 and timeline["height"] > 150 and timeline["texts"] > 8
        assert parts["outside"] == timeline["outside"] == helps["outside"] == 0
        assert browser.fits(), "the page is wider than the window"
    path = browser.run("return document.querySelector('.mark-line path').getBoundingClientRect().width")
    assert path > 200
    assert browser.problems() == []
