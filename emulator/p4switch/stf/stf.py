"""STF, p4c's test language: table entries, input packets, expected output packets; run against an in-process switch.

The grammar is that of p4c's tools/stf, the semantics those of its BMv2 runner (backends/bmv2/bmv2stf.py): one statement
per line, names match by suffix, a ternary priority p becomes 10000 - p, omitted keys match anything, and an expected
packet may be shorter than the one received, unless it ends in `$`. As there, statements rejected by the control plane
are warnings; a statement that can't be parsed, or that names an object missing in the program, fails the test.
"""

import difflib
import operator as op
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.state.arrays import CounterArray, MeterArray, RegisterArray
from emulator.p4switch.state.state import State
from emulator.p4switch.stf.keys import action_args, match_key
from emulator.p4switch.switch import Switch
from emulator.ranges import Range
from switchml.errors import ConfigError, ControlError
from switchml.files import read_text, reading

STEP_US = 1_000
"""Time between packets."""
PAUSE_US = 1_000_000
"""Time before a packet that follows a command, for `wait`, and at the end."""
TOP_PRIORITY = 10_000

PORTS = Range(0, 511)
"""Valid ports: 9 bits."""
LONGEST = 4096
"""Maximum characters of a statement; packets may be longer."""

_ID = re.compile(r"\s*(?:=\s*(\S+)\s*)?")
_KEY = re.compile(r"([^\s:]+)\s*:\s*(\S+)")
_CALL = re.compile(r"([^\s(]+)\s*\((.*)\)")
_COUNTER = re.compile(r"(\S+?)\s*\(\s*(\S+?)\s*\)\s*(?:(packets|bytes)\s*(==|!=|<=|<|>=|>)\s*(\S+))?$", re.IGNORECASE)

COMPARE = {"==": op.eq, "!=": op.ne, "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge}

ON_CELLS: dict[str, tuple[str, Callable[..., Any]]] = {
    "counter_read": ("counter", CounterArray.read),
    "counter_write": ("counter", CounterArray.write),
    "register_write": ("register", RegisterArray.write),
    "register_reset": ("register", RegisterArray.reset),
    "meter_get_rates": ("meter", MeterArray.get_rates),
    "meter_set_rates": ("meter", MeterArray.set_rates),
    "meter_array_set_rates": ("meter", MeterArray.set_all_rates),
}
"""Statements that call an array's method with numbers, and rates."""

ON_NUMBERS: dict[str, Callable[..., Any]] = {
    "mirroring_add": lambda state, session, port: state.mirroring.add(session, port=port),
    "mirroring_add_mc": lambda state, session, mgid: state.mirroring.add(session, mgid=mgid),
    "mirroring_delete": lambda state, session: state.mirroring.delete(session),
    "mirroring_get": lambda state, session: state.mirroring.get(session),
    "mc_mgrp_create": lambda state, mgid: state.replication.create_group(mgid),
    "mc_node_create": lambda state, rid, *ports: state.replication.create_node(rid, ports),
    "mc_node_update": lambda state, node, *ports: state.replication.update_node(node, ports),
    "mc_node_associate": lambda state, mgid, node: state.replication.associate_node(mgid, node),
}
"""Statements with only numbers as arguments, executed on a switch's State."""


@dataclass(frozen=True)
class Statement:
    """One line: its number, the command in lower case, and the rest as written."""

    line: int
    command: str
    rest: str


@dataclass
class Report:
    """Result of a run: `failures` (empty if it passed) and `warnings`, each a sentence; `sent`: frames by port."""

    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sent: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        return not self.failures


def parse(text: str) -> list[Statement]:
    """The statements of an STF text; comments (# …) and empty lines are skipped."""
    statements = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split(None, 1)
        if words:
            statements.append(Statement(number, words[0].lower(), words[1].strip() if len(words) > 1 else ""))
    return statements


def by_suffix(objects: Sequence[Any], name: str, sort: str) -> Any:
    """The object with this name, or else the only one whose name has it as a suffix. Raises ConfigError."""
    name = re.sub(r"\$(\d+)", r"[\1]", name)
    matches = [obj for obj in objects if obj.name == name] or [obj for obj in objects if obj.name.endswith(name)]
    if not matches:
        raise ConfigError(f"the program has no {sort} {name!r}")
    if len({obj.name for obj in matches}) > 1:
        raise ConfigError(f"{sort} {name!r} may be any of {', '.join(obj.name for obj in matches)}")
    return matches[0]


def run(program: ir.Program, text: str, make_switch: Callable[..., Switch] = Switch) -> Report:
    """Run an STF text on a new switch. Raises ProgramAbort if the program's assert fails."""
    return Runner(program, make_switch).run(parse(text))


def run_file(program: ir.Program, path: str | Path) -> Report:
    """Run an STF file. Raises ConfigError if it can't be read or contains an invalid port."""
    with reading(path, ConfigError):
        return run(program, read_text(path))


def load(state: State, text: str) -> list[tuple[int, bytes]]:
    """Add the entries of an STF text to `state`; returns its packets as (port, frame). Expected packets are ignored.
    Raises ConfigError for any other statement, and for statements that can't be parsed or executed."""
    runner, frames = Runner(state.program), []
    runner.state = state
    for statement in parse(text):
        try:
            if statement.command == "packet":
                frames.append(frame(statement.rest))
            elif statement.command == "add":
                runner.add(statement.rest)
            elif statement.command not in ("expect", "no_packet", "wait"):
                raise ConfigError("only add, packet and what is expected can stand here")
        except (ControlError, ConfigError, ValueError) as error:
            raise ConfigError(f"line {statement.line}: {statement.command}: {error}") from error
    return frames


def frame(text: str) -> tuple[int, bytes]:
    """Parse `PORT HEX DIGITS` to (port, frame). Raises ConfigError and ValueError."""
    port, data = text.split(None, 1)
    return port_of(port), bytes.fromhex("".join(data.split()))


def port_of(text: str) -> int:
    """Parse a port. Raises ConfigError."""
    if not _is_port(text):
        raise ConfigError(f"port {text[:20]!r}: expected {PORTS}")
    return int(text)


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) < 10 and int(text) in PORTS


