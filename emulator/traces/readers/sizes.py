"""Sizes recorded by a capture: those of Gloo's collectives and of gradients, which torch's profile contains only if it
has the shapes of all tensors (host_agent/profile/sizes.py).
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from emulator.traces.communication import item_bytes
from switchml.errors import TraceError
from switchml.files import read_bytes, reading

_SLACK_NS = 50_000
"""Difference between the profiler's clock, which counts cycles, and Unix time."""


class CollectiveSize(msgspec.Struct):
    """A collective, or a message with rank `peer`: shapes and types of its inputs and outputs (of a message:
    inputs)."""

    name: str
    at_ns: int
    group: str
    inputs: list[list[int]] = msgspec.field(name="in")
    input_types: list[str] = msgspec.field(name="in_types")
    outputs: list[list[int]] = msgspec.field(name="out", default_factory=list)
    output_types: list[str] = msgspec.field(name="out_types", default_factory=list)
    peer: int | None = None

    def bytes(self) -> tuple[int, int]:
        """Return input and output bytes."""
        return _bytes(self.inputs, self.input_types), _bytes(self.outputs, self.output_types)


class Parameter(msgspec.Struct):
    """A parameter; `name` is "" if unknown."""

    name: str
    bytes: int


class Sizes(msgspec.Struct):
    """Recorded sizes. `groups`: their ranks; `calls` by time; `gradients`: indexes into `parameters`, in the order in
    which they became final."""

    groups: dict[str, list[int]]
    calls: list[CollectiveSize]
    parameters: list[Parameter]
    gradients: list[int]


class Request(NamedTuple):
    """A communication event, its name, and the range of Unix times of its request."""

    event: int
    name: str
    from_ns: float
    until_ns: float


def read(path: Path) -> Sizes | None:
    """Read the sizes; None if there is no such file, as in older captures. Raises TraceError if it is damaged."""
    if not path.exists():
        return None
    with reading(path, TraceError):
        return msgspec.json.decode(read_bytes(path, TraceError), type=Sizes)


def match(calls: Iterable[CollectiveSize], requests: Iterable[Request]) -> dict[int, CollectiveSize]:
    """Return event → its call, in order within a name; either side may lack entries of the other."""
    waiting: dict[str, list[CollectiveSize]] = {}
    for call in sorted(calls, key=lambda call: call.at_ns, reverse=True):
        waiting.setdefault(call.name, []).append(call)
    call_of = {}
    for one in sorted(requests, key=lambda one: one.until_ns):
        left = waiting.get(one.name, [])
        while left and left[-1].at_ns < one.from_ns - _SLACK_NS:
            left.pop()
        if left and left[-1].at_ns <= one.until_ns + _SLACK_NS:
            call_of[one.event] = left.pop()
    return call_of


def _bytes(shapes: list[list[int]], types: list[str]) -> int:
    """Return the bytes of tensors; if there are fewer types, the last applies to all remaining ones."""
    kinds = [types[min(at, len(types) - 1)] if types else "float" for at in range(len(shapes))]
    return sum(math.prod(shape) * item_bytes(kind) for shape, kind in zip(shapes, kinds, strict=True))
