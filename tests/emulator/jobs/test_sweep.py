"""Sweeps: what they ask for, several processes, a Dask cluster, resuming, and their tables."""

import csv
import json
import os

import pytest

from emulator.jobs.sweep import Axis, parse_axis, points, sweep
from switchml.errors import ConfigError, SwitchMLError


def double(options):
    """What these tests emulate; leaves a line in the file that the options name."""
    if "log" in options:
        with open(options["log"], "a") as file:
            file.write(f"{options['gpus']} {os.getpid()}\n")
    if options["gpus"] == 3:
        raise SwitchMLError("out of memory:\n  3 GPUs")
    return {"iteration_s": 2.0 * options["gpus"], "parts": {"compute": 1.5}}


@pytest.mark.parametrize(("text", "name", "values"), [
    ("gpus=64:8192:2x", "gpus", [64, 128, 256, 512, 1024, 2048, 4096, 8192]),
    ("gpus=64:1000:2x", "gpus", [64, 128, 256, 512]), ("micro-batch=1:8:3", "micro-batch", [1, 4, 7]),
    ("loss=0.001:0.004:0.001", "loss", [0.001, 0.002, 0.003, 0.004]),
    ("allreduce=ring,switchml", "allreduce", ["ring", "switchml"]), ("rate = 1e9, 2.5", "rate", [1_000_000_000, 2.5]),
    ("tp=8", "tp", [8]), ("codec=none,topk:ratio=0.01", "codec", ["none", "topk:ratio=0.01"]),
])  # fmt: skip
def test_axes(text, name, values):
    axis = parse_axis(text)
    assert axis.name == name
    assert axis.values == pytest.approx(values) if isinstance(values[0], float) else axis.values == values


@pytest.mark.parametrize(("text", "message"), [
    ("gpus", "expected NAME=A,B"), ("gpus=", "expected NAME=A,B"), ("=1,2", "expected NAME=A,B"),
    ("gpus=1:2", "expected FROM:TO:STEP"), ("gpus=1:many:2x", "expected FROM:TO:STEP"),
    ("gpus=64:8192:1x", "never end"), ("gpus=0:8:2x", "never end"), ("gpus=8:1:1", "never end"),
    ("gpus=1:8:0", "never end"), ("gpus=1:1e9:1", "more than 100000 values"), ("allreduce=ring,,tree", "empty value"),
    ("allreduce=ring,ring", "twice"),
])  # fmt: skip
def test_axes_that_make_no_sense(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_axis(text)


def test_points_are_every_combination():
    both = points([Axis("gpus", [1, 2]), Axis("allreduce", ["ring", "tree"])])
    assert both == [
        {"gpus": 1, "allreduce": "ring"},
        {"gpus": 1, "allreduce": "tree"},
        {"gpus": 2, "allreduce": "ring"},
        {"gpus": 2, "allreduce": "tree"},
    ]
    with pytest.raises(ConfigError, match="two sweeps of 'gpus'"):
        points([Axis("gpus", [1]), Axis("gpus", [2])])
    with pytest.raises(ConfigError, match="1,000,000 points"):
        points([Axis(name, list(range(100))) for name in "abc"])


AXES = [Axis("gpus", [1, 2, 3, 4])]
ROWS = [
    {"gpus": 1, "iteration_s": 2.0, "parts": {"compute": 1.5}},
    {"gpus": 2, "iteration_s": 4.0, "parts": {"compute": 1.5}},
    {"gpus": 3, "error": "out of memory: 3 GPUs"},
    {"gpus": 4, "iteration_s": 8.0, "parts": {"compute": 1.5}},
]


def test_several_processes_give_rows_in_order(tmp_path):
    log = tmp_path / "log"
    assert sweep(double, AXES, base={"log": str(log)}, processes=2) == ROWS
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(gpus for gpus, _ in lines) == ["1", "2", "3", "4"]
    assert str(os.getpid()) not in {pid for _, pid in lines}


@pytest.mark.slow
def test_dask_cluster():
    distributed = pytest.importorskip("distributed", reason="needs distributed (pip install 'switchml[dask]')")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, protocol="tcp://", dashboard_address=None
    ) as cluster:
        assert sweep(double, AXES, engine=cluster.scheduler_address) == ROWS


def test_engine_that_is_none():
    with pytest.raises(ConfigError, match="'ray' is not a Dask scheduler; expected tcp://HOST:PORT"):
        sweep(double, AXES, engine="ray")


def test_csv(tmp_path):
    sweep(double, AXES, out=tmp_path / "out.csv", processes=1)
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"gpus": "1", "iteration_s": "2.0", "parts.compute": "1.5", "error": ""}
    assert rows[2]["error"] == "out of memory: 3 GPUs"
    assert list(tmp_path.iterdir()) == [tmp_path / "out.csv"]


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow (pip install 'switchml[parquet]')")
    sweep(double, [*AXES, Axis("share", ["all", 0.5])], out=tmp_path / "out.parquet", processes=1)
    table = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert table["gpus"] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert table["share"] == ["all", "0.5"] * 4
    assert table["parts.compute"] == [1.5, 1.5, 1.5, 1.5, None, None, 1.5, 1.5]


def test_interrupted_sweep_resumes(tmp_path, monkeypatch):
    out, log = tmp_path / "out.csv", tmp_path / "log"

    def interrupted(options):
        if options["gpus"] == 3:
            raise KeyboardInterrupt
        return double(options)

    base = {"log": str(log)}
    with pytest.raises(KeyboardInterrupt):
        sweep(interrupted, AXES, base=base, out=out, processes=1)
    assert not out.exists()
    with (tmp_path / "out.csv.journal").open("a") as file:
        file.write('{"options": {"gpus": 4, "lo')  # cut off in the middle of a line
    assert sweep(double, AXES, base=base, out=out, processes=1) == ROWS
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["1", "2", "3", "4"]
    assert not (tmp_path / "out.csv.journal").exists()


def test_journal_of_another_sweep_is_not_taken_for_this_one(tmp_path):
    journal = tmp_path / "out.csv.journal"
    entry = {"options": {"gpus": 1, "model": "bert"}, "row": {"iteration_s": 99.0}}
    journal.write_text(json.dumps(entry) + "\n")
    assert sweep(double, AXES, base={"model": "vgg16"}, out=tmp_path / "out.csv", processes=1) == ROWS


@pytest.mark.parametrize(
    ("name", "message"), [("out.xlsx", r"ends in \.csv or \.parquet"), ("no/out.csv", "no such folder")]
)
def test_output_that_can_not_be_written_is_known_before(tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        sweep(None, AXES, out=tmp_path / name)


def test_killed_process_is_one_clear_error():
    with pytest.raises(SwitchMLError, match="was killed, probably for want of memory"):
        sweep(kill, AXES, processes=2)


def kill(options):
    os._exit(9)


def test_what_is_no_error_of_ours_is_not_hidden():
    with pytest.raises(KeyError):
        sweep(lambda options: {}[0], AXES, processes=1)


def test_progress_is_for_terminals_only(capfd):
    sweep(double, AXES, processes=1)
    assert capfd.readouterr() == ("", "")
