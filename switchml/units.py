"""Numbers with units: one parser for options, TOML files and environment variables, and the texts of all tables and
reports.

A size is `25MB` (10^6), `25MiB` (2^20) or, as in nccl-tests and dd, `25M` (2^20, too). A rate is in bits, as in tc(8)
(`200mbit`, `10Gb/s`), or in bytes (`25GB/s`). A time is `2ms`. A count is `1k` or `300B` (10^9). A number without a
unit is accepted only if the name of its option or key implies one: `timeout_s`, `--wire-bytes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from switchml.errors import ConfigError

_BINARY = {letter: 1024.0**power for power, letter in enumerate("KMGTP", 1)}
_DECIMAL = {letter: 1000.0**power for power, letter in enumerate("KMGTP", 1)}
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zA-Zµμ/]*)")


@dataclass(frozen=True)
class Kind:
    """A kind of quantity. Values are floats in the `base` unit."""

    name: str
    base: str
    """The unit of a parsed value: B, bit/s, s, or "" for a count."""
    example: str
    units: Mapping[str, float]
    """Unit → factor, case-insensitive."""
    cased: Mapping[str, float]
    """Case-sensitive units, which take precedence: GB/s is eight times Gb/s."""

    def parse(self, text: str, bare: float | None = None) -> float:
        """Parse the number in `text`; without a unit it is multiplied by `bare`, or refused if `bare` is None. Raises
        ConfigError for anything else, including infinities."""
        match = _NUMBER.fullmatch(text.strip())
        number = float(match[1].replace("_", "")) if match else math.nan
        factor = self._factor(match[2], bare) if match else None
        if factor is None or not math.isfinite(number * factor):
            raise ConfigError(f"{text!r}: expected {self._expected(bare)}")
        if factor < 1:  # so that 25us is 2.5e-05, not 2.4999999999999998e-05
            return number / round(1 / factor)
        return number * factor

    def is_bare(self, text: str) -> bool:
        """Whether `text` is a number without a unit (other than 0, which needs none)."""
        match = _NUMBER.fullmatch(text.strip())
        return match is not None and not match[2] and float(match[1].replace("_", "")) != 0

    def _factor(self, unit: str, bare: float | None) -> float | None:
        if not unit:
            return bare if bare is not None or self.base else 1.0
        if unit in self.cased:
            return self.cased[unit]
        return {name.lower(): factor for name, factor in self.units.items()}.get(unit.lower())

    def _expected(self, bare: float | None) -> str:
        if not self.base:
            return f"a number, such as {self.example}"
        return f"a {self.name}, such as {self.example}" + (", with its unit" if bare is None else "")


SIZE = Kind(
    "size",
    "B",
    "25MB or 25MiB",
    {
        "B": 1.0,
        **{unit + end: factor for unit, factor in _BINARY.items() for end in ("", "i", "iB")},
        **{unit + "B": factor for unit, factor in _DECIMAL.items()},
    },
    {},
)
RATE = Kind(
    "rate",
    "bit/s",
    "200mbit or 10gbit",
    {prefix + "bit" + end: factor for prefix, factor in {"": 1.0, **_DECIMAL}.items() for end in ("", "/s")},
    {
        **{prefix + end: factor for prefix, factor in {"k": 1e3, **_DECIMAL}.items() for end in ("b/s", "bps")},
        **{prefix + "B/s": 8 * factor for prefix, factor in {"": 1.0, "k": 1e3, **_DECIMAL}.items()},
        **{prefix + "iB/s": 8 * factor for prefix, factor in _BINARY.items()},
    },
)
TIME = Kind(
    "time",
    "s",
    "2ms or 100us",
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
    {},
)
COUNT = Kind("count", "", "1k, 25M or 300B", {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}, {})

SUFFIXES: tuple[tuple[str, Kind, float], ...] = (
    ("_bytes_per_s", RATE, 8.0),
    ("_bytes", SIZE, 1.0),
    ("_per_s", COUNT, 1.0),
    ("_bps", RATE, 1.0),
    ("_hours", TIME, 3600.0),
    ("_ms", TIME, 1e-3),
    ("_s", TIME, 1.0),
    ("seconds", TIME, 1.0),
    ("megabytes", SIZE, 1e6),
)
"""Suffixes of names that imply a unit: the kind of quantity, and the unit relative to that kind's base."""


def of_name(name: str) -> tuple[Kind, float]:
    """Kind of quantity of an option or key called `name`, and its unit relative to that kind's base: `rate_bps`,
    `--delay-s`. A name without a known suffix is that of a count."""
    name = name.lstrip("-").replace("-", "_")
    for suffix, kind, unit in SUFFIXES:
        if name.endswith(suffix) or name == suffix[1:]:
            return kind, unit
    return COUNT, 1.0


def parse_named(name: str, text: str) -> float:
    """Parse the number in `text`, in the unit implied by `name`; raises ConfigError. `parse_named("timeout_s", "2ms")`
    is 0.002."""
    kind, unit = of_name(name)
    return kind.parse(text, bare=unit) / unit


def time_text(seconds: float) -> str:
    """Text of a duration with three digits and a suitable unit: 1.23 s, 45.6 ms, 789 µs, 3.4 h."""
    if seconds == 0:
        return "0 s"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * (2 if unit in ("d", "h", "min") else 1):
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns"


_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


class TimeUnit:
    """A common unit for a column of times, suitable for the longest of them: its `name`, and the formatting of
    figures."""

    def __init__(self, seconds: Iterable[float]) -> None:
        longest_s = max((abs(each) for each in seconds), default=0.0)
        fits = (unit for unit in _UNITS if longest_s >= unit[1] * (2 if unit[1] > 1 else 1))
        self.name, self.size_s = next(fits, ("s", 1.0))
        longest = longest_s / self.size_s
        self._places = 1 if longest >= 100 else 2 if longest >= 10 else 3

    def text(self, seconds: float) -> str:
        """Figure in this unit; all have the number of decimals that gives the longest time four digits."""
        return f"{seconds / self.size_s:,.{self._places}f}"

    def signed(self, seconds: float) -> str:
        """Figure with a sign."""
        return f"{seconds / self.size_s:+,.{self._places}f}".replace("-", "−")


def bytes_text(count: float) -> str:
    """Text of a size in powers of ten: 12.3 GB."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f} B"


GIB = 2**30


def memory_text(size_bytes: float) -> str:
    """Text of a memory size in powers of two, as used by drivers and torch for accelerators: 79.1 GiB."""
    if 0 < abs(size_bytes) < GIB / 10:
        return f"{size_bytes / 2**20:,.1f} MiB"
    return f"{size_bytes / GIB:,.1f} GiB"


def _three(value: float) -> str:
    """Text with three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
