"""`switchml bench network` as a user calls it, with tiny tensors."""

import json
import os
import subprocess

import pytest
from click.testing import CliRunner

from emulator.lab.bench.network import measure as bench
from emulator.networks.testbed.star import LinkOptions
from emulator.surface.cli.bench.network import network
from switchml.errors import ConfigError
from tests.support import commands
from tests.support.namespaces import names_of

SMALL = ("--size", "256K", "--repeats", "1", "--warmup", "0", "--rate", "100mbit")


def start(*arguments: str) -> subprocess.Popen:
    return commands.start("bench", "network", *arguments)


def run_json(*arguments: str) -> dict:
    """What it prints; none of its namespaces is left."""
    process = start(*arguments, "--json")
    try:
        out, err = process.communicate(timeout=110)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert names_of(process.pid) == []
    return json.loads(out)


@pytest.mark.parametrize(("size", "repeats", "problem"), [
    (1 << 30, 100, "the links alone need .* s for this; --time-limit allows 3,600 s"),
    (1024, 10**9, "the links alone need"),
    (1 << 50, 1, "the ranks' tensors need about 9,007,199.3 GB, but .* GB are free"),
])  # fmt: skip
def test_what_takes_too_long_is_refused_before_it_begins(size, repeats, problem):
    experiment = bench.Experiment(4, LinkOptions(1e8), size, repeats=repeats)
    bench.check_size([bench.Experiment(4, LinkOptions(1e8), 1 << 24)], 3600)
    with pytest.raises(ConfigError, match=problem):
        bench.check_size([experiment], 3600)


@pytest.mark.root
def test_beside_gloo(iproute2):
    pytest.importorskip("torch")
    report = run_json("--hosts", "2", *SMALL)
    assert (report["workers"], report["rate_bps"], report["loss"], report["size_bytes"]) == (2, 1e8, 0, 1 << 18)
    assert set(report["seconds"]) == {"switchml", "gloo"} == set(report["goodput_bps"])
    assert all(seconds > 0 for seconds in report["seconds"].values())
    assert report["ratio"] == pytest.approx(report["seconds"]["gloo"] / report["seconds"]["switchml"])
    assert report["framing_bound_bps"] == pytest.approx(1e8 * 1024 / 1076)
    assert report["fraction_of_line_rate"] == pytest.approx(report["goodput_bps"]["switchml"] / 1e8 * 1076 / 1024)
    assert report["ring_bound"] == 1
    assert report["packets"] - report["retransmitted"] >= 2 * 256
    # Every rank has sent its packets up and got as many, and nothing else of that size has used the links.
    for direction in ("up", "down"):
        assert report["sent_bytes"]["switchml"][direction] >= 2 * 256 * 1076
        assert report["sent_bytes"]["gloo"][direction] >= 2 << 18
    assert report["error"]["switchml"] < 1e-6
    assert report["lost"] == {"switchml": {"up": 0, "down": 0}, "gloo": {"up": 0, "down": 0}}


@pytest.mark.root
def test_loss_delay_and_narrow_lanes(iproute2):
    report = run_json(
        *("--hosts", "2", "--against", "none", "--loss", "0.05", "--delay", "100us", "--wire", "int8"), *SMALL
    )
    assert (report["loss"], report["delay_s"], report["wire"], report["ratio"]) == (0.05, 1e-4, "int8", None)
    assert sum(report["lost"]["switchml"].values()) > 0
    assert report["retransmitted"] > 0
    assert report["framing_bound_bps"] == pytest.approx(4e8 * 1024 / 1076)


@pytest.mark.root
def test_several_ranks_a_host(iproute2):
    """Alone each, and a host's first: in two levels half as much uses the links."""
    found = run_json("--hosts", "2", "--ranks-per-host", "2", "--against", "none", *SMALL)
    assert (found["workers"], found["ranks_per_host"], set(found["seconds"])) == (2, 2, {"switchml", "node"})
    for way in ("up", "down"):
        assert found["sent_bytes"]["switchml"][way] >= 4 * 256 * 1076
        assert 2 * 256 * 1076 <= found["sent_bytes"]["node"][way] < 4 * 256 * 1076  # of which some may be sent twice
    assert found["ratio_to_node"] == pytest.approx(found["seconds"]["switchml"] / found["seconds"]["node"])
    assert found["error"]["node"] < 1e-6


def test_without_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(network, ["--hosts", "2"])
    assert "root" in str(done.exception)


def test_bounds():
    link = LinkOptions(rate_bps=2e8)
    four = bench.Experiment(workers=4, link=link, size_bytes=1 << 24)
    assert four.framing_bound_bps == pytest.approx(190.33e6, rel=1e-4)
    assert four.ring_bound_bps == pytest.approx(191.28e6 / 1.5, rel=1e-4)
    assert bench.Experiment(workers=1, link=link, size_bytes=4).ring_bound_bps is None
    shared = bench.Experiment(workers=2, link=link, size_bytes=1 << 24, ranks_per_host=2)
    assert shared.bound_bps("node") == four.framing_bound_bps == 2 * shared.bound_bps("switchml")
    assert shared.bound_bps("gloo") == four.ring_bound_bps
    narrow = bench.Experiment(workers=4, link=link, size_bytes=1 << 24, wire="int8")
    assert narrow.framing_bound_bps == 4 * four.framing_bound_bps
    shares = {"reduce_scatter": 0.75, "all_gather": 0.75, "broadcast": 1, "fsdp": 1}  # and packets have a word more
    for collective, share in shares.items():
        moved = bench.Experiment(workers=4, link=link, size_bytes=1 << 24, collective=collective)
        assert moved.framing_bound_bps == pytest.approx(2e8 * 1024 / 1080 / share)
        ring = {"broadcast": None, "fsdp": four.ring_bound_bps}.get(collective, 2 * four.ring_bound_bps)
        assert moved.ring_bound_bps == ring
