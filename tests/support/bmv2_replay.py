"""Commands and packets for a switch, and their results, to compare our switch with simple_switch.

Commands are those of simple_switch_CLI, as far as `peers.bmv2_random` writes them. `replay` runs them on our switch in
this process; `tests/programs/recorded/` has simple_switch's results, in the form of `Outcome.to_json`.
"""

import ipaddress
import json
from dataclasses import dataclass, field
from pathlib import Path

from emulator.p4switch.hashes import Crc
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import RunAction, UseGroup, UseMember
from emulator.p4switch.switch import Switch
from switchml.errors import ControlError

GAP_US = 15_000

UNSTABLE = {"queues": ((18, 44),), "random": ((18, 20),)}
"""Program → ranges of bytes of what it sends that hold times or random numbers; they are compared as zeros."""


@dataclass
class Outcome:
    """Results of a switch. `accepted`: whether each command worked. `sent`: port → packets in order. `registers`:
    name → index → value of the cells that are not 0, where they have up to 64 bits; `counters`: name → (packets, bytes)
    of each cell of those that are no table's."""

    accepted: list[bool] = field(default_factory=list)
    sent: dict[int, list[bytes]] = field(default_factory=dict)
    registers: dict[str, dict[int, int]] = field(default_factory=dict)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def stable(self, name: str) -> "Outcome":
        """The same without what differs from run to run of the program `name`, and without ports that sent nothing."""

        def blank(data: bytes) -> bytes:
            changed = bytearray(data)
            for start, end in UNSTABLE.get(name, ()):
                changed[start:end] = bytes(len(changed[start:end]))
            return bytes(changed)

        sent = {port: [blank(data) for data in packets] for port, packets in self.sent.items() if packets}
        return Outcome(self.accepted, sent, self.registers, self.counters)

    def to_json(self) -> dict:
        return {
            "accepted": self.accepted,
            "sent": {str(port): [data.hex() for data in packets] for port, packets in sorted(self.sent.items())},
            "registers": self.registers,
            "counters": self.counters,
        }

    @classmethod
    def from_json(cls, data: dict) -> "Outcome":
        return cls(
            data["accepted"],
            {int(port): [bytes.fromhex(text) for text in packets] for port, packets in data["sent"].items()},
            {name: {int(i): value for i, value in cells.items()} for name, cells in data["registers"].items()},
            {name: [tuple(cell) for cell in cells] for name, cells in data["counters"].items()},
        )


@dataclass
class Recording:
    """One run of simple_switch on a program."""

    commands: list[str]
    packets: list[tuple[int, bytes]]
    outcome: Outcome

    def save(self, path: Path) -> None:
        parts = {
            "commands": _lines(self.commands),
            "packets": _lines([[port, data.hex()] for port, data in self.packets]),
            "outcome": json.dumps(self.outcome.to_json()),
        }
        path.write_text("{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n")

    @classmethod
    def load(cls, path: Path) -> "Recording":
        data = json.loads(path.read_text())
        packets = [(port, bytes.fromhex(text)) for port, text in data["packets"]]
        return cls(data["commands"], packets, Outcome.from_json(data["outcome"]))


def _lines(items: list) -> str:
    """A JSON list with one item a line."""
    return "[\n" + ",\n".join(map(json.dumps, items)) + "\n]"


def replay(
    program: ir.Program, commands: list[str], packets: list[tuple[int, bytes]], engine=Interpreter, ports: int = 8
) -> Outcome:
    """Run everything on our switch with this engine, one packet every 15 ms; `ports` are connected."""
    now = 0
    switch = Switch(program, clock=lambda: now, seed=1, engine=engine)
    outcome = Outcome(sent={port: [] for port in range(ports)})
    for text in commands:
        try:
            command(switch, text)
            outcome.accepted.append(True)
        except ControlError:
            outcome.accepted.append(False)
    for port, data in packets:
        now += GAP_US
        for egress, frame in switch.receive(port, data) + switch.poll():
            if egress in outcome.sent:
                outcome.sent[egress].append(frame)
    for register in switch.state.registers:
        if register.width <= 64:
            outcome.registers[register.name] = {i: value for i, value in enumerate(register.read_all()) if value}
    for counter in switch.state.counters:
        if counter.table is None:
            outcome.counters[counter.name] = [counter.read(i) for i in range(counter.size)]
    return outcome


def command(switch: Switch, text: str) -> None:
    """One command of simple_switch_CLI. Raises ControlError; ValueError for one that is not known here."""
    name, *words = text.split()
    state = switch.state
    if name in ("table_add", "table_indirect_add", "table_indirect_add_with_group"):
        table = state.table(words[0])
        arrow = words.index("=>")
        rest = list(_numbers(words[arrow + 1 :]))
        priority = rest.pop() if table.has_priorities else 0
        if name == "table_add":
            target, keys = RunAction(table.action(words[1]), tuple(rest)), words[2:arrow]
        else:
            target, keys = (UseMember if name == "table_indirect_add" else UseGroup)(rest[0]), words[1:arrow]
        table.add([_key(field, key) for field, key in zip(table.table.key, keys, strict=True)], target, priority)
    elif name == "table_set_default":
        table = state.table(words[0])
        table.set_default(RunAction(table.action(words[1]), _numbers(words[2:])))
    elif name == "act_prof_create_member":
        profile = state.action_profile(words[0])
        profile.add_member(RunAction(profile.action(words[1]), _numbers(words[2:])))
    elif name == "act_prof_create_group":
        state.action_profile(words[0]).create_group()
    elif name == "act_prof_add_member_to_group":
        state.action_profile(words[0]).add_to_group(*_numbers(words[1:]))
    elif name == "mirroring_add":
        session, port = _numbers(words)
        state.mirroring.add(session, port=port)
    elif name == "mirroring_add_mc":
        session, mgid = _numbers(words)
        state.mirroring.add(session, mgid=mgid)
    elif name == "mc_mgrp_create":
        state.replication.create_group(*_numbers(words))
    elif name == "mc_node_create":
        bar = words.index("|") if "|" in words else len(words)
        rid, *ports = _numbers(words[:bar])
        state.replication.create_node(rid, ports, _numbers(words[bar + 1 :]))
    elif name == "mc_set_lag_membership":
        lag, *ports = _numbers(words)
        state.replication.set_lag(lag, ports)
    elif name == "mc_node_associate":
        state.replication.associate_node(*_numbers(words))
    elif name == "register_write":
        state.register(words[0]).write(*_numbers(words[1:]))
    elif name == "meter_array_set_rates":
        rates = [word.split(":") for word in words[1:]]
        state.meter(words[0]).set_all_rates([(float(rate), int(burst)) for rate, burst in rates])
    elif name == "pvs_add":
        state.parse_vset(words[0]).add(*_numbers(words[1:]))
    elif name in ("set_crc16_parameters", "set_crc32_parameters"):
        numbers, flags = _numbers(words[1:4]), [word == "true" for word in words[4:]]
        state.set_crc(words[0], Crc(int(name[7:9]), *numbers, *flags))
    else:
        raise ValueError(f"{name} is not known here")


def _number(word: str) -> int:
    return int(ipaddress.IPv6Address(word)) if ":" in word else int(word, 0)


def _numbers(words: list[str]) -> tuple[int, ...]:
    return tuple(map(_number, words))


def _key(field: ir.KeyField, text: str) -> ir.MatchParam:
    for separator in ("&&&", "->", "/"):
        if separator in text:
            return ir.MatchParam(field.kind, *_numbers(text.split(separator)))
    return ir.MatchParam(field.kind, _number(text))
