"""docs/gpus.md: another backend inside hosts, and the network between them."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.ranks import run_ranks

SCRIPT = Path(__file__).parent / "hybrid_script.py"


def test_the_outer_dimension_goes_through_the_network(tmp_path):
    losses = {}
    for outer in ("gloo", "switchml"):
        (tmp_path / outer).mkdir()
        printed = {rank.out.splitlines()[-1] for rank in run_ranks(SCRIPT, 4, tmp_path / outer, outer, timeout_s=200)}
        (line,) = printed
        backend, loss = line.split()
        assert backend == outer
        losses[outer] = float(loss)
    assert losses["switchml"] == pytest.approx(losses["gloo"], rel=1e-4)
