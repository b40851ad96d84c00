"""`switchml bench kernels`: a fit finds the constants that made its rows, and `emulate` reads the file."""

import dataclasses
import json

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from emulator.cluster import cluster as clusters  # noqa: E402
from emulator.cluster.accelerator import accelerators  # noqa: E402
from emulator.lab.bench.kernels import fit, measure  # noqa: E402
from switchml.cli.main import cli  # noqa: E402
from switchml.errors import ConfigError  # noqa: E402
from switchml.files import read_toml  # noqa: E402
from switchml.output_files import toml_text  # noqa: E402

SHAPES = [
    *({"what": "gemm", "m": m, "n": n, "k": k, "dtype": "bfloat16"} for m, n, k in measure.PRODUCTS),
    {"what": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "float32"},
    *(
        {"what": "attention", "batch": b, "heads": h, "sequence": s, "head_dim": d, "causal": causal}
        for b, h, s, d in measure.ATTENTION
        for causal in (True, False)
    ),
    *({"what": "op", "op": op, "rows": 8192, "cols": 4096} for op in fit.OPERATORS),
]


def rows_of(accelerator, device=None):
    """What would be measured on it."""
    rows = [dict(shape, exact=True, time_s=1.0, forward_s=1.0, backward_s=1.0) for shape in SHAPES]
    for row, which, _, seconds in fit.predicted(rows, accelerator):
        row[which] = seconds
    return [*([device] if device else []), *rows]


def device_row(**named):
    named = {"name": "NVIDIA H200", "processors": 132, "memory_bytes": 150.1e9, "launch_s": 4e-6} | named
    return {"what": "device", "architecture": "Hopper", "torch": "2.13", **named}


def worst(rows, accelerator):
    return max(abs(there / here - 1) for _, _, here, there in fit.predicted(rows, accelerator))


@pytest.mark.parametrize("name, architecture", [("NVIDIA H200", "Hopper"), ("NVIDIA Whatever", "Ada")])
def test_what_was_measured_is_predicted(name, architecture):
    """Of a built-in accelerator and of one that nobody knows."""
    own = {
        "gemm_efficiency": 0.6, "tile_fill_steps": 150.0, "launch_s": 4e-6,
        "shares": {"softmax": 0.2, "element_wise": 0.7, "norm": 0.9},
    }  # fmt: skip
    kernel = {
        "forward": 1.2, "backward": 0.933, "narrow": 0.6, "half_length": 300.0, "half_length_full": 100.0,
        "backwards": {"narrow": 0.5, "half_length": 1000.0, "half_length_full": 200.0},
    }  # fmt: skip
    there = dataclasses.replace(
        accelerators()["h200"],
        architecture=architecture,
        operators=own,
        attention=kernel,
        attention_flops={"measured": 3e14},
    )
    rows = rows_of(there, device_row(name=name, architecture=architecture))
    table = fit.fit(rows)
    assert table.get("extends") == ("h200" if name == "NVIDIA H200" else None)
    assert table["operators"]["launch_s"] == 4e-6
    assert worst(rows, fit.accelerator_of(table)) < 0.05 < 0.3 < worst(rows, fit.base_of(rows)[1])


def test_rows_of_shapes_that_no_fit_has_seen():
    """From rows whose short ones count for nothing, as they may have timed the host's launches."""
    there = dataclasses.replace(accelerators()["h200"], operators={"gemm_efficiency": 0.7, "tile_fill_steps": 100.0})
    rows = rows_of(there, device_row())
    for row in rows[1:]:
        row["exact"] = False
    found = fit.accelerator_of(fit.fit(rows))
    other = [{"what": "gemm", "m": 6144, "n": 2560, "k": 5120, "dtype": "bfloat16", "time_s": 1.0, "exact": True}]
    [(*_, wanted)], [(*_, predicted)] = fit.predicted(other, there), fit.predicted(other, found)
    assert predicted == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("text, says", [
    ("", "rows"), ("[1]", "rows"), ('{"what": "gem"}', "what is 'gem'; expected gemm, attention, op, device"),
    ('{"what": "op", "op": "add", "rows": 8, "cols": 8, "time_s": 0}', "row 1: time_s is 0; expected a number"),
    ('{"what": "op", "op": "add", "rows": 8, "cols": 8, "time_s": 1}', "no built-in accelerator"),
    ('{"what": "op", "rows": 8, "cols": 8, "time_s": 1}', "op is None; expected a text"),
    ('{"what": "gemm", "m": 8, "n": 8, "k": 8, "time_s": 1, "dtype": "int8"}', "dtype is 'int8'; expected"),
])  # fmt: skip
def test_rows_that_are_none(tmp_path, text, says):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        fit.fit(fit.read_rows(path))


def test_the_command_and_its_file(tmp_path):
    rows, file = tmp_path / "rows.json", tmp_path / "mine.toml"
    there = dataclasses.replace(accelerators()["h100"], operators={"shares": {"softmax": 0.2, "norm": 0.1}})
    rows.write_text("\n".join(map(json.dumps, rows_of(there, device_row(name="NVIDIA H100 80GB HBM3")))))
    done = CliRunner().invoke(cli, ["bench", "kernels", "--from", str(rows), "--out", str(file), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    errors = answer["errors"]["bound by memory"]
    assert errors["built_in"] > 0.15 > 0.05 > errors["fitted"]
    machine = clusters.equipped("h100-dgx", str(file))
    assert machine.device.title == "NVIDIA H100 SXM5 80 GB, measured"
    assert machine.device.operators["shares"]["softmax"] == pytest.approx(0.2, rel=0.01)
    again = tmp_path / "again.json"
    again.write_text(done.stdout)
    assert fit.read_rows(again) == answer["rows"]
    shown = CliRunner().invoke(cli, ["bench", "kernels", "--from", str(rows)])
    assert "softmax 8192 x 4096" in shown.output and "matrix products, bfloat16" in shown.output


@pytest.mark.parametrize("text, says", [
    ('[accelerator]\nextends = "h300"', "unknown accelerator 'h300'"),
    ("[cluster]", r"expected one table, \[accelerator\]"),
    ('[accelerator]\nextends = "h100"\nmemory_bytes = 0', "memory_bytes is 0"),
    ('[accelerator]\ntitle = "mine"', "lacks source, flops"),
])  # fmt: skip
def test_accelerator_files_that_are_none(tmp_path, text, says):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        clusters.equipped("h100-dgx", str(path))


def test_toml_is_read_as_it_was_written(tmp_path):
    tables = {"a": 1.5, "t": {"x": [1, "two"], "u": {"y": True, "z": 1e-9}, "w": {"v": 2}}, "s": {"k": 'a "b"\n'}}
    (tmp_path / "x.toml").write_text(toml_text(tables))
    assert read_toml(tmp_path / "x.toml") == tables


@pytest.mark.slow
def test_on_this_cpu(tmp_path):
    file = str(tmp_path / "cpu.toml")
    done = CliRunner().invoke(cli, ["bench", "kernels", "--device", "cpu", "--json", "--out", file])
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)["accelerator"]
    assert "extends" not in table and min(table["flops"].values()) > 0
    assert clusters.equipped("cpu-10g", file).device.processors == table["processors"]
