"""The primitives log_msg, assert and assume, shared by both engines: log texts with values, and BMv2's exit codes."""

import re
from collections.abc import Sequence

from emulator.p4switch.program.expr import Text, Vector
from emulator.p4switch.program.ir import Primitive
from switchml.errors import ProgramAbort

_ARGUMENT = re.compile(r"(?<!\\)\{[^}]*\}")


def n_arguments(text: str) -> int:
    """Number of arguments of a log_msg's format string."""
    return len(_ARGUMENT.findall(text))


def log_text(text: str, values: Sequence[int]) -> str:
    """Format a log_msg's text with its values."""
    remaining = iter(values)
    return _ARGUMENT.sub(lambda _: str(next(remaining)), text).replace("\\{", "{").replace("\\}", "}")


def abort_of(call: Primitive) -> ProgramAbort:
    """The abort of a program at a failed assert or assume, or at a log_msg with a wrong number of arguments."""
    if call.op != "log_msg":
        source = call.source
        place = f": {source.fragment} failed, file {source.filename}, line {source.line}" if str(source) else ""
        return ProgramAbort(f"{call.op.capitalize()} error{place}", exit_code=-6)
    text, values = call.args
    assert isinstance(text, Text) and isinstance(values, Vector)  # guaranteed by the loader's PRIMITIVES
    return ProgramAbort(
        f"Not enough arguments for format string in call to log_msg(). Format string expected "
        f"({n_arguments(text.text)}) argument(s) but got ({len(values.items)}): {call.source}",
        exit_code=1,
    )
