"""`switchml trace capture` around a script that knows nothing of it, with real ranks, and what is read of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.launch import until
from tests.support.ranks import environment, run_ranks

pytest.importorskip("torch")

from emulator.lab.validation.clocks import recovered
from emulator.traces.events import LaneKind, RankTrace, What
from emulator.traces.join import join
from emulator.traces.readers.read import read
from host_agent.profile.clocks import ROUNDS

# Several processes at a time that import torch, and perhaps compile kernels, on two slow cores.
pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("job.py")
GRADIENTS = ["4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"]
PARAMETERS_BYTES = 4 * (64 * 300 + 300 + 300 * 300 + 300 + 300 * 10 + 10)
STEPS = range(3, 7)


def command(folder: Path, *job: str, ranks: int = 2, options: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "switchml", "trace", "capture", "--out", str(folder), "--steps", "3:7", *options,
            "--", "torchrun", "--standalone", "--nproc-per-node", str(ranks), str(JOB), *job]  # fmt: skip


def capture(folder: Path, *job: str, **how) -> subprocess.CompletedProcess:
    """`how`: options and ranks of `command`."""
    try:
        line = command(folder, *job, **how)
        return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"it still ran after 300 s:\n{(error.stderr or b'').decode()}") from None


@pytest.fixture(scope="module", params=["gloo", "switchml"])
def captured(request, tmp_path_factory) -> tuple[str, Path, subprocess.CompletedProcess]:
    """One capture of each backend: its name, the folder, and what the command said."""
    folder = tmp_path_factory.mktemp(request.param)
    done = capture(folder, request.param, "12", options=("--json",))
    assert done.returncode == 0, done.stderr
    return request.param, folder, done


def abouts(folder: Path) -> list[dict]:
    return [json.loads((folder / f"rank-{rank}.about.json").read_text()) for rank in range(2)]


def of(trace: RankTrace, what: What) -> np.ndarray:
    """Events in the captured iterations."""
    events = trace.events
    inside = (events.start_s >= trace.steps[0, 0]) & (events.start_s < trace.steps[-1, 1])
    return np.flatnonzero(inside & (events.what == what))


def test_every_rank_leaves_all_files(captured):
    backend, folder, done = captured
    endings = {"json.gz", "et.json", "sizes.json", "about.json"} | ({"wire.npz"} if backend == "switchml" else set())
    assert {path.name for path in folder.iterdir()} == {f"rank-{rank}.{end}" for rank in range(2) for end in endings}
    told = json.loads(done.stdout)
    assert (told["world_size"], told["missing"], told["exit_code"]) == (2, [], 0)
    assert [rank["iterations"] for rank in told["ranks"]] == [len(STEPS)] * 2
    assert done.stderr.count("loss ") == 2, "the script ran as ever"
    losses = {line for line in done.stderr.splitlines() if line.startswith("loss ")}
    graph = json.loads((folder / "rank-0.et.json").read_text())
    assert sum(node["name"] == "aten::addmm" for node in graph["nodes"]) == 3, f"one iteration's graph; {losses}"


def test_iterations_are_found(captured):
    backend, folder, _ = captured
    for rank, trace in enumerate(read(folder)):
        assert (trace.rank, trace.world_size, trace.backend, trace.format) == (rank, 2, backend, "switchml")
        assert trace.steps.shape == (len(STEPS), 2)
        assert (trace.steps[1:, 0] >= trace.steps[:-1, 1]).all(), "iterations follow one another"
        names = np.array(trace.names)[trace.events.name]
        starts_s = trace.events.start_s
        for from_s, until_s in trace.steps:
            inside = names[(starts_s >= from_s) & (starts_s < until_s)]
            assert (inside == "Optimizer.step#SGD.step").sum() == 1
            assert (inside == "DistributedDataParallel.forward").sum() == 1


def test_gradients_have_names(captured):
    for trace in read(captured[1]):
        gradients = of(trace, What.COMPUTE)
        gradients = gradients[trace.events.gradient[gradients]]
        assert [trace.gradient_names[event] for event in gradients.tolist()] == GRADIENTS * len(STEPS)
        assert trace.events.bytes[gradients].sum() == len(STEPS) * PARAMETERS_BYTES
        assert trace.about["bucket_cap_mb"] == "0.1"


def test_all_reduces_have_causes_and_waits(captured):
    backend, folder, _ = captured
    for trace, about in zip(read(folder), abouts(folder), strict=True):
        buckets = len(about["ddp"][0]["buckets"])
        assert buckets >= 2
        events = trace.events
        collectives = of(trace, What.COLLECTIVE)
        assert len(collectives) == len(STEPS) * (buckets + 1)
        assert events.bytes[collectives].sum() == len(STEPS) * (PARAMETERS_BYTES + 4)
        assert all(trace.lanes[lane].kind == LaneKind.TRANSPORT for lane in events.lane[collectives])
        sequence = np.sort(events.sequence[collectives])
        np.testing.assert_array_equal(np.diff(sequence), 1)
        launches = {int(b): int(a) for a, b in trace.causes if events.what[a] == What.LAUNCH}
        for event in collectives.tolist():
            assert events.start_s[launches[event]] <= events.start_s[event]
        awaited = {int(a): int(b) for a, b in trace.causes if events.what[b] == What.SYNC}
        waits = of(trace, What.SYNC)
        assert len(waits) == len(collectives)
        assert set(awaited) >= set(collectives[events.bytes[collectives] > 4].tolist()), "every bucket is waited for"
        for event in collectives.tolist():
            if event in awaited:
                assert events.end_s[event] <= events.end_s[awaited[event]] + 1e-6


def test_ranks_join_into_one_graph(captured):
    traces = read(captured[1])
    joined = join(traces)
    assert len(joined.graph.ranks) == 2
    assert 0.3 < joined.iteration_s / np.mean([np.diff(trace.steps).mean() for trace in traces]) < 3


def test_clocks_were_compared(captured):
    """At the capture's beginning and end; a message is noted where it left and where it came, and only there."""
    backend, folder, _ = captured
    traces = read(folder)
    for trace in traces:
        assert len(trace.pings) == 2 * 2 * ROUNDS
        assert np.isin(np.arange(4 * ROUNDS), trace.pings.message).all()
        before, after = trace.pings.at_s < trace.steps[0, 0], trace.pings.at_s > trace.steps[-1, 1]
        assert before.sum() == after.sum() == 2 * ROUNDS
    one, other = (trace.pings for trace in traces)
    np.testing.assert_array_equal(np.sort(one.message[one.is_sent]), np.sort(other.message[~other.is_sent]))
    found = {row.told_by: row.error_s for row in recovered(backend, traces)}
    assert list(found) == ["pings", *(["packets"] if backend == "switchml" else []), "collectives"]
    assert found["pings"] < 1e-3, "on a busy machine; else microseconds"


