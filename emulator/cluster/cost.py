"""`Cost`, the result of every formula in `collectives.py` and `innetwork.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from switchml.errors import ConfigError


@dataclass(frozen=True)
class Cost:
    """Cost of a transfer: `fixed_s`, then `bytes` at `bytes_per_s`, so that a replay of concurrent flows can share the
    rate."""

    fixed_s: float
    bytes: float = 0.0
    bytes_per_s: float = math.inf
    leaving_bytes: float = 0.0
    """Bytes through the ports of all participating nodes together; 0: the transfer stays inside a node."""
    once_a_leaf: bool = False
    """Whether nodes under one leaf forward to each other, so that the bytes of a single node leave the leaf."""

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
        """Return the cost of both transfers in sequence; `bytes` are those of the slower one."""
        fast, slow = sorted((other, self), key=lambda one: one.bytes / one.bytes_per_s)
        return Cost(
            self.fixed_s + other.fixed_s + fast.bytes / fast.bytes_per_s,
            slow.bytes,
            slow.bytes_per_s,
            self.leaving_bytes + other.leaving_bytes,
            all(one.once_a_leaf for one in (self, other) if one.leaving_bytes),
        )

    def leaves(self, bytes: float, once_a_leaf: bool = False) -> Cost:
        """Return this cost with `bytes` passing through the ports of nodes."""
        return replace(self, leaving_bytes=bytes, once_a_leaf=once_a_leaf)


FREE = Cost(0.0)


def slowest(size_bytes: float, fixed_s: float, *transfers_s: float) -> Cost:
    """Return the cost of pipelined transfers: that of the slowest."""
    longest_s = max(transfers_s)
    return Cost(fixed_s, size_bytes, size_bytes / longest_s) if longest_s > 0 else Cost(fixed_s)
