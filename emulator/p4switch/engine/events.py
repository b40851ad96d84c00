"""Events that the VM passes to Python while processing packets: log messages, digests, failed asserts."""

from dataclasses import dataclass, field

import numpy as np

from emulator.p4switch.engine.layout import limbs
from emulator.p4switch.program import ir
from emulator.p4switch.program.aborts import abort_of, log_text
from emulator.p4switch.program.expr import Text
from emulator.p4switch.state.state import State
from switchml import logs

LOG, ABORT, DIGEST = range(1, 4)
"""Kinds of events."""

log = logs.of("switchml.bmv2")


@dataclass
class Message:
    """Description of an event: the primitive, and (limbs, signed) of each of its values."""

    call: ir.Primitive
    values: list[tuple[int, bool]] = field(default_factory=list)


def number(words: np.ndarray, is_signed: bool) -> int:
    """The integer stored in limbs."""
    return int.from_bytes(words.tobytes(), "little", signed=is_signed)


class Events:
    """Handles events. `messages`: descriptions of LOG and ABORT events, by number."""

    def __init__(self, program: ir.Program, state: State, messages: list[Message]) -> None:
        self.state = state
        self.messages = messages
        self.digest_limbs = [[limbs(program.field_width(ref)) for ref in item.elements] for item in program.learn_lists]

    def report(self, words: np.ndarray) -> None:
        """Handle the events in `words`: kind, number, number of limbs, the limbs. Raises ProgramAbort for ABORT."""
        at = 0
        while at < len(words):
            kind, index, n = (int(word) for word in words[at : at + 3])
            values = words[at + 3 : at + 3 + n]
            at += 3 + n
            if kind == DIGEST:
                parts = self._split(values, [(k, False) for k in self.digest_limbs[index]])
                self.state.digests[index].add(tuple(parts))
            elif kind == LOG:
                message = self.messages[index]
                text = message.call.args[0]
                assert isinstance(text, Text)
                log.info("%s", log_text(text.text, self._split(values, message.values)))
            elif kind == ABORT:
                raise abort_of(self.messages[index].call)

    @staticmethod
    def _split(values: np.ndarray, shapes: list[tuple[int, bool]]) -> list[int]:
        numbers, at = [], 0
        for n, is_signed in shapes:
            numbers.append(number(values[at : at + n], is_signed))
            at += n
        return numbers
