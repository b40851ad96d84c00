"""The experiment that trains the digits with every codec, on three of them. (What auto takes depends on how fast the
machine is while it runs: 200 steps are too few to promise an accuracy.)"""

import json
import subprocess
import sys

import pytest

from tests.support.ranks import ROOT, environment

pytest.importorskip("torch")

SCRIPT = ROOT / "scripts" / "experiments" / "codecs.py"


@pytest.mark.slow
def test_codecs_train_the_digits_as_well_as_nothing_does():
    command = [sys.executable, str(SCRIPT), "topk", "fp16", "qsgd", "--ranks", "2", "--steps", "200", "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rows = {row["codec"]: row for row in report["rows"]}
    assert report["failed"] == [] and rows["none"]["accuracy"] > 0.95
    assert rows["fp16"]["share_of_dense"] == pytest.approx(0.5, abs=0.01)
    assert rows["topk"]["share_of_dense"] < 0.02
    assert rows["qsgd"]["share_of_dense"] < 0.3
