"""docs/hugging-face.md's example: Trainer and Accelerate have Gloo's losses."""

import re
import subprocess
import sys

import pytest

from tests.support.ranks import ROOT, environment

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SCRIPT = ROOT / "scripts" / "examples" / "hugging_face.py"


def losses(backend: str, folder) -> list[float]:
    """Of Trainer, then of Accelerate."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = environment(HF_HUB_OFFLINE="1")
    command = [*torchrun, str(SCRIPT), "--backend", backend]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = re.findall(rf"^with_\w+, {backend}: (.*)$", done.stdout, re.MULTILINE)
    assert len(found) == 2, done.stdout
    return [float(number) for line in found for number in line.split()]


def test_trainer_and_accelerate(tmp_path):
    assert losses("switchml", tmp_path) == pytest.approx(losses("gloo", tmp_path), abs=2e-4)
