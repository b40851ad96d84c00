"""p4c's own tests of its BMv2 back end: every v1model program of p4_16_samples with an STF file that passes on the real
simple_switch must pass here.

p4c_stf.csv is the frozen list (p4c 34b86e9b), p4c_psa_stf.csv that of programs for psa_switch. Put p4c-bm2-ss and
p4c-bm2-psa on PATH and a checkout's path in P4C_SOURCE.
"""

import csv
import os
import subprocess
from pathlib import Path

import pytest

from emulator.p4switch.program.loader import loader
from emulator.p4switch.stf import stf

SAMPLES = Path("testdata/p4_16_samples")


def _programs(name: str) -> list[str]:
    with Path(__file__).with_name(name).open() as file:
        return [row["program"] for row in csv.DictReader(file)]


NAMES, PSA_NAMES = _programs("p4c_stf.csv"), _programs("p4c_psa_stf.csv")


@pytest.fixture(scope="session")
def samples() -> Path:
    return Path(os.environ["P4C_SOURCE"], SAMPLES)


def test_all_of_them_are_listed():
    assert len(NAMES) == len(set(NAMES)) == 203
    assert len(PSA_NAMES) == len(set(PSA_NAMES)) == 24


@pytest.mark.needs("P4C_SOURCE")
@pytest.mark.parametrize("name", [*NAMES, *PSA_NAMES])
def test_stf(name, samples, require_program, tmp_path):
    compiled = tmp_path / "program.json"
    compiler = require_program("p4c-bm2-psa" if name in PSA_NAMES else "p4c-bm2-ss")
    command = [compiler, "-o", compiled, samples / f"{name}.p4"]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    report = stf.run_file(loader.load(compiled), samples / f"{name}.stf")
    assert (report.failures, report.warnings) == ([], [])
