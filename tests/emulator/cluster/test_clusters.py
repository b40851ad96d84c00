"""Cluster files: the built-in ones, users' files that extend them, and what is wrong with a file."""

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.codecs import codecs
from switchml.errors import ConfigError


@pytest.mark.parametrize("name", clusters.clusters())
def test_built_in_clusters(name):
    found = clusters.load(name)
    assert found.inside.source and found.between.source and found.title
    assert found.device.memory_bytes > 0


def test_codecs_make_gradients_smaller():
    assert all(0 < codec.bits < 32 and codec.source for codec in codecs().values())


def test_a_file_extends_a_built_in(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "a100-dgx"\nprice_per_hour = 2.5\n[between]\nport_bps = 400e9\n[constants]\ngemm_efficiency = 0.5\n'
    )
    mine, dgx = clusters.load(str(path)), clusters.load("a100-dgx")
    assert mine.name == "mine" and mine.hourly_price == 2.5
    assert mine.between.node_bytes_per_s == 2 * dgx.between.node_bytes_per_s
    assert mine.inside == dgx.inside
    assert mine.software.gemm_efficiency == 0.5 and mine.software.kernel_s == dgx.software.kernel_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "a100-dgx"\nacelerator = "h100"', "did you mean accelerator"),
        ('extends = "a100-dgx"\naccelerator = "h900"', "unknown accelerator 'h900'; did you mean h"),
        ('extends = "a100-dgx"\n[between]\nkind = "leafspine"', "did you mean leaf-spine"),
        ('extends = "a100-dgx"\n[between]\nport_bps = "fast"', "expected a number, not 'fast'"),
        ('title = "x"', "lacks accelerator"),
        ("title = ", "is not TOML"),
        ('extends = "mine"', "extends itself"),
        ('extends = "a100-dgx"\n[constants]\nspeed = 1.0', "unknown constant"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        clusters.load(str(path))


def test_a_cluster_can_be_too_small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text('extends = "a100-dgx"\nmax_nodes = 2\n')
    with pytest.raises(ConfigError, match="24 accelerators fill 3 nodes, but small has 2"):
        clusters.load(str(path)).nodes(24)
