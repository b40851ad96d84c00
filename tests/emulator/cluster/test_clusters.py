"""Cluster files: the built-in ones, users' files that extend them, and what is wrong with a file."""

from pathlib import Path

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.codecs import codecs
from emulator.traces.whatif.codec_costs import measure
from switchml.codecs import CODECS
from switchml.errors import ConfigError


@pytest.mark.parametrize("name", clusters.clusters())
def test_built_in_clusters(name):
    found = clusters.load(name)
    assert found.inside.source and found.between.source and found.title
    assert found.device.memory_bytes > 0


def test_every_codec_has_its_costs():
    """What adds up, adds up here; what goes over the wire is what ours send, but for indices, which ours code."""
    assert {name.partition(":")[0] for name in codecs()} == (set(CODECS) - {"none"}) | {"int8"}
    data_dependent = {"threshold", "sidco", "adaq", "inceptionn", "szx"}
    measured = measure(set(codecs()) - {"int8"} - data_dependent, ranks=8)
    for name, one in codecs().items():
        assert 0 < one.bits < 32 and one.source
        if name in measured:
            ours = measured[name]
            assert one.gathers == ours.gathers, name
            assert one.bits == pytest.approx(32 * ours.wire_share, rel=0.05 if one.bits > 0.64 else 0.7), name
            assert one.error == pytest.approx(ours.error, rel=0.1), name


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


def test_a_file_that_changes_is_read_again(tmp_path, monkeypatch):
    """In a notebook; and so is another file of the same name."""
    gpus = []
    for folder, count in (("a", 4), ("b", 5), ("b", 16)):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        Path("mine.toml").write_text(f'extends = "a100-dgx"\naccelerators_per_node = {count}\n')
        gpus.append(clusters.load("mine.toml").accelerators_per_node)
    assert gpus == [4, 5, 16] and clusters.load("mine.toml") is clusters.load("mine.toml")


@pytest.mark.parametrize(("text", "message"), [
    ('extends = "a100-dgx"\nacelerator = "h100"', "did you mean accelerator"),
    ('extends = "a100-dgx"\naccelerator = "h900"', "unknown accelerator 'h900'; did you mean h"),
    ('extends = "a100-dgx"\n[between]\nkind = "leafspine"', "did you mean leaf-spine"),
    ('extends = "a100-dgx"\n[between]\nport_bps = "fast"', "expected a number, not 'fast'"),
    ('title = "x"', "lacks accelerator"), ("title = ", "is not TOML"), ('extends = "mine"', "extends itself"),
    ('extends = "a100-dgx"\n[constants]\nspeed = 1.0', "unknown constant"),
])  # fmt: skip
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


def test_a_file_describes_an_accelerator_of_its_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "h100-dgx"\n[accelerator]\ntitle = "half an H100"\nflops = { bf16 = 500e12 }\n')
    mine, dgx = clusters.load(str(path)), clusters.load("h100-dgx")
    assert mine.device.peak("bf16") == 500e12 and mine.device.title == "half an H100"
    assert mine.device.memory_bytes == dgx.device.memory_bytes
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('extends = "h100-dgx"\n[accelerator]\nextends = "v100-16g"\nwats = 3\n')
    with pytest.raises(ConfigError, match="did you mean watts"):
        clusters.load(str(wrong))


def test_a_cube_mesh_has_fewer_rings_for_smaller_groups():
    """One ring of two GPUs, six of eight: rates of an all-reduce of 256 MiB, as nccl-tests count them."""
    from emulator.cluster import collectives
    from emulator.cluster.topology import GroupLayout

    def busbw(ranks):
        seconds = collectives.cost(
            clusters.load("v100-dgx1"), "all_reduce", 2**28, GroupLayout(ranks, 1, ranks, 1)
        ).seconds
        return 2 * (ranks - 1) / ranks * 2**28 / seconds

    assert busbw(2) == pytest.approx(22.5e9, rel=0.02)
    assert busbw(4) == pytest.approx(85.4e9, rel=0.02)
    assert busbw(8) == pytest.approx(133.2e9, rel=0.02)
