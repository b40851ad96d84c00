"""Predictions beside measurements: files, fits, and what the commands print. The figures are in test_page.py."""

import dataclasses
import json
import math

import pytest
from click.testing import CliRunner

from emulator.cluster import cluster as clusters
from emulator.lab.validation import fitting, iterations, megatron, throughput
from emulator.lab.validation.rows import Row, mape, summary, worst
from switchml.cli.main import cli
from switchml.errors import ConfigError


def run(*arguments):
    report = CliRunner().invoke(cli, ["validate", *map(str, arguments)])
    assert report.exit_code == 0, report.output
    return report.stdout


def test_rows():
    rows = [Row("a", 1.0, 1.1, "s"), Row("b", 2.0, 1.95, "s"), Row("c", 4.0, 2.0, "s")]
    assert mape(rows) == pytest.approx((0.1 + 0.025 + 0.5) / 3)
    assert worst(rows).name == "c"
    assert summary(rows)["within_5_percent"] == pytest.approx(1 / 3)


def test_a_cluster_without_room_for_a_published_job_is_refused():
    machine = clusters.load("a100-dgx")
    small = dataclasses.replace(machine.device, memory_bytes=2e9)
    with pytest.raises(ConfigError, match="no layout of 1.7B .* fits in its memory"):
        megatron.scaled(dataclasses.replace(machine, name="small", own_accelerator=small))


def made_up(path, seconds):
    """A file of four iterations of two model sizes."""
    lines = [",".join(iterations.COLUMNS)]
    for (hidden, layers), (tp, pp) in ((size, split) for size in ((1024, 8), (2048, 4)) for split in ((1, 1), (2, 1))):
        lines.append(f"2,8,2,{hidden},16,{layers},512,{tp},{2 // tp // pp},{pp},{seconds * hidden:.4f}")
    path.write_text("\n".join(lines))
    return path


def test_constants_are_found_again(tmp_path):
    """Times that other constants predict: fitting finds constants which predict them too."""
    pytest.importorskip("scipy")
    truth = fitting.with_values(
        clusters.load("a100-dgx"),
        fitting.values(clusters.load("a100-dgx")) | {"gemm_efficiency": 0.6, "kernel_s": 3e-5},
    )
    samples = iterations.read(made_up(tmp_path / "rows.csv", 0.1))
    measured = [
        (model, job, row.predicted)
        for (model, job, _), row in zip(samples, fitting.predict(truth, samples), strict=True)
    ]
    start = clusters.load("a100-dgx")
    fitted = fitting.fit(start, measured, [1.0] * len(measured))
    before, after = (mape(fitting.predict(one, measured)) for one in (start, fitted))
    assert after < 0.2 * before


def test_leaving_a_size_out(tmp_path):
    pytest.importorskip("scipy")
    path = made_up(tmp_path / "rows.csv", 0.1)
    report = json.loads(run("iterations", path, "--refit", "--json"))
    assert set(report["left_out"]) == {"hidden 1024", "hidden 2048"}
    assert len(report["rows"]) == 4 and math.isfinite(report["mape"])


@pytest.mark.parametrize(("line", "message"), [
    ("2,8,2,1024,16,8,512,2,2,1,99", "2 GPUs are not 2 x 2 x 1"),
    ("2,8,2,1024,16,8,512,2,1,1,many", "line 2: expected numbers"),
    ("2,8,2,1024,16,8,512,2,1,1,inf", "line 2: expected numbers above 0"),
    ("2,0,2,1024,16,8,512,2,1,1,99", "line 2: expected numbers above 0"),
    ("2,8,2,1024,16,8,512,2,1,1,99,5", "line 2: expected 11 values"),
    ("2,8,2,1024,16,8,512,2,1,1", "line 2: expected 11 values"), ("8" * 200_000, "field larger than field limit"),
    ("2,8,2,1000,16,8,512,2,1,1,99", "must be a multiple of heads"),
])  # fmt: skip
def test_mistakes_in_files_are_named(tmp_path, line, message):
    path = tmp_path / "rows.csv"
    path.write_text(",".join(iterations.COLUMNS) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=message):
        iterations.read(path)


