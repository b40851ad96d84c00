import ddp_jobs
import pytest

from emulator.optimizer import file
from emulator.optimizer.codec_costs import CHOICES, measure
from emulator.optimizer.machine import Machine
from emulator.optimizer.objective import Objective
from emulator.optimizer.search import search
from emulator.optimizer.setting import Setting
from emulator.optimizer.space import Allowed
from emulator.trace.buckets import MIB, assign, gradients
from host_agent.settings import load
from switchml.errors import ConfigError


@pytest.fixture(scope="module")
def job():
    return ddp_jobs.ddp([MIB / 2 + 12 * i for i in range(12)], [0.02] * 12, ranks=4, bytes_per_s=1e7)


def test_what_is_written_is_what_is_read(job, tmp_path):
    machine = Machine.of(job, codecs=measure(["fp16"], 4))
    objective = Objective(job, machine)
    allowed = Allowed(passes=("buckets", "placement", "codec"), codecs=("fp16",))
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
    said = file.advice(Setting(accumulate=4, placement="ps", buckets=(MIB,)))
    assert set(said) == {"accumulate", "placement"} and "no_sync" in said["accumulate"]


def test_a_file_that_can_not_be_written_says_so(job, tmp_path):
    machine = Machine.of(job)
    found = search(Objective(job, machine), Allowed(), trials=20)
    with pytest.raises(ConfigError, match="--out"):
        file.write(tmp_path / "no" / "such" / "folder.toml", found, machine, "traces")


def test_costs_of_codecs_are_measured():
    found = measure(CHOICES, 4)
    assert found["fp16"].wire_share == 0.5 and not found["fp16"].gathers
    assert 0.01 < found["topk:ratio=0.01"].wire_share < 0.02 and found["topk:ratio=0.01"].gathers
    assert found["thc"].rounds > 1 and found["fp16"].error < 1e-3 < found["topk:ratio=0.1"].error < 1
    with pytest.raises(ConfigError, match="unknown codec|zip"):
        measure(["zip"], 4)