def test_sizes_of_gloo_are_the_same_with_and_without_shapes(tmp_path):
    run_ranks(Path(__file__).with_name("messages.py"), 3, tmp_path, str(tmp_path), timeout_s=300)
    for plain, shaped in zip(read(tmp_path / "plain"), read(tmp_path / "shapes"), strict=True):
        communication = communicated(plain)
        assert communication == communicated(shaped)
        assert {one[0] for one in communication} > {"gloo:all_reduce", "gloo:broadcast", "gloo:all_gather"}
        if plain.rank < 2:
            assert ("gloo:send" if plain.rank == 0 else "gloo:recv", 40.0, 1 - plain.rank) in communication
        # Shapes don't tell of which group a collective of Gloo's is.
        assert {plain.groups[at].ranks for at in plain.events.group if at >= 0} == (
            {(0, 1, 2), (0, 1)} if plain.rank < 2 else {(0, 1, 2)}
        )


def communicated(trace: RankTrace) -> list[tuple[str, float, int]]:
    """Name, bytes and peer in the order of the iterations."""
    events = np.concatenate([of(trace, what) for what in (What.COLLECTIVE, What.SEND, What.RECV)])
    events = events[np.argsort(trace.events.start_s[events])].tolist()
    return [
        (trace.names[trace.events.name[at]], float(trace.events.bytes[at]), int(trace.events.peer[at])) for at in events
    ]


def test_what_it_costs_is_measured(tmp_path):
    done = capture(tmp_path, "gloo", "18", options=("--steps", "3:5", "--measure", "2", "--no-graph", "--json"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for one in (told["cost"], told["cpu_cost"]):
        assert len(one["pairs"]) == 2 and one["low"] <= one["cost"] <= one["high"]
    assert all(rank["iterations"] == 4 and rank["start_s"] > 0 < rank["plain_s"] for rank in told["ranks"])


@pytest.mark.parametrize("backend", ["gloo", "switchml"])
def test_a_killed_rank_leaves_the_others_traces(backend, tmp_path):
    done = capture(tmp_path, backend, "12", "die", options=("--steps", "3:1000"))
    assert done.returncode == 1
    assert "ended with exit code" in done.stderr.splitlines()[-1]
    assert "no trace of rank 1" in done.stdout
    (trace,) = read(tmp_path)
    assert trace.rank == 0
    assert len(trace.steps) == 5, "iterations 3 to 7 were whole"


def test_ctrl_c(tmp_path):
    asked = command(tmp_path, "gloo", "1000000", "print", options=("--steps", "3:1000000"))
    process = subprocess.Popen(
        asked, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until(lambda: process.stdout.readline() == "iteration 8\n")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 1 and "exit code 130" in err.splitlines()[-1]
    traces = read(tmp_path)
    assert [trace.rank for trace in traces] == [0, 1], out + err
    assert all(len(trace.steps) >= 5 for trace in traces)


def test_a_script_without_enough_steps(tmp_path):
    done = capture(tmp_path, "gloo", "2", ranks=1)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("switchml: error: no rank has written a trace") and "more than 3 steps" in last, done.stderr


def test_switchml_train_traces_both_of_its_runs(tmp_path):
    options = ("--ranks", "2", "--steps", "6", "--aggregator", "software", "--trace", str(tmp_path), "--json")
    done = subprocess.run(
        [sys.executable, "-m", "switchml", "train", *options], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for backend in ("gloo", "switchml"):
        traces = read(tmp_path / backend)
        assert [(trace.rank, trace.backend, len(trace.steps)) for trace in traces] == [(0, backend, 3), (1, backend, 3)]
        assert all((trace.wire is not None) == (backend == "switchml") for trace in traces)
