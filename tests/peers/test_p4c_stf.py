"""p4c's own tests of its BMv2 back end: every v1model program of p4_16_samples with an STF file that passes on the real
simple_switch must pass here.

p4c_stf.csv is the frozen list (p4c 34b86e9b). Put p4c-bm2-ss on PATH and a checkout's path in P4C_SOURCE.
"""

import csv
import os
import subprocess
from pathlib import Path

import pytest

from emulator.p4switch.program.loader import loader
from emulator.p4switch.stf import stf

SAMPLES = Path("testdata/p4_16_samples")
with Path(__file__).with_name("p4c_stf.csv").open() as file:
    NAMES = [row["program"] for row in csv.DictReader(file)]


@pytest.fixture(scope="session")
def samples() -> Path:
    return Path(os.environ["P4C_SOURCE"], SAMPLES)


def test_all_of_them_are_listed():
    assert len(NAMES) == len(set(NAMES)) == 203


@pytest.mark.needs("P4C_SOURCE", "p4c-bm2-ss")
@pytest.mark.parametrize("name", NAMES)
def test_stf(name, samples, require_program, tmp_path):
    compiled = tmp_path / "program.json"
    command = [require_program("p4c-bm2-ss"), "-o", compiled, samples / f"{name}.p4"]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    report = stf.run_file(loader.load(compiled), samples / f"{name}.stf")
    assert (report.failures, report.warnings) == ([], [])