def test_missing_columns_are_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("# GPUs\n2\n")
    with pytest.raises(ConfigError, match="missing: .'global batch'"):
        iterations.read(path)


def made_up_throughput(path, *lines):
    path.write_text("\n".join([",".join(throughput.COLUMNS), *lines]) + "\n", encoding="utf-8-sig")
    return path


MPT = "125m,a100_80gb,8,2048,512,32,amp_bf16,DEFAULT,FULL_SHARD,False,1100000"


def test_throughput_of_rows(tmp_path):
    path = made_up_throughput(tmp_path / "rows.csv", MPT, MPT.replace("125m", "9t"))
    report = json.loads(run("throughput", path, "--json"))
    (row,) = report["rows"]
    assert row["measured"] == 1_100_000 and 0.5 < row["predicted"] / row["measured"] < 1.5
    assert list(report["groups"]) == ["a100_80gb bf16"]
    assert any("unknown model 'mpt-9t'" in why for why in report["refused"].values())
    text = run("throughput", path)
    assert "tokens/s" in text and "refused: 1 of 2 rows" in text


def test_kernels_carried_to_another_accelerator():
    from emulator.lab.validation import kernels
    from emulator.traces.whatif.speeds import CARRIED

    found = kernels.rows()
    assert len(found) == 10
    assert mape(found) < 0.205  # half of what it was by FLOP/s and bandwidth without classes
    average, far = f"{100 * mape(found):.0f} % off on average", f"{100 * abs(worst(found).error):.0f} % at worst"
    assert average in CARRIED and far in CARRIED  # what `trace replay --accelerator` says of itself


def test_rows_inside_their_intervals():
    from emulator.lab.validation.rows import inside

    stated = [Row("a", 1.0, 1.1, "s", 1.2), Row("b", 1.0, 1.3, "s", 1.2), Row("c", 1.0, 9.0, "s")]
    assert inside(stated) == 0.5 and inside(stated[2:]) is None


def test_all_that_a_folder_holds(tmp_path, monkeypatch):
    from emulator.lab.validation import campaigns

    monkeypatch.setattr(campaigns, "_megatron", lambda: iter([campaigns.Campaign("table", [Row("a", 1.0, 1.1, "s")])]))
    with pytest.raises(ConfigError, match="no iterations, tokens a second or nccl-tests tables"):
        campaigns.all_of(tmp_path)
    made_up_throughput(tmp_path / "one", MPT, MPT)
    made_up(tmp_path / "two.csv", 0.1)
    (tmp_path / "v100_8gpu.txt").write_text(
        "\n".join(f"{s << 24},{s << 22},float,{s * 250_000},1" for s in range(1, 9))
    )
    (tmp_path / "notes.txt").write_text("nothing of interest\n")
    report = json.loads(run("all", tmp_path, "--json"))
    assert report["tokens a second, a100_80gb bf16"]["rows"] == 2
    assert report["tokens a second, bf16, constants fitted to others"]["rows"] == 1
    assert report["iterations on one node"]["rows"] == 4
    assert report["all-reduces of 16 MB and more, closed form of v100-dgx1"]["rows"] == 8
    assert "MAPE" in run("all", tmp_path)


@pytest.mark.parametrize(("line", "message"), [
    (MPT.replace("a100_80gb", "abacus"), "expected gpu to be one of a100_40gb"),
    (MPT.replace("512", "many"), "expected numbers in gpus"), (MPT.replace("512", "0"), "above 0"),
    (MPT + ",5", "line 2: expected 11 values"), (MPT.replace("125m", "1" * 200_000), "field larger than field limit"),
])  # fmt: skip
def test_mistakes_in_throughput_files_are_named(tmp_path, line, message):
    with pytest.raises(ConfigError, match=message):
        throughput.read(made_up_throughput(tmp_path / "rows.csv", line))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="expected a CSV file with the columns model, gpu"):
        throughput.read(tmp_path / "other.csv")