class Runner:
    """Executes statements on a switch whose clock advances only through statements."""

    def __init__(self, program: ir.Program, make_switch: Callable[..., Switch] = Switch) -> None:
        self.now_us = 0
        self.program = program
        self.switch = make_switch(program, clock=lambda: self.now_us, seed=0)
        self.state = self.switch.state
        self.report = Report()
        self.expected: dict[int, list[str | None]] = {}
        self.entry_of_id: dict[str, tuple[Any, int]] = {}
        self.after_command = False

    def run(self, statements: Sequence[Statement]) -> Report:
        """Execute all statements, then compare sent and expected frames."""
        named = [one.rest.split()[0] for one in statements if one.command in ("packet", "expect") and one.rest]
        used = {int(port) for port in named if _is_port(port)}
        self.report.sent = {port: [] for port in sorted(used)}
        for statement in statements:
            try:
                self._execute(statement)
            except ControlError as error:
                self.report.warnings.append(f"line {statement.line}: {statement.command}: {error}")
            except (ConfigError, TypeError, ValueError) as error:
                self.report.failures.append(f"line {statement.line}: {statement.command}: {error}")
        self._pass_time(2 * PAUSE_US)
        for port, sent in self.report.sent.items():
            self._compare(port, self.expected.get(port, []), sent)
        return self.report

    def _execute(self, statement: Statement) -> None:
        command, rest = statement.command, statement.rest
        if len(rest) > LONGEST and command not in ("packet", "expect"):
            raise ConfigError(f"{len(rest):,} characters; expected {LONGEST:,} at most")
        self.after_command = command not in ("packet", "expect", "no_packet") or self.after_command
        if command in ON_CELLS:
            sort, call = ON_CELLS[command]
            name, *words = rest.split()
            rates = [_rates([word for word in words if ":" in word])] if command.endswith("set_rates") else []
            numbers = _numbers([word for word in words if ":" not in word])
            call(by_suffix(getattr(self.state, f"{sort}s"), name, sort), *numbers, *rates)
        elif command in ON_NUMBERS:
            ON_NUMBERS[command](self.state, *_numbers(rest.split()))
        elif (method := getattr(self, f"_do_{command}", None)) is not None:
            method(rest)
        else:
            near = difflib.get_close_matches(command, STATEMENTS, 1)
            raise ConfigError("there is no such statement" + (f"; did you mean {near[0]}?" if near else ""))

    def _pass_time(self, microseconds: int) -> None:
        self.now_us += microseconds
        self._collect(self.switch.poll())

    def _collect(self, sent: list[tuple[int, bytes]]) -> None:
        """Record frames of ports named in the text; other ports are not connected."""
        for port, data in sent:
            if port in self.report.sent:
                self.report.sent[port].append(data)

    # Packets

    def _do_packet(self, rest: str) -> None:
        port, data = frame(rest)
        self._pass_time(PAUSE_US if self.after_command else STEP_US)
        self.after_command = False
        self._collect(self.switch.receive(port, data))

    def _do_expect(self, rest: str) -> None:
        port, *data = rest.split()
        self.expected.setdefault(port_of(port), []).append("".join(data).lower() or None)

    def _do_no_packet(self, rest: str) -> None:
        pass  # ports without expected packets must be silent anyway

    def _do_wait(self, rest: str) -> None:
        self._pass_time(PAUSE_US)

    def _compare(self, port: int, expected: list[str | None], sent: list[bytes]) -> None:
        if len(expected) != len(sent):
            packets = ", ".join(data.hex() for data in sent) or "none"
            self.report.failures.append(f"port {port}: {len(expected)} packets expected, {len(sent)} came: {packets}")
            return
        for number, (pattern, data) in enumerate(zip(expected, sent, strict=True)):
            if pattern is not None and not fits(pattern, data):
                self.report.failures.append(f"port {port}, packet {number}: expected {pattern}, but got {data.hex()}")

    # Tables

    def add(self, rest: str) -> None:
        """Add an entry from an `add` statement. Raises ConfigError and ControlError."""
        before, opening, arguments = rest.partition("(")
        arguments, closing, after = arguments.rpartition(")")
        action = re.split(r"[\s:]", before.rstrip())[-1]
        name, *keys = before.rstrip().removesuffix(action).split(None, 1) or [""]
        id_ = _ID.fullmatch(after)
        if not (action and name and opening and closing and id_):
            raise ConfigError(f"{rest!r} is not `table [priority] key:value … action(name:value, …) [= id]`")
        table = by_suffix(self.state.tables, name, "table")
        first, *others = "".join(keys).split(None, 1) or [""]
        has_priority = first.isdecimal()
        pairs = _spaced("".join(others if has_priority else keys))
        key = match_key(table.table, [_pair(text) for text in pairs])
        priority = TOP_PRIORITY - int(first) if has_priority else 0
        handle = table.add(key, self._call(table, f"{action}({arguments})"), priority)
        if id_[1]:
            self.entry_of_id[id_[1]] = table, handle

    _do_add = add

    def _do_setdefault(self, rest: str) -> None:
        name, call = rest.split(None, 1)
        table = by_suffix(self.state.tables, name, "table")
        table.set_default(self._call(table, call))

    def _call(self, table: Any, text: str) -> RunAction:
        parts = _CALL.match(text)
        if parts is None:
            raise ConfigError(f"{text!r} is not `action(name:value, …)`")
        actions = [self.program.actions[index] for index in table.table.actions]
        action = by_suffix(actions, parts[1], f"action of table {table.name}")
        return RunAction(table.action(action.name), action_args(action, parts[2]))

    def _do_remove(self, rest: str) -> None:
        for table in self.state.tables:
            table.clear()

    # Counters, registers, meters

    def _do_check_counter(self, rest: str) -> None:
        parts = _COUNTER.match(rest)
        if parts is None:
            raise ConfigError(f"{rest!r} is not `name(index) [packets|bytes == n]`")
        name, at, unit, operator, expected = parts.groups()
        self._pass_time(PAUSE_US)
        if at.startswith("$"):
            if at[1:] not in self.entry_of_id:
                raise ConfigError(f"no entry was added with the id {at[1:]!r}")
            table, handle = self.entry_of_id[at[1:]]
            packets, n_bytes = table.read_counter(handle)
        else:
            packets, n_bytes = by_suffix(self.state.counters, name, "counter").read(int(at, 0))
        value = n_bytes if unit and unit.lower() == "bytes" else packets
        if operator and not COMPARE[operator](value, int(expected, 0)):
            self.report.failures.append(f"counter {name}({at}): {unit} {operator} {expected} expected, it is {value}")

    def _do_register_read(self, rest: str) -> None:
        name, *index = rest.split()
        register = by_suffix(self.state.registers, name, "register")
        if index:
            register.read(int(index[0], 0))


