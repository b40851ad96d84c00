"""`switchml bench switch`: that it measures the programs it knows, and says what it can't."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.lab.bench.switch import changes as bench_changes
from emulator.lab.bench.switch import start as bench_start
from emulator.lab.bench.switch import wire as bench_wire
from emulator.lab.bench.switch.engines import PROGRAMS, WORKLOADS, alone, default_programs, measure, workload
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.state import State
from emulator.surface.cli.bench.switch import switch as command
from switchml.errors import ConfigError


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_frame_of_a_workload_is_served(name):
    state = State(loader.load(PROGRAMS / f"{name}.json"))
    frames = WORKLOADS[name](state)
    assert len(frames) >= 1000 and all(len(data) >= 60 for _, data in frames)


def test_command_prints_json_lines():
    path = Path(__file__).parents[3] / "programs" / "exact.json"
    done = CliRunner().invoke(command, ["--program", str(path), "--seconds", "0.1", "--json"])
    assert done.exit_code == 0, done.output
    expected = {"program", "engine_pps", "reference_pps", "wire_pps", "simple_switch_pps", "ratio"}
    assert set(json.loads(done.stdout)) == expected


STF = """
add routes dst:0x0a000000/8 route(next_hop:0x020000000001, port:3)
packet 0 {frame}
expect 1
"""


def l3_frame():
    return WORKLOADS["l3"](State(loader.load(PROGRAMS / "l3.json")))[0][1]


@pytest.fixture
def stf_path(tmp_path):
    path = tmp_path / "l3.stf"
    path.write_text(STF.format(frame=l3_frame().hex()))
    return path


def test_entries_and_packets_of_an_stf_file(stf_path):
    state = State(loader.load(PROGRAMS / "l3.json"))
    frames = workload(PROGRAMS / "l3.json", stf_path)(state)
    assert len(frames) >= bench_wire.BATCH and set(frames) == {(0, l3_frame())}
    (call,) = bench_wire.calls(state)
    assert call["table"].endswith("routes") and call["data"] == [bytes.fromhex("020000000001"), b"\0\1"]  # port 3 % 2
    assert call["match"][0].lpm.key == bytes([10, 0, 0, 0]) and call["match"][0].lpm.prefix_length == 8


@pytest.mark.parametrize(("text", "message"), [
    ("add routes dst:0x0a000000/8 nonsense()", r"line 1: add: the program has no action"),
    ("setdefault routes route()", r"line 1: setdefault: only add, packet"), ("packet 0 0g", r"line 1: packet: "),
    ("expect 1", r"there is no packet in it"),
])  # fmt: skip
def test_an_stf_file_that_cannot_be_measured(tmp_path, text, message):
    path = tmp_path / "bad.stf"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        workload(PROGRAMS / "l3.json", path)(State(loader.load(PROGRAMS / "l3.json")))


def test_programs_come_with_the_package():
    assert [path.stem for path in default_programs()] == list(WORKLOADS)
    assert all(path.is_file() and not path.is_symlink() for path in default_programs())
    assert bench_start.largest().stem == "agg_unrolled_256"


def test_start():
    """Without any compiled code the first packet comes before it; with it, both are soon there."""
    result = bench_start.measure(PROGRAMS / "agg_wide_64.json")
    assert 0 < result.cold_first_packet_s < result.cold_full_s
    assert 0 < result.warm_first_packet_s < result.warm_full_s < result.cold_full_s


def test_changes():
    rows = [row.to_json() for row in bench_changes.measure(PROGRAMS / "l3.json", sizes=(50,))]
    assert [(row["engine"], row["entries"]) for row in rows] == [("compiled", 50), ("interpreted", 50)]
    assert all(min(row["insert_us"], row["gap_ms"]) > 0 for row in rows)


@pytest.mark.root
def test_a_switch_that_is_not_there(require_program):
    require_program("ip")
    with pytest.raises(ConfigError, match="there is no program 'nonsense'"):
        measure(PROGRAMS / "l3.json", seconds=0.05, against="nonsense")


@pytest.mark.root
def test_on_the_wire(require_program):
    require_program("ip")
    state = State(loader.load(PROGRAMS / "l3.json"))
    frames = [alone("l3", data) for _, data in WORKLOADS["l3"](state)]
    assert bench_wire.pps(bench_wire.OURS, PROGRAMS / "l3.json", bench_wire.calls(state), frames, 0.2) > 0
