"""What is emulated, from the environment; costs."""

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.collectives import cost
from emulator.cluster.topology import GroupLayout
from emulator.peers.clock import Clock
from emulator.peers.report import print_report
from emulator.peers.settings import PeerSettings, from_environment
from emulator.peers.world import Costs
from switchml.errors import ConfigError


def test_the_environment_says_what_the_settings_say():
    settings = PeerSettings(
        world=64, real=(0, 5), cluster="h100-dgx", network="switchml", clock="virtual", values="noise", noise=0.25,
        slow={3: 1.5, 9: 2.0}, jitter=0.1, loss=0.01, slots=64, jobs=2, compute_scale=0.5, quiet=True,
    )  # fmt: skip
    assert from_environment(settings.environment()) == settings
    assert PeerSettings(world=2).environment() == {"SWITCHML_EMULATED_WORLD": "2"}


@pytest.mark.parametrize(("variables", "message"), [
    ({}, "SWITCHML_EMULATED_WORLD is not set"),
    ({"WORLD": "many"}, "SWITCHML_EMULATED_WORLD is 'many'; expected an integer"),
    ({"WORLD": "0"}, "world is 0; expected 1 to 1,000,000"),
    ({"WORLD": "4", "CLOK": "wall"}, "did you mean SWITCHML_EMULATED_CLOCK"),
    ({"WORLD": "4", "CLOCK": "sundial"}, "unknown clock"),
    ({"WORLD": "4", "CLUSTER": "h100-dxg"}, "did you mean h100-dgx"),
    ({"WORLD": "4", "SLOW": "7=2"}, "slow names rank 7; the world has ranks 0 to 3"),
    ({"WORLD": "4", "SLOW": "fast"}, "expected RANK=FACTOR"), ({"WORLD": "4", "REAL": "0,4"}, "real ranks"),
    ({"WORLD": "4", "LOSS": "0.1"}, "concern the aggregating switch"),
    ({"WORLD": "4", "VALUES": "recorded"}, "need the folder of a recorded run"),
    ({"WORLD": "4", "COMPUTE_SCALE": "0"}, "compute_scale is 0"),
])  # fmt: skip
def test_nonsense_is_refused(variables, message):
    with pytest.raises(ConfigError, match=message):
        from_environment({f"SWITCHML_EMULATED_{name}": text for name, text in variables.items()})


def test_nobody_is_faster_than_the_machine_in_wall_clock_time():
    with pytest.raises(ConfigError, match="use the virtual clock"):
        Clock(is_virtual=False, scale=0.5)


def test_prices_are_the_cluster_s():
    costs = Costs(PeerSettings(world=64, cluster="h100-dgx", network="ring"))
    machine = clusters.load("h100-dgx")
    inside = cost(machine, "all_reduce", 1e6, GroupLayout(8, 1, 8, 1), "ring").seconds
    assert costs.seconds("all_reduce", 1e6, tuple(range(8))) == inside
    rail = cost(machine, "all_gather", 1e6, GroupLayout(8, 8, 1, 8)).seconds
    assert costs.seconds("all_gather", 1e6, tuple(range(0, 64, 8))) == rail
    assert costs.seconds("p2p", 1e6, (3,)) == 0.0


def test_loss_and_few_slots_cost_time():
    def seconds(**kwargs):
        settings = PeerSettings(world=16, cluster="p100-100g", network="switchml", **kwargs)
        return Costs(settings).seconds("all_reduce", 1e8, tuple(range(16)))

    assert seconds() < seconds(slots=8) < seconds(slots=4)
    assert seconds() < seconds(loss=1e-4) < seconds(loss=1e-3)
    assert seconds(slots=8) < seconds(slots=8, jobs=2)


def test_a_virtual_clock_stands_still_in_calls_and_jumps_over_waits():
    clock = Clock(is_virtual=True, scale=1000.0)
    first = clock.lap()
    assert first > 0 and clock.now_s() >= first
    clock.reach(50.0)
    assert clock.now_s() >= 50.0
    clock.skip()
    before = clock.lap()
    clock.reach(1.0)  # has passed
    assert clock.now_s() >= 50.0 + before


def test_a_report_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    parts = {"compute": 0.01, "exposed communication": 0.004, "waiting for peers": 0.0}
    collectives = {"all_reduce": {"calls": 40, "bytes": 4e6, "seconds": 0.1}}
    report = {"world_size": 64, "real_ranks": [0, 1], "cluster": "cpu-10g", "clock": "virtual", "iterations": 40}
    report |= {"counted_iterations": 19, "iteration_s": 0.014, "parts": parts, "collectives": collectives}
    print_report(report | {"assumptions": ["collectives cost what the cluster's closed forms say; " * 3]}, err=True)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80 and any(line.startswith("iteration") and "100.0" in line for line in lines)
