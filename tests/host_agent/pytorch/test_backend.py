"""The torch backend in real processes: every collective, what it leaves behind, what ranks hear when it fails."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.support.launch import until
from tests.support.ranks import ROOT, Rank, environment, run_ranks, start_ranks

torch = pytest.importorskip("torch")

from host_agent.pytorch.work import CallbackThreads  # noqa: E402

HERE = Path(__file__).parent
DEADLINE_S = 200
"""Of ranks that import torch, join and fail, which takes a few seconds where cores are free."""


@pytest.mark.slow
@pytest.mark.parametrize("hierarchy", ["none", "node"])
def test_every_collective(tmp_path, hierarchy):
    for rank in run_ranks(HERE / "collectives_script.py", 4, tmp_path, timeout_s=200, SWITCHML_HIERARCHY=hierarchy):
        report = json.loads(rank.out[rank.out.index("{") :])
        # Rank 0 has started the aggregator, and keeps it for the next group; nobody else has a child.
        assert report["children_before"] == (1 if rank.rank == 0 else 0)
        for left in (report["left"], report["left_again"]):
            assert left == {"threads": [], "children": ["python"] if rank.rank == 0 else [], "sockets": []}


def test_sharded_training(tmp_path):
    """DDP, FSDP, ZeRO, tensor parallelism and DTensor: what Gloo gives, bit for bit where bytes are only moved."""
    for rank in run_ranks(HERE / "sharded_script.py", 2, tmp_path, timeout_s=200):
        report = json.loads(rank.out[rank.out.index("{") :])
        assert len(report) == 8
        for case, (off, calls) in report.items():
            assert off <= (0 if case == "dtensor" else 1e-5) and calls > 0, (case, off, calls)


@pytest.mark.slow  # importing the compiler takes most of it
def test_compiled_modules(tmp_path):
    run_ranks(HERE / "compile_script.py", 2, tmp_path, timeout_s=250)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_tensors(tmp_path):
    run_ranks(HERE / "cuda_script.py", 2, tmp_path)


def failures(folder: Path, *mode: str, **env: str) -> tuple[list[Rank], dict[int, dict]]:
    """Run failures_script.py; returns the processes and the reports of those that could make one."""
    ranks = start_ranks(HERE / "failures_script.py", 3, folder, *mode, **env)
    try:
        for rank in ranks:
            rank.finish(DEADLINE_S)
    finally:
        for rank in ranks:
            rank.process.kill()
    return ranks, {rank.rank: json.loads(rank.out[rank.out.index("{") :]) for rank in ranks if "{" in rank.out}


def assert_ends(pid: int) -> None:
    """Wait until the process has ended."""
    deadline = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "hierarchy"), [
    (1, "none"), (0, "node"), pytest.param(0, "none", marks=pytest.mark.slow),
    pytest.param(1, "node", marks=pytest.mark.slow),
])  # fmt: skip
def test_killed_rank_is_named(tmp_path, victim, hierarchy):
    """Also rank 0, whose aggregator dies with it: the others hear of the rank first."""
    ranks, reports = failures(tmp_path, "kill", str(victim), SWITCHML_HIERARCHY=hierarchy)
    assert ranks[victim].returncode == -9
    assert set(reports) == {0, 1, 2} - {victim}
    for rank, report in reports.items():
        assert ranks[rank].returncode == 0, ranks[rank].err
        for when in ("wait", "later"):
            assert report[when]["type"] == "PeerLost", report
            assert report[when]["ranks"] == [victim]
        for when in ("future", "backward"):  # C++ futures know RuntimeError only
            assert report[when]["type"] == "RuntimeError", report
            assert "PeerLost" in report[when]["message"] and f"rank {victim}" in report[when]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("hierarchy", ["none", "node"])
def test_rank_that_does_not_call_is_named(tmp_path, hierarchy):
    ranks, reports = failures(tmp_path, "stall", SWITCHML_HIERARCHY=hierarchy)
    for rank in (0, 2):
        assert ranks[rank].returncode == 0, ranks[rank].err
        assert reports[rank]["wait"]["type"] == "CollectiveTimeout", reports[rank]
        assert reports[rank]["wait"]["ranks"] == [1]


@pytest.mark.slow
def test_killed_aggregator(tmp_path):
    ranks, reports = failures(tmp_path, "aggregator")
    for rank, report in reports.items():
        assert ranks[rank].returncode == 0, ranks[rank].err
        assert report["wait"]["type"] == "AggregatorLost", report


@pytest.mark.slow
def test_nobody_destroys_the_group(tmp_path):
    ranks, reports = failures(tmp_path, "forget")
    assert [rank.returncode for rank in ranks] == [0, 0, 0], [rank.err for rank in ranks]
    assert_ends(reports[0]["aggregator_pid"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["destroy", "abort", "maps"])
def test_groups_one_after_the_other(tmp_path, mode):
    """At one port, where ranks that are back before rank 0 meet the store of the group before."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    script = HERE / "rounds_script.py"
    for rank in run_ranks(
        script, 2, tmp_path, mode, "8", timeout_s=DEADLINE_S, MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    ):
        _, _, *aggregator = rank.out.split()
        assert "rounds 8" in rank.out and len(aggregator) == (rank.rank == 0)
        for pid in map(int, aggregator):
            assert_ends(pid)


@pytest.mark.slow
def test_many_groups(tmp_path):
    """More than an aggregator of its own would give one client, and more descriptors than a process has at first."""
    for rank in run_ranks(HERE / "many_groups_script.py", 2, tmp_path, "130", timeout_s=DEADLINE_S):
        assert "groups 130" in rank.out


@pytest.mark.slow
def test_autoload_is_quick():
    """torch calls it at every `import torch`: it may cost little, and nothing heavy may come along."""
    program = """
import sys, time, torch
begin = time.thread_time()
for name in [name for name in sys.modules if name.startswith("host_agent")]:
    del sys.modules[name]
from host_agent.pytorch.backend import autoload
autoload()
autoload()
spent = time.thread_time() - begin
assert spent < 0.1, f"{spent} s"
heavy = {"numba", "grpc", "google.protobuf", "zmq", "host_agent.agent", "switchml.protocol.worker"} & set(sys.modules)
assert not heavy, heavy
assert torch.distributed.is_backend_available("switchml")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_callbacks_may_wait_for_later_ones():
    """One that waits for another does not stop it."""
    callbacks = CallbackThreads("test")
    done = [threading.Event() for _ in range(100)]
    gate = threading.Event()
    callbacks.submit(lambda: gate.wait(100))
    for event in done:
        callbacks.submit(event.set)
    assert all(event.wait(100) for event in done)
    gate.set()
    callbacks.close()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("test-")])
    callbacks.submit(done[0].clear)
    assert not done[0].is_set()


def test_callbacks_need_few_threads():
    """Two, beside those that are stuck. One that the scheduler holds up looks stuck, so each has ended here before the
    next is submitted."""
    callbacks, gate = CallbackThreads("few"), threading.Event()
    callbacks.submit(lambda: gate.wait(100))
    for _ in range(100):
        event = threading.Event()
        callbacks.submit(event.set)
        assert event.wait(100)
        until(lambda: callbacks._waiting == len(callbacks._threads) - 1)
    assert len(callbacks._threads) == 3
    gate.set()
    callbacks.close()
