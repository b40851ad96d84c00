"""scripts/experiments/adaptive.py: what it makes of a run."""

import runpy
from pathlib import Path

import pytest

from switchml import plotting

ROOT = Path(__file__).resolve().parents[4]
RATES_BPS, STEPS = [1e9, 2e7], 20


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("torch")
    return runpy.run_path(str(ROOT / "scripts" / "experiments" / "adaptive.py"))


@pytest.fixture
def lines(script):
    """Two phases: fp16 is the faster in the first, top-k in the second, where fp16 was stopped half-way."""
    line = script["Line"]
    return {
        "fp16": line([[0.01] * 20, [0.04] * 10], [["fp16"] * 20, ["fp16"] * 10], [1.0] * 30),
        "auto": line([[0.01] * 20, [0.02] * 20], [["fp16"] * 20, ["fp16"] * 5 + ["topk:ratio=0.01"] * 15], [1.0] * 40),
    }


def test_panels(script, lines):
    times, chosen = script["panels"](lines, RATES_BPS, STEPS)
    fp16, auto = times.lines
    assert (fp16.x[-1], auto.x[-1]) == (30, 40) and (fp16.y[-1], auto.y[-1]) == (40.0, 20.0)
    assert {line.name: line.y for line in chosen.lines} == {
        "fp16": [100, 100, 50, 0],
        "topk:ratio=0.01": [0, 0, 50, 100],
    }
    assert times.x_title == "step (Mbit/s: 1000 from 1, 20 from 21)"


def test_page(script, lines, tmp_path):
    pytest.importorskip("jinja2")
    plotting.draw(tmp_path / "x.html", "Codecs", script["panels"](lines, RATES_BPS, STEPS))
    assert "What auto chose" in (tmp_path / "x.html").read_text()


def test_table(script, lines, capsys):
    result = script["summary"](lines, RATES_BPS, STEPS)
    script["show"](result, workers=4, hidden=64)
    shown = capsys.readouterr().out
    assert result["total_seconds"]["fp16"] == pytest.approx(0.2 + 0.8) and "1000 Mbit/s" in shown
    assert max(map(len, shown.splitlines())) <= 80
