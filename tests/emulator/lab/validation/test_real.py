"""`switchml validate real`: what counts as an error, what is predicted from what, and a small run of the real thing."""

import random

import pytest

from emulator.lab.validation.real import collectives, litdata_loading
from emulator.lab.validation.real import measure as real
from emulator.lab.validation.real import report as real_report
from emulator.lab.validation.real.loading import spread
from emulator.lab.validation.real.measure import Calibration, Layout, RealPlan, RealValidation, Row
from emulator.lab.validation.rows import Row as ScatterRow
from emulator.networks.testbed.star import BURST_BYTES
from switchml.errors import ConfigError
from tests.support.commands import told


def row(measured_s, predicted_s, is_calibration=False, backend="gloo", workers=4, rate_bps=1e7):
    return Row(Layout(backend, workers), rate_bps, measured_s, predicted_s, is_calibration)


def test_the_calibration_run_counts_in_no_average():
    rows = [row(1.0, 9.0, True), row(1.0, 1.1), row(2.0, 1.92), row(1.0, 0.7)]
    calibration = Calibration(0.001, {"gloo": 0.0, "switchml": 0.0}, {"gloo": 1.0, "switchml": 1.2}, 2)
    report = RealValidation(rows, calibration, 4096)
    assert report.mape == pytest.approx((0.1 + 0.04 + 0.3) / 3)
    assert report.worst is rows[3] and report.within_5_percent == pytest.approx(1 / 3)
    as_object = real_report.as_json(report)
    assert {"rows", "mape", "worst", "within_5_percent"} <= set(as_object) and len(as_object["rows"]) == 4


def test_ranks_that_share_cores_compute_in_turns():
    assert [Calibration(0.001, {}, {}, 4).turns(workers) for workers in (2, 4, 8)] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("backend", ["gloo", "switchml"])
def test_predictions_follow_the_rate_and_the_pause(backend):
    """Large tensors, so that the token bucket's burst is small beside them."""
    slow, fast = (real.play(backend, 2, rate_bps, 1 << 20, 0.0) for rate_bps in (1e9, 2e9))
    assert slow / fast == pytest.approx(2, rel=0.05)
    assert real.play(backend, 2, 1e9, 1 << 20, 0.05) == pytest.approx(slow + 0.05, rel=0.05)


def test_ranks_of_a_host_share_its_burst():
    """Two ranks on a link are slower than each on a link of half the rate: they save the time of a burst once, not
    twice."""
    pause_s, rate_bps, size_bytes = 0.05, 100e6, 128 << 10
    shared = real.play("switchml", 4, rate_bps, size_bytes, pause_s, workers_per_host=2)
    apart = real.play("switchml", 4, rate_bps / 2, size_bytes, pause_s)
    assert shared > apart + 0.99 * 8 * BURST_BYTES / rate_bps


@pytest.mark.parametrize(("options", "message"), [
    ({"workers": (1, 2)}, "1 rank"), ({"workers": (2, 2)}, "given twice"), ({"rates_bps": (1e6, 1e6)}, "given twice"),
    ({"steps": 2}, "expected 3 or more"),
])  # fmt: skip
def test_plans_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        RealPlan(**options)


def test_several_ranks_in_a_host_are_measured_with_both_hierarchies():
    layouts = list(RealPlan(workers=(2, 4), ranks_per_host=2).layouts())
    assert [(one.backend, one.workers, one.hosts) for one in layouts[:4]] == [
        (backend, workers, workers) for workers in (2, 4) for backend in real.BACKENDS
    ]
    assert [(one.workers, one.hosts, one.hierarchy, one.senders) for one in layouts[4:]] == [
        (4, 2, "none", 4),
        (4, 2, "node", 2),
    ]
    assert len(list(RealPlan(workers=(2, 4), ranks_per_host=1).layouts())) == 4


@pytest.mark.root
@pytest.mark.slow
def test_two_workers_at_two_rates(tmp_path):
    pytest.importorskip("torch")
    picture = tmp_path / "real.png"
    arguments = ["validate", "real", "--ranks", "2", "--rates", "20mbit,40mbit", "--steps", "3"]
    report = told(*arguments, "--part", "links", "--plot", picture)
    assert len(report["rows"]) == 4 and sum(one["is_calibration"] for one in report["rows"]) == 2
    assert all(one["measured_s"] > 0 and one["predicted_s"] > 0 for one in report["rows"])
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.root
def test_rows_of_collectives():
    """Links have a rate, so that a busy machine makes them slower than predicted, and nothing faster."""
    pytest.importorskip("torch")
    rows = collectives.rows()
    assert len(rows) == len(collectives.COLLECTIVES) and all(row.measured > 0.8 * row.predicted for row in rows), rows


def test_the_spread_of_a_batch():
    """1,000 samples, batches of ten: all from one tenth, one from each, and drawn from everywhere."""
    assert spread([list(range(10)), list(range(500, 510))], 1000) == pytest.approx(0.1 / 0.6535, rel=1e-3)
    assert spread([list(range(5, 1000, 100))], 1000) == pytest.approx(1 / 0.6535, rel=1e-3)
    drawn = [random.Random(step).sample(range(1000), 10) for step in range(2000)]
    assert spread(drawn, 1000) == pytest.approx(1, abs=0.01)


def test_another_loader_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match="--against litdata: it is not installed; expected what `pip install litdata`"
    ):
        litdata_loading.check_installed()


def test_rows_of_loading_memory_and_pipelines_stand_beside_the_links(tmp_path):
    rows = [ScatterRow("loader: seconds", 2.0, 1.0, "s"), ScatterRow("90% pruned: device", 10.0, 11.0, "MB")]
    report = real_report.as_json(None, rows)
    assert list(report) == ["others"] and [round(row["error"], 9) for row in report["others"]["rows"]] == [-0.5, 0.1]
    real_report.plot(None, tmp_path / "real.png", rows)
    assert (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")
