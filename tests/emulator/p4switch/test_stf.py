"""STF: the grammar, the keys, and tests that pass and that fail."""

import json
import subprocess
import sys

import pytest

from emulator.p4switch.program import ir
from emulator.p4switch.stf import stf
from emulator.p4switch.stf.keys import match_key, prefix, ternary
from switchml.errors import ConfigError
from tests.support.p4_programs import PATHS

FRAME = "010203040506 0708090a0b0c 0d0e"


@pytest.mark.parametrize(
    ("text", "value", "mask"),
    [
        ("0x1234", 0x1234, 0xFFFF),
        ("0x12", 0x12, 0xFF),  # digits that are not written match anything
        ("0x****0101", 0x0101, 0xFFFF),
        ("0b1*0", 0b100, 0b101),
        ("5", 5, 0xFFFFFFFF),
        ("5&&&7", 5, 7),
    ],
)
def test_ternary_values(text, value, mask):
    assert ternary(text, 32) == (value, mask)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0x0a000000/8", (0x0A000000, 8)), ("0x0a******", (0x0A000000, 8)), ("0b101", (5, 3)), ("7", (7, 32))],
)
def test_prefixes(text, expected):
    assert prefix(text, 32) == expected


def test_decimal_stars_are_refused():
    with pytest.raises(ConfigError):
        ternary("1*", 8)


@pytest.mark.parametrize(("expected", "data", "is_right"), [
    ("0102", b"\1\2\3", True), ("0102$", b"\1\2\3", False), ("0102$", b"\1\2", True), ("010203", b"\1\2", False),
    ("0*02", b"\x0f\2", True), ("0*02", b"\x1f\2", False),
])  # fmt: skip
def test_expected_packets(expected, data, is_right):
    assert stf.fits(expected, data) == is_right


def test_statements():
    text = "# a comment\n\nPACKET 1 0102 # more\n  wait\n"
    assert stf.parse(text) == [stf.Statement(3, "packet", "1 0102"), stf.Statement(4, "wait", "")]


def test_a_test_that_passes_uses_all_that_tables_can(program):
    report = stf.run(
        program("counters"),
        f"""
        add flows flow.id:0x0007 send(port:2) = A   # names match by their ends
        setdefault MyIngress.flows send(port:3)
        packet 1 {FRAME} 0007 0001
        expect 2 {FRAME} 0007 0001 $
        packet 1 {FRAME} 0008 0001
        expect 3
        check_counter hits($A) packets == 1
        check_counter by_index(1) packets == 2
        check_counter by_index(1) bytes > 35
        """,
    )
    assert (report.failures, report.warnings) == ([], [])


def test_priorities_are_turned_round(program):
    table = next(
        table for table in program("ternary").tables if table.match_type == "ternary" and table.entries is None
    )
    key = table.key[0].name
    report = stf.Runner(program("ternary"))
    for priority in (5, 9):
        action = program("ternary").actions[table.actions[0]]
        args = ", ".join(f"{param.name}:1" for param in action.params)
        report.run(stf.parse(f"add {table.name} {priority} {key}:0x00 {action.name}({args})"))
    assert report.report.warnings == []
    priorities = [entry.priority for entry in report.state.tables[table.index].all_entries()]
    assert priorities == [9995, 9991]


@pytest.mark.parametrize(("text", "problem"), [
    (f"packet 1 {FRAME}\nexpect 1 ff", "port 1, packet 0: expected ff"),
    (f"packet 1 {FRAME}\nexpect 1 01\nexpect 1 01", "port 1: 2 packets expected, 1 came"),
    (f"packet 1 {FRAME}", "port 1: 0 packets expected, 1 came"), ("expect 4", "port 4: 1 packets expected, 0 came"),
    ("add tbl_value_set37 nonsense act()", "line 1: add: 'nonsense' is not `key:value`"),
    ("expct 1 00", "line 1: expct: there is no such statement; did you mean expect?"),
    ("check_counter c($nobody)", "no entry was added with the id 'nobody'"),
    ("add t " + 5000 * "a:1 " + "act()", "characters; expected 4,096 at most"),
    ("check_counter " + 5000 * "(", "characters; expected 4,096 at most"),
])  # fmt: skip
def test_what_fails(program, text, problem):
    report = stf.run(program("value_set"), text)
    assert not report.has_passed
    assert problem in report.failures[0]


def test_what_the_control_plane_refuses_is_a_warning(program):
    report = stf.run(program("value_set"), "mirroring_get 5")
    assert report.has_passed and len(report.warnings) == 1
    assert report.warnings[0].startswith("line 1: ")


@pytest.mark.parametrize("line", [
    "fly", "add", "add nowhere a:1 b()", "register_write nowhere 0 0", "packet", "packet one 00", "packet 1 0g",
    "packet 1 012",
])  # fmt: skip
def test_what_can_not_be_read_fails(program, line):
    report = stf.run(program("value_set"), line)
    assert len(report.failures) == 1 and report.warnings == []
    assert report.failures[0].startswith("line 1: ")


@pytest.mark.parametrize("port", ["512", "-1", "9" * 5000, "nan", "x"])
@pytest.mark.parametrize("statement", ["packet {} 01", "expect {} 01"])
def test_ports_have_a_range(program, statement, port):
    (failure,) = stf.run(program("exact"), statement.format(port)).failures
    assert f"port {port[:20]!r}: expected 0 to 511" in failure


def test_other_commands(program):
    runner = stf.Runner(program("multicast"))
    report = runner.run(
        stf.parse(
            f"""
            mc_mgrp_create 5
            mc_node_create 9 1 2
            mc_node_associate 5 0
            mirroring_add 3 1
            mirroring_add_mc 4 5
            mirroring_delete 3
            packet 3 {FRAME} 0005 01 00 0000 0000
            expect 1 {FRAME} 0005 01 05 0009 0001
            expect 2 {FRAME} 0005 01 05 0009 0002
            no_packet
            """
        )
    )
    assert (report.failures, report.warnings) == ([], [])
    assert list(runner.state.mirroring.sessions) == [4]


def test_registers_and_meters(program):
    report = stf.run(
        program("registers"), "register_write sums 1 5\nregister_read sums 1\nregister_reset MyIngress.sums"
    )
    assert report.warnings == []
    report = stf.run(
        program("meters"), "meter_set_rates by_index 1 0.5:1 1.0:2\nmeter_array_set_rates by_index 0.5:1 1:2"
    )
    assert report.warnings == []


def test_keys_of_validity_have_several_names(program):
    table = next(table for table in program("mixed_keys").tables if table.name.endswith("zero"))
    names = [field.name for field in table.key]
    for name in ("hdr.tag.$valid$", "tag.$valid$", "valid"):
        match = match_key(table, [(name, "1")])
        assert match[names.index("hdr.tag.$valid$")] == ir.MatchParam("exact", 1)


def test_the_command(tmp_path):
    program, test = PATHS["value_set"], tmp_path / "x.stf"
    test.write_text(f"packet 1 {FRAME}\nexpect 1 {FRAME} $\n")
    done = subprocess.run([sys.executable, "-m", "switchml", "stf", program, test], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "passed\n")
    test.write_text(f"packet 1 {FRAME}\nexpect 1 ff\n")
    command = [sys.executable, "-m", "switchml", "stf", "--json", program, test]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    outcome = json.loads(done.stdout)
    assert outcome["passed"] is False
    assert outcome["sent"] == {"1": [FRAME.replace(" ", "")]}
