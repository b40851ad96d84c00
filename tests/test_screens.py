"""Screens are what tests/golden says, they read at 80 columns, and nothing on them is cut: those of commands that need
no work, and the status of an aggregator, which is the widest and also goes into pipes and narrow terminals."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from emulator.traces.readers import native
from switchml.cli import status
from switchml.cli.main import cli
from switchml.control import v2_pb2
from switchml.terminal import Console
from tests.support import golden
from tests.support.traced_jobs import Job, traced


def status_reply():
    """Everything long that a reply can have."""
    long = "a-job-with-a-name-that-somebody-took-the-time-to-write-out-in-full"
    reply = v2_pb2.StatusReply(version="2.1.0", uptime_s=93_784.2, events_address="192.168.100.100:50100")
    reply.dataplane.kind, reply.dataplane.slots_allocated, reply.dataplane.slot_capacity = "software", 16384, 65536
    reply.dataplane.address.ip, reply.dataplane.address.port = "192.168.100.100", 48864
    reply.refused["refused_window"] = 1_234_567
    reply.hidden_jobs = 2
    for number, (name, state) in enumerate(((long, "running"), ("resnet", "forming"), ("old", "failed")), 1):
        job = reply.jobs.add(name=name, job_id=number, state=state, world_size=16, protocol=2, slots=16384)
        job.slots_in_use, job.payload_bytes, job.goodput_bps, job.age_s = 16384, 1024, 93.7e9, 7_500 * number
        job.reason = "rank 13 was lost: nothing heard for 10 s" if state == "failed" else ""
        job.missing.extend([13, 14, 15] if state == "forming" else [])
        for rank in range(2):
            one = job.ranks.add(rank=rank, state="joined" if rank else "leaving", host="gpu-node-001", pid=1_234_567)
            one.address.ip, one.address.port = "192.168.100.101", 40_000 + rank
            one.rates["received_packets"] = 9_999_999.0
            for name in ("accepted", "retransmissions", "received_packets", "sent_packets"):
                one.counters[name] = 123_456_789
            for name in ("steps", "buffer_hits", "storage_samples", "reads", "read_bytes", "waits", "wait_s"):
                one.loading[name] = 123_456_789
    return reply


SCREENS = {
    "emulate": "emulate --model gpt2-124m --gpus 2 --batch 16 --micro-batch 8 --steps 1e6",
    "emulate split": "emulate --model llama3-8b --cluster h100-dgx --gpus 64 --split auto",
    "emulate sweep": "emulate --model gpt3-175b --cluster a100-dgx --tp 8 --pp 4 --batch 1536 --micro-batch 1 "
    "--zero 0 --recompute none --sweep gpus=256:1024:2x --processes 1",
    "emulate list models": "emulate list models",
    "emulate list clusters": "emulate list clusters",
    "emulate list schedules": "emulate list schedules",
    "emulate list codecs": "emulate list codecs",
    "examples": "examples",
    "report": "report a.json b.json",
    "reproduce": "reproduce",
    "simulate": "simulate --seeds 3 --processes 1",
    "simulate seed": "simulate --seed 3",
    "simulate plant": "simulate --plant list",
    "trace diagnose": "trace diagnose run",
    "trace diagnose least": "trace diagnose run --least 0.99",
    "trace diff": "trace diff run other",
    "trace info": "trace info run",
    "trace replay": "trace replay run --bandwidth x2",
    "validate throughput": "validate throughput",
}
SLOW = {"validate throughput"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what the commands name, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name, result in (("a", {"iteration_s": 1.5}), ("b", {"iteration_s": 1.5}), ("c", {"x": 1}), ("list", [1])):
        Path(f"{name}.json").write_text(json.dumps(result))
    Path("network.toml").write_text("[[jobs]]\n")
    for folder, load_s in (("run", 0.0), ("other", 5e-3)):
        Path(folder).mkdir()
        job = Job(ranks=2, layers=2, buckets=(1, 1), gap_s=2e-3, load_s=load_s)
        for trace in traced(job, iterations=2).traces:
            native.write(trace, Path(folder, f"rank-{trace.rank}.npz"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SCREENS]
)
def test_screens_at_80_columns(name, here):
    done = CliRunner().invoke(cli, SCREENS[name].split())
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines and max(map(cell_len, lines)) <= 80, done.output
    assert not any("…" in line or "\x1b" in line or line != line.rstrip() for line in lines), done.output
    measured = r"   · replayed with codec .*\n"  # on this machine
    shown = re.sub(measured, "", done.stdout)
    golden.check(name, shown, wall=r"(?<=seeds in )[\d.]+ s \([\d.]+ a second\)|(?<=replayed in )[\d.]+ s")


def test_mistakes_are_told_in_a_sentence(here):
    """Each command of tests/golden/mistakes.txt, which stands there behind a dollar sign: what it says, and its exit
    code; no traceback, no result."""
    told = []
    for line in (golden.FOLDER / "mistakes.txt").read_text().splitlines():
        if line.startswith("$ switchml "):
            done = CliRunner().invoke(cli, line.split()[2:])
            assert done.stdout == "" and done.exit_code in (1, 2), line
            assert isinstance(done.exception, SystemExit), line
            lines = [each for each in done.stderr.splitlines() if each and not each.startswith(("Usage: ", "Try "))]
            told += [line, *lines, f"exit code {done.exit_code}", ""]
    golden.check("mistakes", "\n".join(told), folder=re.escape(str(Path.cwd())))


@pytest.mark.parametrize("columns", [None, "80", "60", "24"])
def test_a_status_in_a_pipe_and_on_narrow_terminals(columns, capfd, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    capfd.readouterr()
    status.show(status_reply())
    lines = capfd.readouterr().out.splitlines()
    assert lines and max(map(cell_len, lines)) <= int(columns or 80), "\n".join(lines)
    if columns in ("80", "24"):
        golden.check(f"status {columns}", "\n".join(lines))


def test_a_live_table_follows_the_events():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, color_system=None)
    first, later = status_reply(), status_reply()
    later.jobs[1].state = "running"
    event = {"event": "job_started", "time": 0, "job": "resnet", "job_id": 2, "slots": 512}
    status.live(lambda: later, first, [{}, event, {"event": "rates"}], console)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert "resnet" in text and "forming" in text.split("Ctrl-C ends")[0]
    assert "forming" not in text.split("Ctrl-C ends")[-2]
    assert "job 'resnet': started as job 2 with 512 slots" in text
    assert max(map(cell_len, text.splitlines())) <= 80
