"""A DDP script that knows nothing of us, under torchrun: only the backend's name changes."""

import re
import socket
import subprocess
import sys

import pytest

from tests.support.ranks import ROOT, environment, run_ranks

pytest.importorskip("torch")

SCRIPT = ROOT / "scripts" / "examples" / "ddp_digits.py"


def options(backend: str) -> list[str]:
    return ["--backend", backend, "--epochs", "6"]


def read(printed: str) -> tuple[list[float], float]:
    """Losses of the epochs and the final accuracy, as rank 0 prints them."""
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", printed)]
    return losses, float(re.search(r"accuracy ([\d.]+)", printed).group(1))


@pytest.mark.slow
def test_only_the_backend_changes(tmp_path):
    assert "switchml" not in re.sub(r'"""[^"]*"""|"switchml"|gloo, switchml', "", SCRIPT.read_text())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(SCRIPT), *options("switchml")],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses, accuracy = read(done.stdout)
    with socket.create_server(("127.0.0.1", 0)) as free:
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = run_ranks(SCRIPT, 2, tmp_path, *options("gloo"), timeout_s=200, **store)
    losses_gloo, accuracy_gloo = read(ranks[0].out)
    assert len(losses) == 6
    assert losses == pytest.approx(losses_gloo, abs=2e-3)
    assert accuracy == pytest.approx(accuracy_gloo, abs=0.005)
    assert accuracy > 0.85
