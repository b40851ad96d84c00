"""`switchml mininet`: the examples of scripts/experiments at small sizes, captures, what is refused, what is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scapy.utils import rdpcap

from emulator.lab.bench.mininet import machine
from emulator.lab.bench.mininet.experiments import FLAT, RING, TREE, MininetPlan, cases, check
from switchml.errors import ConfigError
from switchml.protocol import sizes
from switchml.scapy_layers import SwitchMLv2
from tests.support.html_pages import read_page

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "scripts" / "experiments"
SMALL = ("--size", "64K", "--repeats", "1", "--warmup", "0")
RATE = ("--rate", "20mbit")  # without it a network of its own is built first, to find one: in `test_scaling`
DEADLINE_S = 280


@pytest.fixture
def mininet(mininet):
    pytest.importorskip("torch")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}


def run(*command: str, cwd: Path = ROOT) -> dict:
    """What it prints as JSON."""
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def example(name: str, folder: Path, *options: str) -> dict[str, list[dict]]:
    """Run one; its rows by series."""
    rows = run(str(EXAMPLES / name), *SMALL, "--json", *options, cwd=folder)["rows"]
    return {series: [row for row in rows if row["series"] == series] for series in {row["series"] for row in rows}}


@pytest.mark.root
@pytest.mark.slow
def test_scaling(mininet, tmp_path):
    report = example("scaling", tmp_path, "--hosts", "3")
    assert [row["hosts"] for row in report["p4"]] == [row["hosts"] for row in report[RING]] == [2, 3]
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.root
@pytest.mark.slow
def test_loss(mininet, tmp_path):
    report = example("loss", tmp_path, *RATE, "--hosts", "2", "--loss", "0.05", "--plot", "loss.html")
    software = report["software"]
    assert [row["loss"] for row in software] == [0, 0.001, 0.01, 0.02, 0.05]
    assert len({row["checksum"] for row in software}) == 1, "a loss has changed a sum"
    assert software[-1]["retransmitted"] > 0 and sum(software[-1]["lost"].values()) > 0
    assert "software" in read_page(tmp_path / "loss.html")


@pytest.mark.root
@pytest.mark.slow
def test_slots(mininet, tmp_path):
    rows = example("slots", tmp_path, *RATE, "--hosts", "2", "--delay", "5ms")["p4"]
    assert [row["slots"] for row in rows] == [2, 4, 8, 16, 32, 64, 128]
    # 64 packets, two at a time, take 32 round trips of 20 ms; all at once, one. A busy machine only adds to that.
    assert all(row["seconds"] > 0.9 * 0.02 * 64 / min(row["slots"], 64) for row in rows)
    assert rows[0]["seconds"] > min(row["seconds"] for row in rows if row["slots"] >= 32)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("loss", ["0", "0.02"])
def test_two_racks(mininet, tmp_path, loss):
    report = example("two-racks", tmp_path, *RATE, "--hosts", "4", "--loss", loss)
    (tree,), (flat,) = report[TREE], report[FLAT]
    assert tree["checksum"] == flat["checksum"], "racks that aggregate must give the same bits"
    assert tree["racks"] == 2
    if loss == "0" and not tree["retransmitted"] and not flat["retransmitted"]:
        assert tree["sent_bytes"]["trunks up"] < 0.7 * flat["sent_bytes"]["trunks up"]


@pytest.mark.root
@pytest.mark.slow
def test_train(mininet, tmp_path):
    pytest.importorskip("torch")
    report = run(str(EXAMPLES / "train"), "--json", "--hosts", "2", "--steps", "3", cwd=tmp_path)
    assert report["transport"] == "udp" and report["packets"]["received"] > 0
    assert report["max_param_diff"] < 1e-6
    assert (tmp_path / "train.png").exists()


@pytest.mark.root
@pytest.mark.slow
def test_fsdp_over_two_racks(mininet, tmp_path):
    pytest.importorskip("torch")
    digests = set()
    for network in (["--racks", "1"], ["--racks", "2"], ["--racks", "2", "--loss", "0.01"]):
        options = ["--experiment", "train", "--parallel", "fsdp", "--hosts", "4", "--steps", "4", *network]
        report = run(sys.executable, "-m", "switchml", "mininet", *options, *RATE, "--json", cwd=tmp_path)
        digests.add(report["params_sha256"])
    assert len(digests) == 1, "racks that aggregate must give the same bits"


@pytest.mark.root
@pytest.mark.slow
def test_simple_switch_and_a_capture(mininet, require_program, tmp_path):
    require_program("simple_switch")
    require_program("tcpdump")
    report = example("simple-switch", tmp_path)
    assert report["bmv2"][0]["seconds"] > 0
    packets = [packet[SwitchMLv2] for packet in rdpcap(str(tmp_path / "h1.pcap")) if SwitchMLv2 in packet]
    assert any(packet.is_result for packet in packets) and any(not packet.is_result for packet in packets)
    assert all(len(packet.values) == 256 for packet in packets)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays(mininet, number, as_on_a_terminal):
    command = [sys.executable, "-m", "switchml", "mininet", "--aggregator", "none", "--hosts", "2", "--repeats", "1000"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    processes = []
    for line in process.stderr:  # the network's own processes come first, then those of ranks
        if "repeat " in line and len(processes := children_of(process.pid)) > 3:
            break
    assert len(processes) > 3
    process.send_signal(number)
    process.stderr.close()
    assert process.wait(60) == (130 if number == signal.SIGINT else -9)
    give_up_at = time.monotonic() + 60
    while alive(processes):
        assert time.monotonic() < give_up_at, alive(processes)
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    report = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            report += [child, *children_of(child)]
    return report


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


# Plans


def test_slots_for_the_link():
    assert MininetPlan(rate_bps=1e8).slots_for_the_link == 64  # 58 packets in 5 ms
    assert MininetPlan(rate_bps=1e8, delay_s=0.01).slots_for_the_link == 1024
    assert MininetPlan(rate_bps=1e5).slots_for_the_link == 2
    assert {case.slots for case in cases(MininetPlan(aggregator="bmv2", rate_bps=1e9))} >= {32}


def test_cases_share_networks():
    def networks(**about):
        return len(MininetPlan(**about).layouts())

    assert networks(experiment="scaling", hosts=5) == 2
    assert networks(experiment="slots") == 1
    assert networks(experiment="loss", aggregator="software") == 4
    assert [case.series for case in cases(MininetPlan(aggregator="none"))] == [RING]


@pytest.mark.parametrize(("about", "says"), [
    ({"hosts": 33}, "33 hosts: expected 1 to 32"),
    ({"size_bytes": 10}, "multiple of 4"),
    ({"loss": 1.5}, "at least 0 and less than 1"),
    ({"rate_bps": 1}, "100 kbit/s"),
    ({"experiment": "two-racks", "aggregator": "software"}, "p4 or bmv2"),
    ({"experiment": "two-racks", "hosts": 2, "racks": 3}, "3 racks for 2 hosts"),
    ({"experiment": "train", "aggregator": "software", "racks": 2}, "p4 or bmv2"),
    ({"experiment": "loss", "racks": 2}, "2 racks for 4 hosts with --experiment loss: expected 1 to 1"),
    ({"experiment": "slots", "aggregator": "none"}, "it needs one"),
])  # fmt: skip
def test_plans_that_make_no_sense(about, says):
    with pytest.raises(ConfigError, match=says):
        MininetPlan(**about)


def test_links_that_there_are_not():
    with pytest.raises(ConfigError, match="no such link; expected one of h1-s1"):
        check(MininetPlan(captures=(("h9-s1", Path("x.pcap")),)))


def test_rates_are_those_that_processors_keep_up_with():
    assert [machine.rate_for(goodput / machine.SHARE) for goodput in (5e5, 1.1e6, 4.9e6, 5.1e6, 3e7, 9e9)] == [
        1e6, 1e6, 2e6, 5e6, 2e7, 1e8,
    ]  # fmt: skip


def test_bounds_of_links():
    """By hand: 1 MiB are 1024 packets of 1024 bytes, and the headers that tbf counts."""
    plan = MininetPlan(size_bytes=1 << 20, rate_bps=1e7)
    packet_s = 8 * (1024 + sizes.FRAME_OVERHEAD_BYTES) / 1e7
    ours = machine.bound_s(plan, "p4", workers=4, slots=64, link_loss=0.0, racks=1)
    assert ours == pytest.approx((1023 + 2) * packet_s)
    windows = machine.bound_s(plan, "p4", workers=4, slots=1, link_loss=0.0, racks=1)
    assert windows == pytest.approx((1023 + 1) * 2 * packet_s)
    ring = machine.bound_s(plan, RING, workers=4, slots=0, link_loss=0.0, racks=1)
    assert ring == pytest.approx(1.5 * 8 * 2**20 / 1e7 / sizes.TCP_SHARE)


def test_a_warning_where_processors_were_the_limit():
    rows = [machine.Timed("p4, 4 hosts", 2.0, 1.0, 1.9), machine.Timed("ring, 4 hosts", 1.1, 1.0, 0.4)]
    (line,) = machine.warnings(rows, 1e8)
    assert line.startswith("1 of 2 rows took over 1.3 times what their links take, at most 2.0 times (p4, 4 hosts; 1.9")
    assert list(machine.warnings(rows[1:], 1e8)) == []
