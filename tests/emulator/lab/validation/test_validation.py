"""Predictions beside measurements: the published tables here, the measured files where they are."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.cluster import cluster as clusters
from emulator.cluster import tables
from emulator.lab.validation import fitting, frameworks, iterations, megatron, nccl, throughput
from emulator.lab.validation.rows import Row, mape, summary, worst
from switchml.cli.main import cli
from switchml.errors import ConfigError

DATA = Path(__file__).resolve().parents[4].parent / "shared" / "data"
"""Measured files, beside the checkout."""


@pytest.fixture(scope="module", autouse=True)
def each_table_once():
    """Megatron's published iterations are emulated once for all tests that look at them."""

    def once(function):
        found = {}

        def result(*cluster):  # the built-in one, by its name
            key = tuple(one.name for one in cluster)
            if key not in found:
                found[key] = function(*cluster)
            return found[key]

        return result

    with pytest.MonkeyPatch.context() as patch:
        for name in ("times", "memories", "scaled"):
            patch.setattr(megatron, name, once(getattr(megatron, name)))
        yield


def needed(*names):
    path = DATA.joinpath(*names)
    if not path.exists():
        pytest.skip(f"needs the measured data {'/'.join(('..', 'shared', 'data', *names))}")
    return path


def run(*arguments):
    report = CliRunner().invoke(cli, ["validate", *map(str, arguments)])
    assert report.exit_code == 0, report.output
    return report.stdout


def test_rows():
    rows = [Row("a", 1.0, 1.1, "s"), Row("b", 2.0, 1.95, "s"), Row("c", 4.0, 2.0, "s")]
    assert mape(rows) == pytest.approx((0.1 + 0.025 + 0.5) / 3)
    assert worst(rows).name == "c"
    assert summary(rows)["within_5_percent"] == pytest.approx(1 / 3)


def test_megatron_table_5_within_5_percent_on_average(tmp_path):
    picture = tmp_path / "scatter.html"
    report = json.loads(run("megatron", "--json", "--plot", picture))
    assert picture.stat().st_size > 10_000
    assert len(report["rows"]) == 8 and report["mape"] < 0.05
    unseen = [abs(row["error"]) for row in report["rows"] if row["name"].endswith("selective")]
    assert np.mean(unseen) < 0.05
    assert report["memory"]["mape"] < 0.01
    assert report["throughput"]["mape"] < 0.08


def test_megatron_for_people(tmp_path):
    picture = tmp_path / "scatter.png"
    assert "throughput (Narayanan)" in run("megatron", "--plot", picture)
    assert picture.stat().st_size > 10_000


def test_a_cluster_without_room_for_a_published_job_is_refused():
    machine = clusters.load("a100-dgx")
    small = dataclasses.replace(machine.device, memory_bytes=2e9)
    with pytest.raises(ConfigError, match="no layout of 1.7B .* fits in its memory"):
        megatron.scaled(dataclasses.replace(machine, name="small", own_accelerator=small))


def test_multi_node_iterations():
    """The rows of 18.4 B parameters: no constant was fitted to them."""
    rows = iterations.read(needed("iterations", "a100_multi_node.csv"))
    unseen = [row for row in rows if row[0].hidden == 6144]
    assert mape(fitting.predict(clusters.load("a100-hdr800"), unseen)) < 0.08
    assert mape(fitting.predict(clusters.load("a100-hdr800"), rows)) < 0.08


def test_single_node_iterations():
    rows = [row for i, row in enumerate(iterations.read(needed("iterations", "a100_single_node.csv"))) if i % 6 == 1]
    assert mape(fitting.predict(clusters.load("a100-hdr800"), rows)) < 0.12


def test_nccl_tables_at_sizes_that_were_held_out():
    report = json.loads(run("nccl", needed("nccl"), "--json"))
    assert report["from_16_mb"] < 0.02
    assert report["below_16_mb"] < 0.05


def test_closed_form_on_a100_tables():
    rows = [
        row
        for path in sorted(needed("nccl").glob("a100*"))
        for row in nccl.by_formula(tables.read(path), clusters.load("a100-dgx"))
    ]
    assert mape(nccl.split(rows)[1]) < 0.02


def test_published_throughput_of_fsdp_jobs():
    """Every fourth row of MPT under FSDP."""
    rows = throughput.predict(throughput.read(needed("throughput", "llm_foundry.csv"))[::4])
    found = [one.row for one in rows if one.row is not None]
    assert len(found) == len(rows) and mape(found) < 0.06


