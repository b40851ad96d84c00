"""p4/compiled: it is what scripts/compile-p4 makes of the sources, and p4/tables.py says what the program says."""

import importlib.machinery
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from emulator.p4switch.program.loader.loader import load
from switchml.control.p4 import tables as p4_tables
from switchml.control.p4.driver import Layout

ROOT = Path(__file__).parents[2]
P4 = ROOT / "p4"
OUTDATED = "p4/*.p4 changed: run scripts/compile-p4"


@pytest.fixture(scope="module")
def compile_p4():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("compile_p4", str(ROOT / "scripts" / "compile-p4"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("compile_p4", loader))
    loader.exec_module(module)
    return module


def test_sources_have_not_moved_on(compile_p4):
    assert compile_p4.HASH.read_text().strip() == compile_p4.sources_hash(), OUTDATED


def test_nothing_else_is_there(compile_p4):
    names = {f"{name}{suffix}" for name in compile_p4.VARIANTS for suffix in (".json", ".p4info.txtpb")}
    assert {path.name for path in compile_p4.COMPILED.iterdir()} == names | {compile_p4.HASH.name}


VARIANTS = ["switchml", "switchml_lanes", "switchml_lanes_1024"]


@pytest.mark.needs("p4c-bm2-ss")
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_is_what_p4c_writes(variant, compile_p4, tmp_path, require_program):
    compiler = require_program("p4c-bm2-ss")
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    if compile_p4.WANTED not in done.stdout + done.stderr:
        pytest.skip(f"another version of p4c-bm2-ss than {compile_p4.WANTED}")
    for path in compile_p4.compile_variant(compiler, variant, tmp_path):
        assert path.read_text() == (compile_p4.COMPILED / path.name).read_text(), OUTDATED


@pytest.mark.parametrize("variant", VARIANTS)
def test_tables_are_as_p4_tables_has_them(variant):
    """Names, numbers of keys and parameters: a spec with everything in it, against the program."""
    program = load(P4 / "compiled" / f"{variant}.json")
    tables = {table.name: table for table in program.tables}
    arrays = {array.name: array.size for array in (*program.registers, *program.counters)}
    all_changes = [
        p4_tables.switch_changes("10.0.0.1", 1, [0, 1]),
        p4_tables.loss_changes(3, 0.5, 1.0),
        *(
            p4_tables.job_changes(
                p4_tables.JobSpec(1, protocol, 1, 8, 256, (("10.0.0.2", 5000),)),
                p4_tables.RegisterPlace(0, 1, 2, 1),
                [p4_tables.Host(0, 2)],
            )
            for protocol in (1, 2)
        ),
        p4_tables.job_changes(
            p4_tables.JobSpec(1, 2, 1, 8, 256, (("10.0.0.2", 5000),), has_deadline=True),
            p4_tables.RegisterPlace(0, 1, 2, 1),
            [p4_tables.Host(0, 2)],
        ),
        p4_tables.tree_changes(
            p4_tables.JobSpec(1, 2, 2, 8, 256, (("10.0.0.2", 5000), ("10.0.0.3", 5000)), 7),
            p4_tables.RegisterPlace(0, 1, 2, 1),
            {0: p4_tables.Host(0, 2)},
            [(p4_tables.Neighbour("10.1.0.1", p4_tables.Host(1, 3)), [1])],
            p4_tables.Neighbour("10.1.0.2", p4_tables.Host(2, 4)),
        ),
    ]
    used = set()
    for changes in all_changes:
        for cells in changes.counters:
            assert cells.end <= arrays[cells.name]
        for entry in changes.entries:
            table = tables[entry.table]
            actions = {program.actions[index].name: program.actions[index] for index in table.actions}
            assert len(entry.key) == len(table.key)
            assert len(entry.params) == len(actions[entry.action].params)
            used.add(entry.table)
    assert used == {name for name, table in tables.items() if table.key}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_program_takes(variant):
    """One register a lane has no other ops than the sum; older programs lack deadlines or addressed packets."""
    text = (P4 / "compiled" / f"{variant}.json").read_text()
    layout = Layout(text, "here")
    assert layout.collectives and layout.ends_early and layout.only_sums == (variant != "switchml")
    assert not Layout(text.replace("deadline_worker", "another"), "here").ends_early
    without_cut = Layout(text.replace("cut.cut", "another"), "here")
    assert not without_cut.collectives and not without_cut.ends_early


def test_outcomes_are_numbered_alike():
    text = (P4 / "headers.p4").read_text()
    numbers = {name: int(n) for name, n in re.findall(r"const bit<4> (\w+) = (\d+);", text[text.index("came of") :])}
    moved = {
        "CONSUMED": "accepted", "COMPLETED": "completed", "ANSWERED": "answered", "DUPLICATE": "duplicates",
        "WAITED": "waits", "STALE": "stale", "REFUSED_WINDOW": "refused_window", "REFUSED_TAG": "refused_tag",
        "REFUSED_FORMAT": "refused_format", "PASSED_UP": "duplicates",
    }  # fmt: skip
    assert numbers.pop("LEFT_OUT") == p4_tables._LEFT_OUT
    assert set(numbers) == set(moved)
    spec = p4_tables.JobSpec(1, 2, 1, 8, 256, (("10.0.0.2", 5000),))
    for name, number in numbers.items():
        cells = [(0, 0)] * p4_tables.OUTCOMES
        cells[number] = (1, 308)
        assert p4_tables.job_counters(spec, cells)[0][moved[name]] == 1
