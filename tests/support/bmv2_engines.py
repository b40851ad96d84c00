"""One program on both engines: random entries and packets through each, comparing all visible state."""

import contextlib
import json
import logging

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.program import ir
from emulator.p4switch.switch import Switch
from switchml.errors import ControlError, ProgramAbort
from tests.peers.bmv2_random import Generator
from tests.support.bmv2_replay import command

GAP_US = 15_000


class TimedSwitch(Switch):
    """A switch with the clock `now`, in µs."""

    def __init__(self, program: ir.Program, **options) -> None:
        self.now = 0
        super().__init__(program, clock=lambda: self.now, **options)


def switch_on(engine: type, program: ir.Program, **options) -> Switch:
    """A switch that runs on this engine, no other. Its clock is `now`, in µs."""
    switch = TimedSwitch(program, seed=1, **options)
    switch.engine = engine(switch.state, switch.drop_port, switch.n_priorities, 1)
    return switch


def both(program: ir.Program, **options) -> tuple[Switch, Switch]:
    """The program on the reference engine, and on the compiled one."""
    return switch_on(Interpreter, program, **options), switch_on(CompiledEngine, program, **options)


class Messages(logging.Handler):
    """Collects log messages while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []
        self.logger = logging.getLogger("switchml.bmv2")

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self.texts.append(record.getMessage())

    def __enter__(self):
        self.level = self.logger.level
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(self)
        return self

    def __exit__(self, *_):
        self.logger.removeHandler(self)
        self.logger.setLevel(self.level)


def visible(switch: Switch) -> dict:
    """Everything of the state that packets change."""
    state = switch.state
    return {
        "registers": {register.name: register.data.tolist() for register in state.registers},
        "counters": {counter.name: counter.data.tolist() for counter in state.counters},
        "tables": {table.name: (table.counters.tolist(), table.last_hit_us.tolist()) for table in state.tables},
        "meters": {meter.name: (meter.tokens.tolist(), meter.last.tolist()) for meter in state.meters},
        "digests": [(digest.pending, digest.buffer_id, digest.known) for digest in state.digests],
    }


def outcome(switch: Switch, packets: list[tuple[int, bytes]]) -> tuple[list, list[str], dict]:
    """(output of each packet, log messages, final state)."""
    outputs: list = []
    with Messages() as messages:
        for port, data in packets:
            switch.now += GAP_US
            try:
                outputs.append(switch.receive(port, data))
            except ProgramAbort as error:
                outputs.append(str(error))
    return outputs, messages.texts, visible(switch)


def compare(program: ir.Program, seed: int, n_packets: int, cut: bool = True, hints=None, **options) -> int:
    """Random commands and packets through both engines; how many packets left. AssertionError where they differ."""
    generator = Generator(_with_action_ids(json.loads(program.text)), seed, cut=cut, hints=hints)
    commands = generator.commands()
    packets = generator.packets(n_packets)
    switches = both(program, **options)
    for switch in switches:
        for text in commands:
            with contextlib.suppress(ControlError):
                command(switch, text)
    reference, compiled = (outcome(switch, packets) for switch in switches)
    for number, (expected, actual) in enumerate(zip(reference[0], compiled[0], strict=True)):
        assert actual == expected, f"packet {number} of seed {seed}: {packets[number]}"
    assert compiled[1] == reference[1]
    for part, expected in reference[2].items():
        assert compiled[2][part] == expected, part
    return sum(len(sent) for sent in reference[0] if isinstance(sent, list))


def _with_action_ids(program: dict) -> dict:
    """Older JSON names a table's actions only."""
    ids = {action["name"]: action["id"] for action in program["actions"]}
    for pipeline in program["pipelines"]:
        for table in pipeline["tables"]:
            table.setdefault("action_ids", [ids[name] for name in table["actions"]])
    return program
