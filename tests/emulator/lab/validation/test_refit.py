"""Fits of the shipped constants: rows and weights are recorded, and a refit gives what is shipped."""

import pytest

from emulator import datafile
from emulator.cluster import accelerator
from emulator.cluster import cluster as clusters
from emulator.lab.validation import refit
from switchml.errors import ConfigError

NAMES = ("iterations", "throughput", "blackwell")


@pytest.mark.parametrize(("name", "rows"), [("iterations", 150), ("throughput", 58), ("blackwell", 9)])
def test_rows_and_constants_are_recorded(name, rows):
    fit = refit.fits()[name]
    assert len(refit.samples(fit)) == rows
    for constant in fit.constants:
        copies = [refit.Constant(constant.name, (place,), 1.0).shipped() for place in constant.places]
        assert copies == pytest.approx([constant.shipped()] * len(copies))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_refit_gives_what_is_shipped(name):
    """From the recorded start. Launching kernels forward and backward is hardly told apart: 5 % there."""
    for one in refit.refit(refit.fits()[name]):
        assert abs(one.change) < (0.05 if "launch" in one.constant.name else 0.02), one


def test_constants_are_tried_and_then_what_they_were():
    constant = refit.fits()["iterations"].constants[0]
    before = accelerator.constants().gemm_efficiency
    with refit.trying({constant: 0.5}):
        assert accelerator.constants().gemm_efficiency == 0.5
    assert accelerator.constants().gemm_efficiency == before == constant.shipped()


def test_files_are_written_as_shipped_but_for_what_was_fitted(tmp_path):
    pytest.importorskip("tomlkit")
    fit = refit.fits()["iterations"]
    same = [refit.Refitted(one, one.shipped(), one.shipped()) for one in fit.constants]
    targets = refit.targets(fit, tmp_path / "mine.toml")
    refit.write(fit, same, targets)
    for source, target in targets.items():
        assert target.read_text() == source.read_text()
    changed = [refit.Refitted(one, 2 * one.shipped(), one.shipped()) for one in fit.constants]
    refit.write(fit, changed, targets)
    assert datafile.load(tmp_path / "mine.toml")["kernel_s"]["value"] == pytest.approx(2 * fit.constants[4].shipped())
    assert clusters.load(str(tmp_path / "a100-hdr800.toml")).between.efficiency == pytest.approx(
        2 * fit.constants[8].shipped()
    )
    with pytest.raises(ConfigError, match="mine.toml exists: give --overwrite"):
        refit.targets(fit, tmp_path / "mine.toml")
    assert refit.targets(fit, tmp_path / "mine.toml", is_replacing=True) == targets
