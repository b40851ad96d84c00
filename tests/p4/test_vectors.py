"""Every scenario of tests/vectors through the P4 program: on both engines of our switch, and on simple_switch."""

import functools
from itertools import count

import pytest

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from switchml.control.p4.tables import OUTCOMES, RegisterPlace, job_counters
from switchml.counters import COUNTERS
from tests.peers import simple_switch
from tests.support import p4_programming
from tests.support.bmv2_engines import switch_on
from tests.support.p4_frames import read_udp
from tests.support.p4_jobs import COMPILED, PORTS, Job, fits, program, read, switch_itself
from tests.support.vectors_io import Scenario, load_all
from tests.switchml.protocol.test_vectors import compiled

VARIANTS = ("switchml", "switchml_lanes")
ROWS = {"switchml": 65536, "switchml_lanes": 32768}
LANES_PAYLOAD_BYTES = 256
generations = count(1)
SCENARIOS = [scenario for scenario in load_all() if fits(scenario)]
CASES = [
    pytest.param(scenario, variant, id=f"{scenario.name}-{variant}")
    for scenario in SCENARIOS
    for variant in VARIANTS
    if variant == "switchml" or (scenario.payload_bytes == LANES_PAYLOAD_BYTES and not scenario.has_ops)
]


@pytest.fixture(scope="module")
def switches():
    """`switches(variant, engine)`: one switch each for all scenarios, as jobs that come and go."""

    @functools.cache
    def running(variant: str, engine: type):
        switch = switch_on(engine, program(variant))
        p4_programming.apply(switch.state, switch_itself())
        return switch

    return running


def expected_counters(scenario: Scenario) -> list[dict[str, int]]:
    """What the pool counts."""
    pool = compiled(scenario)
    for step in scenario.steps:
        pool.receive(step.rank, step.data)
    return [dict(zip(COUNTERS, rank.tolist(), strict=True)) for rank in pool.counters]


def without_sent(ranks) -> list[dict[str, int]]:
    """The pool leaves it to others to count what was sent."""
    return [{name: n for name, n in rank.items() if name not in ("sent_packets", "sent_bytes")} for rank in ranks]


@pytest.mark.parametrize("engine", [Interpreter, CompiledEngine], ids=["interpreter", "compiled"])
@pytest.mark.parametrize(("scenario", "variant"), CASES)
def test_scenario(scenario, variant, engine, switches):
    check_scenario(scenario, switches(variant, engine))


@pytest.mark.parametrize(
    "scenario", [pytest.param(s, id=s.name) for s in SCENARIOS if s.payload_bytes == 1024 and s.protocol == 2]
)
def test_1024_bytes_with_a_register_a_lane(scenario, switches):
    """On the interpreter alone: 256 lanes of their own take the compiled engine two minutes to get ready. Protocol 1
    has more slots than this variant."""
    check_scenario(scenario, switches("switchml_lanes_1024", Interpreter))


def check_scenario(scenario, switch):
    state = switch.state
    job = Job(scenario, RegisterPlace(row=1024, worker=7, group=5, generation=next(generations)))
    p4_programming.apply(state, job.changes())
    try:
        replies = [0] * scenario.workers
        for step in scenario.steps:
            expected = job.replies(step)
            assert sorted(read(switch.receive(*job.frame(step)))) == sorted(expected), step.label
            for rank in range(scenario.workers):
                replies[rank] += sum(reply.dst == job.end(rank) for _, reply in expected)
        cells = [state.counter("outcomes").read(OUTCOMES * 7 + i) for i in range(OUTCOMES * scenario.workers)]
        counted = job_counters(job.spec, cells)
        assert without_sent(counted) == without_sent(expected_counters(scenario))
        assert [rank["sent_packets"] for rank in counted] == replies
    finally:
        p4_programming.undo(state, job.changes())


def together(scenarios: list[Scenario], n_rows: int) -> list[list[Job]]:
    """Scenarios as jobs that fit a switch of so many rows at once, in as few runs as a simple division gives."""
    runs: list[list[Job]] = [[]]
    row, worker = 0, 1
    for number, scenario in enumerate(scenarios):
        job = Job(scenario, RegisterPlace(row, worker, 2 + number, 1), number)
        if row + job.rows > n_rows:
            runs.append([])
            job = Job(scenario, RegisterPlace(0, 1, 2, 1), number)
            row, worker = 0, 1
        runs[-1].append(job)
        row, worker = row + job.rows, worker + scenario.workers
    return runs


@pytest.mark.slow
@pytest.mark.needs("simple_switch", "simple_switch_CLI")
@pytest.mark.parametrize("variant", VARIANTS)
def test_scenarios_on_simple_switch(variant, require_program):
    """All scenarios, one after the other; as many of them as there is room for are jobs of one switch."""
    programs = require_program("simple_switch"), require_program("simple_switch_CLI")
    scenarios = [scenario for scenario, its_variant in (case.values for case in CASES) if its_variant == variant]
    for jobs in together(scenarios, ROWS[variant]):
        steps = [(job, step) for job in jobs for step in job.scenario.steps]
        sent, _, counted = simple_switch.run(
            *programs,
            COMPILED / f"{variant}.json",
            p4_programming.commands([switch_itself(), *(job.changes() for job in jobs)]),
            [job.frame(step) for job, step in steps],
            PORTS,
            [f"counter_read outcomes {OUTCOMES * job.place.worker + i}" for job in jobs for i in range(OUTCOMES)],
        )
        expected: dict[int, list] = {port: [] for port in range(PORTS)}
        for job, step in steps:
            for port, datagram in job.replies(step):
                expected[port].append((step.label, datagram))
        for port, frames in sent.items():
            answers = [read_udp(frame) for frame in frames]
            for (label, datagram), reply in zip(expected[port], answers, strict=False):
                assert reply == datagram, label
            assert len(answers) == len(expected[port])
        cells = [simple_switch.counted(line) for line in counted.splitlines() if "outcomes[" in line]
        for number, job in enumerate(jobs):
            rank_0 = job_counters(job.spec, cells[OUTCOMES * number :][:OUTCOMES] + [(0, 0)] * OUTCOMES * 31)[0]
            assert without_sent([rank_0]) == without_sent(expected_counters(job.scenario)[:1]), job.scenario.name
