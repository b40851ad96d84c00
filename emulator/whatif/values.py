"""Values that callers hand in, checked."""

from __future__ import annotations

from switchml.errors import ConfigError


def positive(value: float | None, what: str) -> float:
    """`value`, or ConfigError where it is not above 0."""
    if value is None or not 0 < value < float("inf"):
        raise ConfigError(f"{what}: {value} makes no sense; expected a number above 0")
    return float(value)
