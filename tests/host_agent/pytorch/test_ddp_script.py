"""A DDP script that knows nothing of us, under torchrun: only the backend's name changes."""

import re
import subprocess
import sys

import pytest

from tests.support.ranks import ROOT, environment

pytest.importorskip("torch")
pytest.importorskip("sklearn")

# Several processes at a time that import torch, and perhaps compile kernels, on two slow cores.
pytestmark = pytest.mark.timeout(300)

SCRIPT = ROOT / "scripts" / "examples" / "ddp_digits.py"


def run(backend: str, folder) -> tuple[list[float], float]:
    """Losses of the epochs and the final accuracy, as rank 0 prints them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT),
               "--backend", backend, "--epochs", "6"]  # fmt: skip
    done = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", done.stdout)]
    return losses, float(re.search(r"accuracy ([\d.]+)", done.stdout).group(1))


@pytest.mark.slow
def test_only_the_backend_changes(tmp_path):
    assert "switchml" not in re.sub(r'"""[^"]*"""|"switchml"|gloo, switchml', "", SCRIPT.read_text())
    losses, accuracy = run("switchml", tmp_path)
    losses_gloo, accuracy_gloo = run("gloo", tmp_path)
    assert len(losses) == 6
    assert losses == pytest.approx(losses_gloo, abs=2e-3)
    assert accuracy == pytest.approx(accuracy_gloo, abs=0.005)
    assert accuracy > 0.85