STATEMENTS = (*ON_CELLS, *ON_NUMBERS, *(name[4:] for name in vars(Runner) if name.startswith("_do_")))
"""Names of all statements, for suggestions."""


def fits(expected: str, data: bytes) -> bool:
    """Whether a packet matches a pattern: hex digits, `*` for any digit, and `$` at the end if no bytes may follow."""
    pattern, digits = expected.removesuffix("$"), data.hex()
    if len(digits) < len(pattern) or (expected.endswith("$") and len(digits) > len(pattern)):
        return False
    return all(want in ("*", digit) for want, digit in zip(pattern, digits, strict=False))


def _spaced(keys: str) -> list[str]:
    """Split `a:1 b : 2` into ["a:1", "b:2"]."""
    return re.sub(r"\s*:\s*", ":", keys).split()


def _pair(text: str) -> tuple[str, str]:
    """Parse `name:value` of a match key. Raises ConfigError."""
    parts = _KEY.match(text)
    if parts is None:
        raise ConfigError(f"{text!r} is not `key:value`")
    return parts[1], parts[2]


def _numbers(words: Sequence[str]) -> list[int]:
    return [int(word, 0) for word in words]


def _rates(words: Sequence[str]) -> list[tuple[float, int]]:
    """Parse `rate:burst` pairs."""
    return [(float(rate), int(burst, 0)) for rate, burst in (word.split(":") for word in words)]
