"""The packet log: simple_switch's lines, as BMv2's sources have them, and the same as data."""

import json
import logging
import os
from functools import partial

import pytest

from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.interpreter.logged import LoggedInterpreter
from emulator.p4switch.interpreter.packet_log import PacketLog
from emulator.p4switch.logs import TRACE
from emulator.p4switch.program.loader.loader import load
from switchml.errors import ConfigError, ProgramAbort
from tests.peers.bmv2_random import Generator
from tests.support import golden
from tests.support.bmv2_replay import replay
from tests.support.p4_programs import NAMES, PATHS

ETHERNET = bytes(12) + b"\x08\x00"


@pytest.fixture
def lines(caplog):
    """The packet's log lines so far, without the common prefix; checks that they have it."""
    caplog.set_level(TRACE, "switchml.bmv2")

    def read(prefix: str = "[0.0] [cxt 0] ") -> str:
        texts = [record.getMessage() for record in caplog.records]
        assert all(text.startswith(prefix) for text in texts)
        return "".join(text.removeprefix(prefix) + "\n" for text in texts)

    return read


def logged(path=None):
    return partial(LoggedInterpreter, packet_log=PacketLog(path))


def test_a_packet_through_tables(switch, lines):
    running = switch("lpm", engine=logged())
    running.add("MyIngress.v4", [1, (0x0A000000, 8)], "MyIngress.send", (31,))
    route = bytes([1]) + bytes.fromhex("0a000102") + bytes(21)
    [(port, _)] = running.receive(3, ETHERNET + route)
    assert port == 31
    text = lines()
    odd = text.index("Applying table 'MyIngress.odd'")
    text = text[:odd] + text[text.index("Pipeline 'ingress': end") :]
    first = text.index("Applying table 'tbl_"), text.index("Applying table 'MyIngress.v4'")
    golden.check("packet-log", text[: first[0]] + text[first[1] :])


def test_a_parser_error(switch, lines, caplog):
    running = switch("parser_errors", engine=logged())
    running.receive(1, b"\0")
    assert "\nException while parsing: PacketTooShort\nParser 'parser': end\n" in lines()
    levels = {record.getMessage()[14:]: record.levelno for record in caplog.records}
    assert levels["Exception while parsing: PacketTooShort"] == logging.ERROR


@pytest.mark.parametrize("name", [name for name in NAMES if "unrolled" not in name])
def test_it_changes_nothing_and_is_data(name, tmp_path):
    """Each program forwards as without a log, and each event is in the file with the text of the log."""
    generator = Generator(json.loads(PATHS[name].read_text()), 5, cut=True)
    commands, packets = generator.commands(), generator.packets(4)
    path = tmp_path / "trace.json"
    try:
        reference = replay(load(PATHS[name]), commands, packets, Interpreter)
    except ProgramAbort:
        return
    assert replay(load(PATHS[name]), commands, packets, logged(path)) == reference
    rows = json.loads(path.read_text())
    assert {row["packet"] for row in rows} == {0, 1, 2, 3}
    assert {"received", "parser_start"} <= {row["event"] for row in rows}
    assert all(row["text"] and row["level"] in ("trace", "debug", "error") for row in rows)
    n_sent = sum(map(len, reference.sent.values()))
    assert sum(row["event"] == "transmit" for row in rows) >= n_sent


def test_the_file_is_complete_after_each_event(tmp_path):
    path = tmp_path / "trace.json"
    trace = PacketLog(path).new_packet()
    assert json.loads(path.read_text()) == []
    for n in (1, 2, 3):
        trace.debug("event", "Text", value=n)
        assert [row["value"] for row in json.loads(path.read_text())] == [*range(1, n + 1)]


def test_files_that_cannot_be(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "trace.txt", tmp_path / "none" / "trace.json", tmp_path):
        with pytest.raises(ConfigError):
            PacketLog(path)
