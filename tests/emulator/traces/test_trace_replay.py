"""`switchml trace replay` on files: what it prints, what it refuses."""

import json
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.surface.cli.trace.replay import replay
from emulator.traces.readers.native import write
from switchml.errors import TraceError
from tests.support import ddp_traces as traces


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces")
    for trace in traces.ddp(ranks=2, iterations=4, slowness=[1.0, 1.1], jitter=0.2):
        write(trace, path / f"rank-{trace.rank}.npz")
    return path


def ask(folder, *arguments) -> dict:
    result = CliRunner().invoke(replay, [str(folder), *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_everything_changed_at_once(folder):
    found = ask(
        folder, "--bandwidth", "x0.5", "--latency", "x2", "--allreduce", "switchml", "--ranks", "8",
        "--bucket-cap", "1MB", "--bucket-cap", "4MB", "--accelerator", "x2", "--slow", "1=1.5",
        "--without-straggler", "0",
    )  # fmt: skip
    assert len(found["changes"]) == 8
    assert found["speedup"] == pytest.approx(found["replayed"]["iteration_s"] / found["changed"]["iteration_s"])
    assert found["network"]["allreduce"] == "switchml"


def test_a_slower_link_takes_longer(folder):
    elapsed_s = [ask(folder, "--bandwidth", rate)["changed"]["iteration_s"] for rate in ("x2", "x1", "x0.5", "10mbit")]
    assert elapsed_s == sorted(elapsed_s)


def test_a_timeline(folder, tmp_path):
    ask(folder, "--bandwidth", "x0.5", "--timeline", str(tmp_path / "out.json"))
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"aten::mm", "gloo:all_reduce"}


@pytest.mark.filterwarnings("error")
def test_no_library_warns_while_a_trace_is_replayed():
    capture = Path(__file__).parent / "captures" / "gloo-4-ranks"
    report = CliRunner().invoke(replay, [str(capture), "--bandwidth", "x1", "--json"])
    assert report.exit_code == 0, report.output
    assert json.loads(report.stdout)["speedup"] == pytest.approx(1.0, rel=1e-9) and "arning" not in report.stderr


def test_traces_without_iterations_are_refused_by_name(tmp_path):
    for trace in traces.ddp(ranks=2, hosts=True):
        write(changed(trace, epoch_s=0.0, steps=np.empty((0, 2))), tmp_path / f"rank-{trace.rank}.npz")
    result = CliRunner().invoke(replay, [str(tmp_path)])
    assert isinstance(result.exception, TraceError) and "rank-0.npz has no events in any iteration" in str(
        result.exception
    )
