"""When it pays to sum in the network: the same costs as everywhere, side by side."""

import json

import pytest
from click.testing import CliRunner

from emulator.cluster import breakeven
from emulator.cluster import cluster as clusters
from emulator.cluster.collectives import cost
from emulator.cluster.innetwork import Streaming
from emulator.cluster.topology import place
from emulator.surface.cli.collectives import collectives
from switchml.errors import ConfigError

P100, DGX, ETHERNET = (clusters.load(name) for name in ("p100-100g", "h100-dgx", "h100-ethernet"))


def test_one_comparison_is_what_collectives_cost():
    row, where = breakeven.compare(DGX, 64, 1 << 20), place(64, 1, 8)
    assert row.by_hosts_s == {
        name: cost(DGX, "all_reduce", 1 << 20, where, name).seconds for name in breakeven.BY_HOSTS
    }
    assert row.by_switches_s == cost(DGX, "all_reduce", 1 << 20, where, "switchml", row.hierarchy).seconds
    assert row.speedup == pytest.approx(min(row.by_hosts_s.values()) / row.by_switches_s)


def test_half_precision_in_lanes_of_four_bytes_gains_nothing():
    """An element takes a lane: 64 MiB of bfloat16 are 128 MiB on the wire, and 64 MiB in int16 lanes."""
    full = breakeven.compare(P100, 64, 128 << 20)
    wide = breakeven.compare(P100, 64, 64 << 20, dtype="bfloat16")
    narrow = breakeven.compare(P100, 64, 64 << 20, Streaming(wire_bytes=2.0), "bfloat16")
    assert wide.by_switches_s == full.by_switches_s
    assert wide.speedup < 1 < narrow.speedup == pytest.approx(2 * wide.speedup, rel=0.01)


def test_leaves_add_up_what_oversubscribed_uplinks_would_carry():
    rows = [breakeven.compare(breakeven.changed(ETHERNET, oversubscription=share), 512, 1 << 30) for share in (1, 8)]
    assert rows[0].by_switches_s == rows[1].by_switches_s
    assert rows[1].by_hosts_s["tree"] > 4 * rows[0].by_hosts_s["tree"]


def test_a_single_switch_has_no_leaves():
    with pytest.raises(ConfigError, match="p100-100g is a single-switch"):
        breakeven.changed(P100, oversubscription=2.0)


def test_the_command(tmp_path):
    arguments = ["--cluster", "p100-100g,h100-dgx", "--gpus", "8,64", "--sizes", "64K,1M", "--rate", "50gbit"]
    result = CliRunner().invoke(collectives, [*arguments, "--json", "--plot", str(tmp_path / "when.svg")])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert [(row["cluster"], row["gpus"], row["size_bytes"]) for row in rows[:3]] == [
        ("p100-100g", 8, 1 << 16),
        ("p100-100g", 8, 1 << 20),
        ("p100-100g", 64, 1 << 16),
    ]
    slower = breakeven.compare(breakeven.changed(P100, 50e9), 8, 1 << 16)
    assert rows[0]["speedup"] == pytest.approx(slower.speedup)
    assert "<svg" in (tmp_path / "when.svg").read_text()
