"""`switchml bench codecs`: figures that can be checked, pictures, and what it says of a bad tensor."""

import numpy as np
import pytest
from click.testing import CliRunner

from switchml.cli.main import cli

torch = pytest.importorskip("torch", reason="needs torch for gradients and for torch's hooks")

from emulator.lab.bench.codecs import baselines as codec_baselines  # noqa: E402
from emulator.lab.bench.codecs import measure as codecs  # noqa: E402
from emulator.lab.bench.codecs import tensors as codec_tensors  # noqa: E402
from switchml.codecs import parse  # noqa: E402
from switchml.errors import ConfigError  # noqa: E402
from tests.support.commands import told  # noqa: E402


def run(*args: str):
    return CliRunner().invoke(cli, ["bench", "codecs", "--repeats", "1", *args])


def figures(*args: str) -> dict:
    report = told("bench", "codecs", "--repeats", "1", *args)
    return report | {"codecs": {each["name"]: each for each in report["codecs"]}}


def test_figures(tmp_path):
    """Sizes and errors are those of a tensor that the test made itself; times are only there."""
    x = np.random.default_rng(0).laplace(size=(60, 100)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    report = figures("--tensor", str(tmp_path / "x.npy"), "--ranks", "3")
    assert report["elements"] == 6000 and "x.npy" in report["tensor"]
    ours = report["codecs"]
    assert ours["fp16"]["payload_bytes"] == 12 + 2 * 6000
    assert ours["fp16"]["sent_bytes"] == ours["fp16"]["received_bytes"] == 2 * 6000
    assert ours["signsgd"]["sent_bytes"] == 6000, "votes travel as int8"
    assert ours["qsgd"]["received_bytes"] == 2 * ours["qsgd"]["sent_bytes"], "gathered from the two others"
    assert ours["fp16"]["max_error"] == np.abs(x - x.astype(np.float16)).max()
    assert 0 < ours["szx"]["max_error"] <= 1e-3 * (x.max() - x.min())
    largest = np.sort(np.abs(x.reshape(-1)))[-60:]
    assert ours["topk"]["relative_l2_error"] == pytest.approx(np.sqrt(1 - (largest**2).sum() / (x**2).sum()), rel=1e-3)
    for each in ours.values():
        assert each["compress_bytes_per_s"] > 0 and each["ratio"] == 4 * 6000 / each["payload_bytes"]


def test_rivals_are_there_or_named():
    report = figures("--elements", "10000", "--codec", "topk", "--codec", "szx:bound=0.01", "--bound", "0.01")
    measured, missing = report["codecs"], {each["name"]: each["reason"] for each in report["missing"]}
    assert set(codec_baselines.NEEDS) == {name for name in measured if not measured[name]["ours"]} | set(missing)
    assert all("pip install 'switchml[bench-codecs]'" in reason for reason in missing.values())
    assert measured["torch.topk"]["payload_bytes"] == 8 * 100
    assert measured["torch.topk"]["relative_l2_error"] == pytest.approx(measured["topk"]["relative_l2_error"], rel=1e-6)
    assert measured["torch fp16"]["max_error"] > 0
    assert 0.1 < measured["torch PowerSGD"]["relative_l2_error"] < 1


def test_bound_of_the_rivals_is_ours():
    tensor = codec_tensors.load("gradient", 20_000)
    value_range = float(tensor.values.max() - tensor.values.min())
    report = codecs.measure(tensor, [parse("szx")], bound=1e-3, ratio=0.01, rank=1, workers=2, rounds=1)
    errors = {each.name: each.max_error for each in report.measured}
    for name in {"szx", "SZ3", "ZFP"} & set(errors):
        assert 0.1e-3 * value_range < errors[name] <= 1.0001e-3 * value_range, name


def test_tensors_of_the_digits_model():
    gradient, repeated = (codec_tensors.load("gradient", 100_000).values for _ in range(2))
    assert np.array_equal(gradient, repeated) and gradient.size == 100_000
    assert not np.array_equal(gradient[:28_000], gradient[71_754 : 71_754 + 28_000]), "another step's"
    activation = codec_tensors.load("activation", 100_000).values
    assert activation.min() == 0 and 0.1 < (activation == 0).mean() < 0.9
    smooth = codec_tensors.load("smooth", 10_000).values
    assert np.abs(np.diff(smooth[:100])).max() < 0.2 * np.ptp(smooth)


@pytest.mark.parametrize("ending", ["png", "html"])
def test_pictures(tmp_path, ending):
    path = tmp_path / f"codecs.{ending}"
    assert run("--elements", "2000", "--codec", "fp16", "--codec", "qsgd", "--plot", str(path)).exit_code == 0
    start = path.read_bytes()[:4]
    assert start == (b"\x89PNG" if ending == "png" else b"<!DO")
    if ending == "html":
        page = path.read_text()
        assert page.count('<figure class="chart"') == 2 and page.count('<html lang="en">') == 1


@pytest.mark.parametrize(("make", "error"), [
    (lambda path: None, "No such file or directory: expected one of gradient, activation, smooth, or a NumPy file"),
    (lambda path: path.write_text("nothing"), "expected one of gradient, activation, smooth, or a NumPy file"),
    (lambda path: np.save(path, np.arange(5)), "int64 of shape (5,): expected one array of floating-point numbers"),
    (lambda path: np.save(path, np.zeros(0)), "float64 of shape (0,): expected one array"),
    (lambda path: np.save(path, np.array([1.0, np.nan])), "it holds infinities or NaN"),
    (lambda path: np.save(path, np.array([1e300])), "it holds infinities or NaN as float32"),
])  # fmt: skip
def test_bad_tensors(tmp_path, make, error):
    path = tmp_path / "x.npy"
    make(path)
    with pytest.raises(ConfigError) as caught:
        codec_tensors.load(str(path), 1000)
    assert error in str(caught.value) and str(path) in str(caught.value)
    result = run("--tensor", str(path))
    assert result.exit_code == 1 and "Traceback" not in result.output
