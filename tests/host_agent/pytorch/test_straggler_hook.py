"""The DDP hook whose sums do not wait for a late rank, in real processes."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "stragglers_script.py"


def test_a_late_rank_catches_up(tmp_path):
    ranks = run_ranks(SCRIPT, 2, tmp_path, timeout_s=200, SWITCHML_DEADLINE="200ms")
    quick, late = (json.loads(rank.out[rank.out.index("{") :]) for rank in ranks)
    assert quick["digest"] == late["digest"] and quick["step"] == late["step"] == 10
    assert 1 in quick["ranks"] and late["late"] > 0 and late["caught_up"] > 0
