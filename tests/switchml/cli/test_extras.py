"""Optional packages: every extra is known, commands name theirs before they start, and doctor lists all."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from host_agent import checkup
from switchml.cli import extras
from switchml.cli.main import cli
from switchml.files import read_toml

ROOT = Path(__file__).resolve().parents[3]


def test_every_extra_is_known():
    declared = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"].keys()
    assert extras.EXTRAS.keys() == declared - {"all", "dev", "dev-all"}


def test_doctor_lists_every_extra_and_what_it_unlocks(monkeypatch):
    monkeypatch.setattr(checkup, "is_there", lambda module: module != "optuna")
    found = {name: checkup._extra(name, extra) for name, extra in extras.EXTRAS.items()}
    assert found["optimize"].state == "missing" and "pip install 'switchml[optimize]'" in found["optimize"].advice
    assert found["plot"].state == "ok" and "--plot" in found["plot"].detail


@pytest.mark.parametrize(("command", "missing", "extra"), [
    ("bench trace", "msgspec", "trace"), ("validate real", "torch", "train"), ("validate replay", "torch", "train"),
    ("validate peers", "torch", "train"), ("validate memory", "torch", "train"),
    ("mininet --experiment train", "torch", "train"), ("train", "torch", "train"),
    ("peers --ranks 2 script.py", "torch", "train"),
])  # fmt: skip
def test_a_missing_package_is_named_with_its_extra_before_work_starts(monkeypatch, command, missing, extra):
    monkeypatch.setattr(extras, "is_there", lambda module: module != missing)
    done = CliRunner().invoke(cli, command.split())
    assert done.exit_code == 1, done.output
    assert f"pip install 'switchml[{extra}]'" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("answer", "pip_fails", "called"), [
    ("y", False, ["pip", "exec"]),
    ("y", True, ["pip"]),
    ("n", False, []),
])  # fmt: skip
def test_somebody_at_a_terminal_is_offered_the_extra(monkeypatch, answer, pip_fails, called):
    calls = []
    monkeypatch.setattr(extras.click, "confirm", lambda text, **how: "switchml[trace]" in text and answer == "y")
    monkeypatch.setattr(extras.os, "execv", lambda program, words: calls.append("exec"))
    monkeypatch.setattr(
        extras.subprocess,
        "run",
        lambda words: calls.append(words[2]) or subprocess.CompletedProcess(words, int(pip_fails)),
    )
    extras.offer("trace", "msgspec")
    assert calls == []  # not at a terminal
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    extras.offer("trace", "msgspec")
    assert calls == called


@pytest.mark.parametrize(("typed", "meant"), [("emulat", "emulate"), ("trace optimise", "optimize")])
def test_a_misspelt_command_has_a_suggestion(typed, meant):
    done = CliRunner().invoke(cli, typed.split())
    assert done.exit_code == 2 and f"did you mean {meant}" in done.stderr


@pytest.mark.slow
def test_a_model_is_found_in_the_current_folder(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "mymodel.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(8, 64)\n")
    code = "import sys; sys.path[:] = [p for p in sys.path if p not in ('', '.')]; from emulator.jobs.workload import "
    code += "torch_modules; print(torch_modules.load('mymodel:net'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert "Linear(in_features=8" in done.stdout, done.stderr
