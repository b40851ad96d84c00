"""`switchml validate peers`: the cluster it describes, and a short run of it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from switchml.cli.main import cli

pytest.importorskip("torch")

from emulator.lab.bench.ranks.training import AllReduces, Times
from emulator.lab.validation.peers.measure import BACKENDS, PeersPlan, _in_turns, star_cluster
from emulator.peers.settings import PeerSettings
from emulator.peers.world import Costs
from switchml.errors import ConfigError
from tests.support.commands import run_json

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(("backend", "moved"), [("gloo", 1.5), ("switchml", 1.0)])
def test_the_cluster_takes_what_was_measured(tmp_path, backend, moved):
    path = tmp_path / "star.toml"
    path.write_text(star_cluster(100e6, 1e-3, 0.9))
    costs = Costs(PeerSettings(world=4, cluster=str(path), network=BACKENDS[backend]))
    expected_s = 1e-3 + moved * 4e6 * 8 / (0.9 * 100e6)
    assert costs.seconds("all_reduce", 4e6, (0, 1, 2, 3)) == pytest.approx(expected_s, rel=2e-3)


def test_the_first_of_a_turn_does_not_count():
    """Ranks do not begin it together, and guess exponents of other values."""

    class Team:
        def run(self, request):
            usual_s = 0.2 if isinstance(request, AllReduces) else 0.25
            return [Times([9.0] + [usual_s] * (request.count - 1))] * 2

    link, step_s = _in_turns("star", Team(), (600_000, 400_000), 7, "switchml", 2, 50e6)
    assert step_s == 0.25
    assert 1e6 * 8 / (50e6 * link.share) + 2 * link.fixed_s == pytest.approx(0.2)


def test_plans_that_make_no_sense():
    for wrong, message in (({"workers": (1,)}, "1 rank: expected 2 or more"), ({"steps": 2}, "expected 3 or more")):
        with pytest.raises(ConfigError, match=message):
            PeersPlan(**wrong)
    assert CliRunner().invoke(cli, ["validate", "peers", "--rates", "fast"]).exit_code == 2


@pytest.mark.root
@pytest.mark.slow
def test_a_short_validation(require_program, tmp_path):
    """Whether the numbers are right is not for a busy machine to say; here, that they are there and of their size."""
    require_program("ip")
    require_program("tc")
    options = ["--ranks", "2", "--rates", "100mbit", "--steps", "3", "--layers", "1", "--batch", "32"]
    report = run_json("validate", "peers", *options)
    assert [row["name"] for row in report["rows"]] == ["2 ranks, gloo, 100 Mbit/s", "2 ranks, switchml, 100 Mbit/s"]
    wire_s = report["gradient_bytes"] * 8 / 100e6
    for row in report["rows"]:
        assert row["measured"] > wire_s and row["predicted"] > 0.9 * wire_s
    assert set(report) >= {"mape", "worst", "within_5_percent", "calibration", "parts"}
