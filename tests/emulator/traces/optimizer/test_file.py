import json

import pytest

from emulator.traces.optimizer import file
from emulator.traces.optimizer.machine import Machine
from emulator.traces.optimizer.measured import SpeedUp
from emulator.traces.optimizer.objective import Objective
from emulator.traces.optimizer.passes import TRACED, Setting, in_file
from emulator.traces.optimizer.search import Allowed, SearchResult, search
from emulator.traces.whatif import codec_costs
from emulator.traces.whatif.buckets import MIB, assign
from emulator.traces.whatif.codec_costs import CHOICES, measure
from emulator.traces.whatif.gradients import gradients
from host_agent.pytorch.settings import load
from switchml.codecs import parse
from switchml.errors import ConfigError
from tests.support import ddp_jobs


@pytest.fixture(scope="module")
def job():
    return ddp_jobs.ddp([MIB / 2 + 12 * i for i in range(12)], [0.02] * 12, ranks=4, bytes_per_s=1e7)


def test_what_is_written_is_what_is_read(job, tmp_path):
    machine = Machine.of(job, codecs=measure(["fp16"], 4))
    objective = Objective(job, machine)
    allowed = Allowed(passes=("buckets", "allreduce", "codec"), codecs=("fp16",))
    found = search(objective, allowed, trials=200)
    path = tmp_path / "settings.toml"
    file.write(path, found, machine, "traces")
    settings = load(path)
    setting = found.best.setting
    assert settings.backend == "switchml" and settings.codec == ("fp16",) * len(setting.codec)
    assert settings.environment == {"SWITCHML_WIRE": "int16"}
    # DDP makes bytes of MiB as it does: the same buckets come out
    caps = [int(cap * MIB) for cap in settings.ddp["bucket_cap_mb_list"]]
    sizes = gradients(job).bytes
    assert assign(sizes, caps).tolist() == assign(sizes, setting.buckets).tolist()


def test_what_a_file_cannot_do_is_advice(job):
    said = file.advice(Setting(accumulate=4, allreduce="ps", buckets=(MIB,)))
    assert set(said) == {"accumulate", "allreduce"} and "no_sync" in said["accumulate"]


def test_a_file_promises_what_it_does(job):
    """Micro-batches are advice: they gain, but not by the file."""
    machine = Machine.of(job)
    found = search(Objective(job, machine), Allowed(passes=("buckets", "allreduce", "accumulate")), trials=200)
    assert found.best.setting.accumulate > 1 == found.in_file.setting.accumulate
    assert found.in_file.setting.allreduce == found.best.setting.allreduce == "switchml"
    told = file.tables(found, machine, "traces")
    assert told["predicted"]["iteration_s"] == found.in_file.iteration_s and "accumulate" in told["advice"]
    assert 1 < found.predicted_speedup == found.traced.sample_s / found.in_file.sample_s
    speedup = SpeedUp.of(found, [0.30, 0.50, 0.31], [0.20, 0.40, 0.21])
    assert speedup.default_s == 0.31 and speedup.measured == pytest.approx(0.31 / 0.21)
    assert speedup.error == pytest.approx(found.predicted_speedup / speedup.measured - 1)
    assert f"predicted speed-up {found.predicted_speedup:.2f}, measured 1.48, off by {speedup.error:+.1%}" in str(
        speedup
    )


def test_a_parameter_server_is_no_backend():
    setting = in_file(Setting(allreduce="ps", buckets=(MIB,), priority=True))
    assert setting == Setting(buckets=(MIB,))


@pytest.mark.parametrize(("codec", "wire"), [(("fp16", ""), "int16"), (("", "bf16"), "int16"), (("thc",), None)])
def test_halves_take_narrow_lanes_in_any_bucket(job, codec, wire):
    machine = Machine.of(job, codecs=measure([spec for spec in codec if spec], 4))
    objective = Objective(job, machine)
    traced, best = objective(TRACED), objective(Setting(allreduce="switchml", codec=codec))
    told = file.tables(SearchResult(traced, best, best), machine, "traces")
    assert told["environment"].get("SWITCHML_WIRE") == wire
    assert told["compression"]["codec"] == [spec or "none" for spec in codec]


def test_what_a_file_says_of_codecs_and_what_is_measured_here_have_the_same_lanes(tmp_path):
    names = ("fp16", "bf16", "randomk", "thc", "topk:ratio=0.01")
    rates = dict(ratio=2.0, compress_bytes_per_s=1e9, decompress_bytes_per_s=1e9)
    rows = [dict(rates, name=name, aggregation=parse(name).aggregation) for name in names]
    (tmp_path / "codecs.json").write_text(json.dumps({"codecs": rows}))
    read, measured = codec_costs.load(tmp_path / "codecs.json"), measure(names, 4)
    assert [read[name].lanes for name in names] == [measured[name].lanes for name in names]


def test_nothing_to_change_changes_nothing(job):
    traced = Objective(job, machine := Machine.of(job))(TRACED)
    told = file.tables(SearchResult(traced, traced, traced), machine, "traces")
    assert not any(told[name] for name in ("process_group", "environment", "ddp", "compression", "advice"))


def test_a_file_that_can_not_be_written_says_so(job, tmp_path):
    machine = Machine.of(job)
    found = search(Objective(job, machine), Allowed(), trials=20)
    with pytest.raises(ConfigError, match="No such file or directory"):
        file.write(tmp_path / "no" / "such" / "folder.toml", found, machine, "traces")


def test_costs_of_codecs_are_measured():
    found = measure(CHOICES, 4)
    assert found["fp16"].wire_share == 0.5 and not found["fp16"].gathers
    assert 0.01 < found["topk:ratio=0.01"].wire_share < 0.02 and found["topk:ratio=0.01"].gathers
    assert found["thc"].rounds > 1 and found["fp16"].error < 1e-3 < found["topk:ratio=0.1"].error < 1
    with pytest.raises(ConfigError, match="unknown codec|zip"):
        measure(["zip"], 4)