def test_published_rows_that_nothing_was_fitted_to():
    """Those without pipelines or context parallelism: three of torchtitan, and NeMo's."""
    titan = [one for one in frameworks.torchtitan() if one[1].job.cp == one[1].job.pp == 1][:3]
    assert mape(frameworks.rows(titan)) < 0.12
    assert mape(frameworks.rows([one for one in frameworks.nemo() if one[1].job.pp == one[1].job.cp == 1])) < 0.12


def test_published_rows_of_context_parallel_jobs():
    """torchtitan's on one node: 65 536 to 262 144 tokens on 2 to 8 ranks."""
    rows = frameworks.rows([one for one in frameworks.torchtitan() if one[1].job.cp > 1 and one[1].job.pp == 1])
    assert len(rows) == 3 and mape(rows) < 0.2 and abs(worst(rows).error) < 0.26


def test_closed_form_on_v100_tables():
    rows = [
        row
        for path in sorted(needed("nccl").glob("v100*"))
        for row in nccl.by_formula(tables.read(path), clusters.load("v100-dgx1"))
    ]
    assert mape(nccl.split(rows)[1]) < 0.03


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2,8,2,1024,16,8,512,2,2,1,99", "2 GPUs are not 2 x 2 x 1"),
        ("2,8,2,1024,16,8,512,2,1,1,many", "line 2: expected numbers"),
        ("2,8,2,1024,16,8,512,2,1,1,inf", "line 2: expected numbers above 0"),
        ("2,0,2,1024,16,8,512,2,1,1,99", "line 2: expected numbers above 0"),
        ("2,8,2,1024,16,8,512,2,1,1,99,5", "line 2: expected 11 values"),
        ("2,8,2,1024,16,8,512,2,1,1", "line 2: expected 11 values"),
        ("8" * 200_000, "field larger than field limit"),
        ("2,8,2,1000,16,8,512,2,1,1,99", "must be a multiple of heads"),
    ],
)
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


def test_narayanans_rows_are_all_possible():
    rows = megatron.scaling(clusters.load("a100-dgx"))
    assert len(rows) == 10 and all(0.5 < row.predicted / row.measured < 2 for row in rows)


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


def test_published_rates_of_products_of_experts():
    from emulator.lab.validation import experts
    from emulator.lab.validation.rows import mape

    found = experts.rows()
    assert len(found) == 14 and mape(found) < 0.1
    (loop,) = (row for row in found if row.name.startswith(experts.LOOP))
    assert abs(loop.error) < 0.15


def test_megatron_bridge_and_automodel():
    """Dense rows are within a sixth, of experts four in five within a quarter."""
    from emulator.lab.validation import bridge, frameworks
    from emulator.lab.validation.rows import mape

    found = {name: frameworks.rows(part) for name, part in bridge.groups()}
    assert {name: len(rows) for name, rows in found.items()} == {
        "Megatron Bridge, dense, B200": 6,
        "Megatron Bridge, dense, GB200": 18,
        "Megatron Bridge, dense, H100": 12,
        "Megatron Bridge, experts, B200": 14,
        "Megatron Bridge, experts, GB200": 16,
        "Megatron Bridge, experts, H100": 20,
    }
    dense = [row for name, rows in found.items() if "dense" in name for row in rows]
    assert max(abs(row.error) for row in dense) < 1 / 6 and mape(dense) < 0.04
    experts = [row for name, rows in found.items() if "experts" in name for row in rows]
    assert sum(abs(row.error) < 1 / 4 for row in experts) >= 0.8 * len(experts) and mape(experts) < 0.15


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (MPT.replace("a100_80gb", "abacus"), "expected gpu to be one of a100_40gb"),
        (MPT.replace("512", "many"), "expected numbers in gpus"),
        (MPT.replace("512", "0"), "above 0"),
        (MPT + ",5", "line 2: expected 11 values"),
        (MPT.replace("125m", "1" * 200_000), "field larger than field limit"),
    ],
)
def test_mistakes_in_throughput_files_are_named(tmp_path, line, message):
    with pytest.raises(ConfigError, match=message):
        throughput.read(made_up_throughput(tmp_path / "rows.csv", line))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="expected a CSV file with the columns model, gpu"):
        throughput.read(tmp_path / "other.csv")
