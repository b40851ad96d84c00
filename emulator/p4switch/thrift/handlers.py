"""Answers to Thrift calls that only pass arguments on to the switch's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulator.p4switch.state.state import State

Answer = Callable[..., Any]


def passed_to(find: Callable[[State, Any], Any], method: Callable[..., Any]) -> Answer:
    """The answer to a call whose arguments are a context, what `find` looks an object up by, and those of the object's
    `method`."""

    def answer(self, cxt: int, name: Any, *arguments: Any) -> Any:
        return method(find(self.device.state, name), *arguments)

    return answer


def passed_to_part(find: Callable[[State], Any], method: Callable[..., Any]) -> Answer:
    """The answer to a call whose arguments are a context and those of the `method` of a part of the state."""

    def answer(self, cxt: int, *arguments: Any) -> Any:
        return method(find(self.device.state), *arguments)

    return answer
