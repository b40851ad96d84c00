"""Networks from TOML: what is read, and what is refused in which words."""

import pytest

from emulator import datafile
from emulator.networks.netsim.config import JobConfig, LinkConfig, NetworkConfig, load
from switchml.errors import ConfigError

FILE = """
seed = 7
[link]
rate_bps = 1e9
loss = 0.01
[racks]
hosts = 2
[switch]
slots = 1024
[[jobs]]
name = "a"
workers = 2
size_bytes = 4096
late_ranks = {1 = 0.5}
[[jobs]]
workers = 3
backend = "ring"
hosts = [4, 0, 2]
[slow_hosts]
0 = {rate_bps = 1e6}
"""


def test_a_file_becomes_a_network(tmp_path):
    (tmp_path / "n.toml").write_text(FILE)
    config = load(tmp_path / "n.toml")
    assert config.seed == 7 and config.link == LinkConfig(rate_bps=1e9, loss=0.01)
    assert config.jobs[0] == JobConfig(name="a", workers=2, size_bytes=4096, late_ranks={1: 0.5})
    assert config.placement() == [(5, 6), (4, 0, 2)] and config.hosts == 7
    assert config.link_of(0).rate_bps == 1e6 and config.link_of(0).loss == 0.01 and config.link_of(1) == config.link
    assert config.slots_of_jobs() == [1024, 0]


@pytest.mark.parametrize(("table", "message"), [
    ({}, "a network without jobs"),
    ({"jobs": [{"worker": 2}]}, r"jobs\[0\]: unknown key 'worker'; did you mean workers"),
    ({"jobs": [{"workers": "two"}]}, r"jobs\[0\], workers: expected a whole number, not 'two'"),
    ({"jobs": [{"size_bytes": 6}]}, "multiple of 4"), ({"jobs": [{"slots": 3}]}, "power of two"),
    ({"jobs": [{"backend": "mpi"}]}, "expected one of switchml, ring"),
    ({"jobs": [{"wire": "fp16"}]}, "expected one of int32, int16, int8"),
    ({"jobs": [{"payload_bytes": 512}]}, "expected one of 256, 1024"),
    ({"jobs": [{"workers": 2, "hosts": [1]}]}, "expected 2 hosts, one a rank"),
    ({"jobs": [{"workers": 2, "hosts": [1, 1], "backend": "ring"}]}, "expected 2 different hosts"),
    ({"jobs": [{"workers": 2, "late_ranks": {"2": 1.0}}]}, "expected ranks 0 to 1"),
    ({"jobs": [{"late_ranks": {"x": 1.0}}]}, "keys are numbers"),
    ({"jobs": [{}], "racks": {}}, "racks"), ({"jobs": [{}], "slow_hosts": {"9": {}}}, "host 9: expected 0 to 3"),
    ({"jobs": [{}], "links": {}}, "unknown key 'links'"),
    ({"jobs": [{"slots": 64}] * 3, "switch": {"slots": 128}}, "job 2: 0 of the switch's 128 slots are free"),
    ({"jobs": [{"density": 0.1}]}, "density = 0.1: .*expected block"),
    ({"jobs": [{"block": 256, "overlap": "some"}]}, "overlap = 'some'"),
    ({"jobs": [{"block": 256, "backend": "ring"}]}, "rings and other collectives send zeros"),
])  # fmt: skip
def test_nonsense_is_refused_by_name(table, message):
    with pytest.raises(ConfigError, match=message):
        datafile.build(NetworkConfig, table)


def test_files_that_can_not_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "n.toml").write_text("jobs = [")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(tmp_path / "n.toml")
