"""Every scenario of tests/vectors through the P4 program: on both engines of our switch, and on simple_switch."""

from pathlib import Path

import p4_programming
import pytest
from bmv2_engines import switch_on
from p4_jobs import PORTS, Job, fits, read, switch_itself
from peers import simple_switch
from vectors_io import Scenario, load_all

from emulator.bmv2.engine.engine import Engine
from emulator.bmv2.interpreter.path import Interpreter
from emulator.bmv2.loader import load
from switchml.controller.p4_tables import OUTCOMES, Place, job_counters
from switchml.counters import COUNTERS
from switchml.pool import Pool, PoolV1

COMPILED = Path(__file__).parents[2] / "p4" / "compiled"
VARIANTS = ("switchml", "switchml_lanes")
ROWS = {"switchml": 65536, "switchml_lanes": 32768}
LANES_PAYLOAD_BYTES = 256
SCENARIOS = [scenario for scenario in load_all() if fits(scenario)]
COUNTED_APART = ("sent_packets", "sent_bytes")  # the pool leaves these to who sends


def takes(variant: str, scenario: Scenario) -> bool:
    return variant == "switchml" or scenario.payload_bytes == LANES_PAYLOAD_BYTES


@pytest.fixture(scope="module")
def programs():
    return {variant: load(COMPILED / f"{variant}.json") for variant in VARIANTS}


def counters(state, job: Job) -> tuple[dict[str, int], ...]:
    first = OUTCOMES * job.place.worker
    cells = [state.counter("outcomes").read(first + i) for i in range(OUTCOMES * job.scenario.workers)]
    return job_counters(job.spec, cells)


def pool_of(s: Scenario):
    if s.protocol == 1:
        return PoolV1(workers=s.workers, payload_bytes=s.payload_bytes)
    return Pool(workers=s.workers, slots=s.slots, payload_bytes=s.payload_bytes, wire=s.wire, tag=s.tag, isn=s.isn)


@pytest.mark.parametrize("engine", [Interpreter, Engine], ids=["interpreter", "compiled"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario, variant, engine, programs):
    if not takes(variant, scenario):
        pytest.skip("one register a lane: 256 bytes only")
    switch, pool = switch_on(engine, programs[variant]), pool_of(scenario)
    job = Job(scenario, Place(row=1024, worker=7, group=5))
    for changes in (switch_itself(), job.changes()):
        p4_programming.apply(switch.state, changes)
    for step in scenario.steps:
        sent = read(switch.receive(*job.frame(step)))
        assert sorted(sent) == sorted(job.replies(step)), step.label
        pool.receive(step.rank, step.data)
    for rank, counted in enumerate(counters(switch.state, job)):
        expected = dict(zip(COUNTERS, pool.counters[rank].tolist(), strict=True))
        for name in COUNTERS:
            if name not in COUNTED_APART:
                assert counted[name] == expected[name], (rank, name)
