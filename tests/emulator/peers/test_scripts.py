"""Unmodified scripts among emulated ranks: values, losses, time, and what the command line says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from switchml.cli.main import cli

pytest.importorskip("torch")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def switchml(*command: object, code: int = 0) -> Result:
    """The command line in this process, which has imported torch already; ranks are processes of their own."""
    done = CliRunner().invoke(cli, [str(part) for part in command])
    assert done.exit_code == code, done.output
    return done


def peers(*options: object, code: int = 0) -> Result:
    return switchml("peers", *options, code=code)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("real", "clock", "network"), [(1, "virtual", "auto"), (2, "wall", "switchml")])
def test_every_collective(real, clock, network, capfd):
    options = ("--ranks", 4, "--real-ranks", real, "--clock", clock, "--allreduce", network)
    peers(*options, HERE / "collectives_script.py")
    assert capfd.readouterr().out.count("all right") == real


@pytest.mark.slow
def test_what_is_gathered_passes_what_is_summed_at_a_switch(capfd):
    """As agents have two queues, where the communicators of a ring have one."""
    options = ("--ranks", 4, "--real-ranks", 2, "--clock", "virtual")
    for network, together in ("switchml", max), ("ring", sum):
        peers(*options, "--allreduce", network, HERE / "overlap_script.py")
        for line in capfd.readouterr().out.splitlines():
            *alone, both = map(float, line.split())
            assert both == pytest.approx(together(alone), rel=0.3), network  # a call's own time counts, too


@pytest.mark.slow
def test_training(tmp_path):
    """Losses fall whatever absent ranks contribute; where it is this rank's own, bit for bit as if it were alone."""
    slow = tmp_path / "slow.toml"
    slow.write_text('extends = "cpu-10g"\naccelerators_per_node = 1\n[between]\nport_bps = 1e9\nhop_s = 4e-3\n')
    timeline, report = tmp_path / "timeline.json", tmp_path / "report.json"
    timed = {"cluster": str(slow), "network": "ring", "slow": "2=1.5", "sleep_s": 0.02}
    worlds = {
        "own": {},
        "own of 256": {"world": 256, "jitter": 0.1},
        "noise": {"values": "noise", "noise": 0.2},
        "zeros": {"values": "zeros"},
        "virtual": {**timed, "timeline": str(timeline), "report": str(report)},
        "wall": {**timed, "clock": "wall", "report": str(tmp_path / "wall.json")},
    }
    command = [sys.executable, HERE / "training_script.py", json.dumps(worlds)]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    for name, one in found.items():
        assert one["losses"][-1] < 0.8 * one["losses"][0], name
    assert found["own"] == found["own of 256"] == found["single"] == found["virtual"] == found["wall"]
    assert found["noise"]["losses"] != found["own"]["losses"] != found["zeros"]["losses"]

    virtual, wall = json.loads(report.read_text()), json.loads((tmp_path / "wall.json").read_text())
    # One all-reduce an iteration, 6 hops of 4 ms in a ring of 4; rank 2 computes 20 ms and a half.
    transfer_s = virtual["collectives"]["all_reduce"]["seconds"] / virtual["collectives"]["all_reduce"]["calls"]
    assert transfer_s == pytest.approx(6 * 4e-3, rel=0.2)
    parts = virtual["parts"]
    assert sum(parts.values()) == pytest.approx(virtual["iteration_s"])
    assert parts["compute"] >= 0.02 and parts["exposed communication"] == pytest.approx(transfer_s, rel=0.01)
    # At most half in each iteration; these are medians, which may come from different ones.
    assert 0.4 < parts["waiting for peers"] / parts["compute"] < 0.55
    # The cluster's time is what the wall-clock world took, give or take what this machine did meanwhile.
    on_time_s = wall["iteration_s"] - wall["parts"]["late on this machine"]
    assert on_time_s >= 0.03 + transfer_s
    assert on_time_s - 1.5 * wall["parts"]["compute"] == pytest.approx(
        virtual["iteration_s"] - 1.5 * parts["compute"], abs=5e-3
    )
    shown = json.loads(timeline.read_text())
    assert {event["name"] for event in shown["traceEvents"]} >= {"script", "all-reduce", "waiting for peers"}


@pytest.mark.slow
def test_a_recorded_run_comes_again_bit_for_bit(tmp_path):
    folder, result = tmp_path / "run", tmp_path / "result"
    clock = ("--clock", "virtual", "--ranks", 2)
    peers(*clock, "--real-ranks", 2, "--record", folder, HERE / "record_script.py", result)
    first = [json.loads(result.with_suffix(f".{rank}").read_text()) for rank in range(2)]
    assert first[0]["parameters"] == first[1]["parameters"] and first[0]["losses"] != first[1]["losses"]
    playing = ("--values", "recorded", "--recording", folder)
    done = peers(*clock, "--real-ranks", "1,", *playing, "--json", HERE / "record_script.py", result)
    assert json.loads(result.with_suffix(".1").read_text()) == first[1]
    report = json.loads(done.stdout)
    assert report["real_ranks"] == [1] and report["iterations"] == 12
    assert any("recorded" in line for line in report["assumptions"])


@pytest.mark.slow
def test_a_real_straggler_holds_up_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("SLEEP_S", "0.02")
    options = ("--ranks", 4, "--real-ranks", "0,2", "--slow", "2=1.5", "--clock", "virtual", "--json")
    found = json.loads(peers(*options, HERE / "record_script.py", tmp_path / "x").stdout)
    waiting_s = found["parts"]["waiting for peers"]
    # Half as long as it computes, but what either process is disturbed by counts too.
    assert 0.005 < waiting_s < found["iteration_s"] - found["parts"]["compute"]


@pytest.mark.slow
def test_errors_are_one_line(tmp_path):
    lines = [
        peers("--ranks", 4, tmp_path / "none.py", code=1),
        peers("--ranks", 4, "--real-ranks", 5, HERE / "record_script.py", code=1),
        peers("--ranks", 4, "--cluster", "nowhere", HERE / "record_script.py", code=1),
        peers("--ranks", 4, "--record", tmp_path, HERE / "record_script.py", tmp_path / "x", code=1),
        peers("--ranks", 2, "--clock", "virtual", HERE / "record_script.py", tmp_path / "x", 3, code=1),
    ]
    for done, message in zip(
        lines,
        ["no script", "expected 1 to 4", "unknown cluster", "rank 0 ended", "rank 0 ended with exit code 3"],
        strict=True,
    ):
        assert message in done.output.splitlines()[-1]


@pytest.mark.slow
def test_train_among_emulated_ranks():
    pytest.importorskip("torch")
    options = ("--emulated-ranks", 16, "--clock", "virtual", "--steps", 40, "--slow", "3=2", "--json")
    found = json.loads(switchml("train", *options).stdout)
    assert found["world_size"] == 16 and found["iterations"] == 40
    assert found["parts"]["waiting for peers"] > 0
    assert found["training"]["losses"][-1] < found["training"]["losses"][0]
    for wrong in (("--ranks", 4, "--emulated-ranks", 4), ("--cluster", "h100-dgx")):
        assert "--emulated-ranks" in switchml("train", *wrong, code=2).output
