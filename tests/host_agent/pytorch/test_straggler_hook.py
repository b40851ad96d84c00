"""The DDP hook whose sums do not wait for a late rank, in real processes; test_straggler_rule.py has its arithmetic."""

import json
from pathlib import Path

import pytest

from tests.support.p4_served import Served
from tests.support.ranks import run_ranks

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "stragglers_script.py"


@pytest.fixture(scope="module", params=["software", "p4"])
def aggregator(request):
    """Settings of the ranks: the software aggregator that they start themselves, or our P4 switch."""
    if request.param == "software":
        yield {}
        return
    served = Served()
    yield {"SWITCHML_AGGREGATOR": served.address}
    served.stop()


def reports(folder: Path, how: str, **env: str) -> list[dict]:
    ranks = run_ranks(SCRIPT, 2, folder, how, timeout_s=200, SWITCHML_DEADLINE="200ms", **env)
    return [json.loads(rank.out[rank.out.index("{") :]) for rank in ranks]


@pytest.mark.parametrize("how", ["asleep", "stopped"])
def test_a_late_rank_catches_up(aggregator, how, tmp_path):
    quick, late = reports(tmp_path, how, **aggregator)
    assert quick["digest"] == late["digest"] and quick["step"] == late["step"] == 10
    assert 1 in quick["ranks"] and late["late"] > 0 and late["caught_up"] > 0


def test_a_stopped_machine_with_the_aggregator_on_it(tmp_path):
    """Nobody can end a sum then: all wait, and go on when it is back."""
    first, second = reports(tmp_path, "machine")
    assert first["digest"] == second["digest"] and first["step"] == second["step"] == 10
