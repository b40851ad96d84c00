"""p4/tna through the scenarios of tests/vectors on the model of a Tofino, where that and its compiler are on PATH. What
the program leaves out is listed in p4/README.md."""

import functools
import re

import pytest

from switchml.control.p4.tables import RegisterPlace
from tests.support import tofino
from tests.support.p4_jobs import Job, fits, read
from tests.support.tofino_model import TOOLS, image
from tests.support.vectors_io import Scenario, load_all

ROW = {1: 0, 2: 1024}
DIFFERENT = {
    "v2-isn-zero": "the round before the first",
    "v2-mixed": "OVERFLOW",
    "v2-overflow": "OVERFLOW",
    "v2-seq-wrap": "a round that begins early",
    "v2-window": "the round before the first, and a round that begins early",
    "v2-worked-bytes": "OVERFLOW",
}
"""Scenarios with what p4/README.md says is different here."""
SCENARIOS = [scenario for scenario in load_all() if fits(scenario)]


def left_out(scenario: Scenario) -> bool:
    """Narrow lanes, sparse and addressed packets, and what is different."""
    packets = [step.fields for step in scenario.steps]
    is_other = any("words" in fields or "reach" in fields for fields in packets)
    return bool(scenario.wire) or is_other or scenario.name in DIFFERENT


@pytest.fixture(scope="module")
def images(require_program, tmp_path_factory):
    compiler, assembler, _ = map(require_program, TOOLS)
    return functools.cache(
        lambda protocol: tofino.model_image(protocol, tmp_path_factory.mktemp("tna") / "p4", compiler, assembler)
    )


@pytest.mark.needs(*TOOLS)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", [pytest.param(s, id=s.name) for s in SCENARIOS if not left_out(s)])
def test_scenario(scenario, images, require_program, tmp_path):
    job = Job(scenario, RegisterPlace(row=ROW[scenario.protocol], worker=7, group=5, generation=1), number=3)
    harness = require_program("tofino_test_harness")
    with tofino.on_the_model(harness, images(scenario.protocol), tmp_path, job) as chip:
        for step in scenario.steps:
            left = [(port, tofino.unpadded(frame)) for port, frame in chip.receive(job.frame(step))]
            assert sorted(read(left)) == sorted(job.replies(step)), step.label


@pytest.mark.needs("p4c-barefoot", "bfas")
def test_protocol_1_fits_a_tofino(require_program, tmp_path):
    """Its stages, and an ALU for each register: 32 pairs of lanes, bitmaps, counts and two exponents."""
    compiler, assembler, _ = TOOLS
    program = tofino.P4 / "tna" / "switchml.p4"
    image(program, tmp_path, require_program(compiler), require_program(assembler), "-DPROTOCOL=1")
    placed = (tmp_path / "pipe" / "switchml.bfa").read_text()
    assert {int(stage) for stage in re.findall(r"^stage (\d+) ingress:", placed, re.MULTILINE)} <= set(range(12))
    assert len(re.findall(r"^  stateful ", placed, re.MULTILINE)) == 32 + 4
    assert (tmp_path / "tofino.bin").stat().st_size > 0
