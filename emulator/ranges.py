"""Ranges of the numbers in descriptions of jobs, clusters and networks. A range is defined once, in the metadata of its
dataclass field; it is checked whenever an instance is made, and shown in help texts and on the page.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchml.errors import ConfigError

TINY = 1e-100
"""Nothing between 0 and this is in a range: dividing by it overflows."""


@dataclass(frozen=True)
class Range:
    """Interval from `least` to `most`. `bounds` as in mathematics: a round bracket excludes its end. NaN is in no
    range, nor is anything but 0 that is smaller than `TINY`."""

    least: float
    most: float
    bounds: str = "[]"

    def __contains__(self, value: float) -> bool:
        if 0 < abs(value) < TINY:
            return False
        above = value > self.least if self.bounds[0] == "(" else value >= self.least
        return above and (value < self.most if self.bounds[1] == ")" else value <= self.most)

    def __str__(self) -> str:
        if self.bounds == "[]":
            return f"{_text(self.least)} to {_text(self.most)}"
        least = "more than" if self.bounds[0] == "(" else "at least"
        most = "less than" if self.bounds[1] == ")" else "at most"
        return f"{least} {_text(self.least)} and {most} {_text(self.most)}"


SHARE = Range(0, 1)
FACTOR = Range(0, 1e6, "(]")
BYTES = Range(0, 1e18)
RATE = Range(0, 1e33, "(]")
"""Bits, bytes, packets or FLOPs per second."""
SECONDS = Range(0, 1e9)
SEED = Range(0, 2**32 - 1)


def number(range: Range, default: Any = dataclasses.MISSING, *, factory: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that holds a number, or a tuple or mapping of numbers, in `range`; None is accepted. Without a
    default the field is required."""
    return dataclasses.field(default=default, default_factory=factory, metadata={"range": range})


class Ranged:
    """Base class of dataclasses whose numbers have ranges. Creating an instance raises ConfigError for a number out of
    range."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # of the subclass
            if (range := item.metadata.get("range")) is not None:
                _check(item.name, getattr(self, item.name), range)


def _check(name: str, value: Any, range: Range) -> None:
    if isinstance(value, Mapping):
        for key, one in value.items():
            _check(f"{name}.{key}", one, range)
    elif isinstance(value, tuple):
        for index, one in enumerate(value):
            _check(f"{name}[{index}]", one, range)
    elif value is not None and value not in range:
        or_zero = f", {TINY:g} or more if not 0" if 0 < abs(value) < TINY else ""
        raise ConfigError(f"{name} is {shown(value)}; expected {range}{or_zero}")


def _text(value: float) -> str:
    if isinstance(value, int) and abs(value) < 1e12:
        return f"{value:,}"
    return re.sub(r"e\+0?", "e", f"{value:g}")


def shown(value: float) -> str:
    """`value` as text for a message; Python refuses to print integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1} or more"
    return str(value)
