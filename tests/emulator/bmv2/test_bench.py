"""`switchml bench switch`: that it measures the programs it knows, and says what it can't."""

import json

import pytest
from click.testing import CliRunner

from emulator.bmv2.bench import PROGRAMS, WORKLOADS, measure
from emulator.bmv2.state import State
from switchml.commands.bench_switch import switch as command


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_frame_of_a_workload_is_served(program, name):
    state = State(program(name))
    frames = WORKLOADS[name](state)
    assert len(frames) >= 1000 and all(len(data) >= 60 for _, data in frames)


def test_measure():
    found = measure(PROGRAMS / "l3.json", seconds=0.05).to_json()
    assert found["program"] == "l3" and min(found["engine_pps"], found["reference_pps"]) > 0
    assert found["wire_pps"] is None and found["simple_switch_pps"] is None


def test_command_prints_json_lines():
    path = PROGRAMS / "exact.json"
    done = CliRunner().invoke(command, ["--program", str(path), "--seconds", "0.1", "--json"])
    assert done.exit_code == 0, done.output
    wanted = {"program", "engine_pps", "reference_pps", "wire_pps", "simple_switch_pps", "ratio"}
    assert set(json.loads(done.stdout)) == wanted
