"""What a transfer costs: the terms that every formula of `collectives.py` and `innetwork.py` gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from switchml.errors import ConfigError


@dataclass(frozen=True)
class Cost:
    """`fixed_s` and then `bytes` at `bytes_per_s`, so that whoever replays many flows at once can share the rate."""

    fixed_s: float
    bytes: float = 0.0
    bytes_per_s: float = math.inf
    leaving_bytes: float = 0.0
    """What goes through the ports of all its nodes together; 0: it stays inside a node."""
    once_a_leaf: bool = False
    """Whether nodes under one leaf hand it on to each other, so that it leaves the leaf with what leaves one node."""

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0:
            raise ConfigError(
                f"a transfer of {self.bytes:g} bytes would never end: look at rates, latencies and timeouts of cluster "
                "and switch"
            )

    @property
    def seconds(self) -> float:
        return self.fixed_s + self.bytes / self.bytes_per_s

    def plus(self, other: Cost) -> Cost:
        """One after the other; the bytes are those of the slower one."""
        fast, slow = sorted((other, self), key=lambda one: one.bytes / one.bytes_per_s)
        return Cost(
            self.fixed_s + other.fixed_s + fast.bytes / fast.bytes_per_s,
            slow.bytes,
            slow.bytes_per_s,
            self.leaving_bytes + other.leaving_bytes,
            all(one.once_a_leaf for one in (self, other) if one.leaving_bytes),
        )

    def leaves(self, bytes: float, once_a_leaf: bool = False) -> Cost:
        """The same, so many bytes of which go through the ports of nodes."""
        return replace(self, leaving_bytes=bytes, once_a_leaf=once_a_leaf)


FREE = Cost(0.0)


def slowest(size_bytes: float, fixed_s: float, *transfers_s: float) -> Cost:
    """The slowest of several pipelined transfers."""
    longest_s = max(transfers_s)
    return Cost(fixed_s, size_bytes, size_bytes / longest_s) if longest_s > 0 else Cost(fixed_s)
