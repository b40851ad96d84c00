"""`switchml validate replay`: what it counts, and a small run of the real thing."""

import pytest

from emulator.lab.validation.clocks import Recovered
from emulator.lab.validation.replay.measure import ReplayPlan, ReplayValidation
from emulator.lab.validation.rows import Row
from switchml.errors import ConfigError
from tests.support.commands import told


def test_self_replays_and_what_ifs_are_counted_apart():
    what_ifs = [Row("b", 1.0, 1.1, "s"), Row("c", 2.0, 1.96, "s")]
    report = ReplayValidation([Row("a", 1.0, 1.01, "s")], what_ifs, [Recovered("d", "pings", 0.05, 2e-5)]).as_json()
    assert report["mape"] == pytest.approx(0.06) and report["within_5_percent"] == 0.5
    assert report["worst"]["name"] == "b"
    assert report["self_replay"]["mape"] == pytest.approx(0.01)
    assert report["clocks"] == [{"name": "d", "told_by": "pings", "shift_s": 0.05, "error_s": 2e-5}]
    assert [row["kind"] for row in report["rows"]] == ["self-replay", "what-if", "what-if"]


@pytest.mark.parametrize(("options", "message"), [
    ({"workers": (1, 2)}, "expected different numbers from 2 up"),
    ({"workers": (2, 2)}, "expected different numbers from 2 up"), ({"steps": 2}, "expected 3 or more"),
    ({"slowness": 1.0}, "expected more than 1"),
])  # fmt: skip
def test_plans_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        ReplayPlan(**options)


@pytest.mark.root
@pytest.mark.slow
def test_two_workers(tmp_path):
    pytest.importorskip("torch")
    picture = tmp_path / "replay.png"
    arguments = ["validate", "replay", "--ranks", "2", "--steps", "3", "--layers", "2", "--width", "128"]
    report = told(*arguments, "--rate", "20mbit", "--keep", tmp_path, "--plot", picture)
    names = [row["name"] for row in report["rows"] if row["kind"] == "what-if"]
    assert [name.removeprefix("2 ranks, ") for name in names] == [
        "half the bandwidth", "other buckets", "a slow rank", "the aggregator",
    ]  # fmt: skip
    assert all(row["measured"] > 0 and row["predicted"] > 0 for row in report["rows"])
    assert len(list(tmp_path.rglob("rank-*.json.gz"))) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
