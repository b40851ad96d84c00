"""scripts/experiments/check_gpu.py, which scripts/check-gpu runs: dry, on the CPU, and where there is no GPU."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "scripts/experiments/check_gpu.py"


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    with pytest.raises(SystemExit, match="no GPU that torch can use"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


def test_parts_fit_into_five_minutes():
    assert sum(runpy.run_path(str(SCRIPT))["PARTS_S"].values()) <= 290


@pytest.mark.slow
def test_everything_small_on_the_cpu(tmp_path):
    out = tmp_path / "results.json"
    run = subprocess.run(
        [sys.executable, SCRIPT, "--device", "cpu", "--out", out], capture_output=True, text=True, timeout=1100
    )
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["part"] for row in rows} == {"comparison", "collectives", "activations", "optimizer"}
    assert max(map(len, run.stdout.splitlines()[:-1])) <= 80
    peaks = {row["what"]: row.get("lower") for row in rows if row["part"] == "activations"}
    assert peaks["transformer plain"] is None and peaks["cnn int8"] > 1
