"""Bottleneck of an experiment: its links or this machine's processors, which run all hosts and switches. Link rates are
chosen so that the links are the bottleneck, and rows that the processors slowed down are reported.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from emulator.lab.bench.sizes import ITEM_BYTES
from switchml.protocol import sizes

RING = "ring"
"""Gloo's all-reduce, through bridges."""
TREE, FLAT = "tree", "flat"
"""TREE: rack switches aggregate, too. FLAT: rack switches only forward to the aggregating switch above them."""
PROBE_BPS = 1e9
"""Link rate of the probe run, high enough that links are not the bottleneck."""
PROBE_BYTES = 256 << 10
MAX_BPS, MIN_BPS = 1e8, 1e6
SHARE = 0.4
"""Link rate as a share of the goodput that the processors reach at PROBE_BPS; the rest is left to other programs."""
SLOW = 1.3
"""Ratio of measured time to link bound above which the processors are considered the bottleneck."""


class Links(Protocol):
    """Properties of an experiment's all-reduces and links."""

    @property
    def rate_bps(self) -> float: ...
    @property
    def delay_s(self) -> float: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def wire(self) -> str: ...


@dataclass(frozen=True)
class Timed:
    """A row: measured seconds of an all-reduce, the lower bound set by its links, and the number of busy cores."""

    name: str
    seconds: float
    bound_s: float
    cores: float


def rate_for(goodput_bps: float) -> float:
    """Link rate in bits/s that processors can sustain which reached `goodput_bps` at PROBE_BPS."""
    return rounded(SHARE * goodput_bps)


def rounded(rate_bps: float) -> float:
    """Round a rate down to 1, 2 or 5 times a power of ten, between MIN_BPS and MAX_BPS."""
    power = 10.0 ** math.floor(math.log10(max(rate_bps, MIN_BPS)))
    return min(MAX_BPS, max(step * power for step in (1, 2, 5) if step * power <= max(rate_bps, MIN_BPS)))


def bound_s(plan: Links, series: str, workers: int, slots: int, link_loss: float, racks: int) -> float:
    """Lower bound in seconds set by the links. A ring: 2 (n-1)/n of the tensor in TCP segments. In-network aggregation:
    all packets back to back plus a round trip, or a round trip for each window of `slots`; in racks that only forward,
    the hosts share the link between switches."""
    rate = plan.rate_bps * (1.0 - link_loss)
    if series == RING:
        steps = 2 * (workers - 1)
        moved = steps / workers * 8 * plan.size_bytes / (rate * sizes.TCP_SHARE)
        return moved + steps * 2 * plan.delay_s
    lanes = plan.payload_bytes // sizes.LANE_BYTES[plan.wire]
    packets = math.ceil(plan.size_bytes / ITEM_BYTES / lanes)
    shared = math.ceil(workers / racks) if series == FLAT else 1
    service = shared * 8 * (plan.payload_bytes + sizes.FRAME_OVERHEAD_BYTES) / rate
    round_trip = (2 if series in (TREE, FLAT) else 1) * 2 * (service + plan.delay_s)
    return round_trip + (packets - 1) * max(service, round_trip / slots if slots else 0.0)


def warnings(rows: Sequence[Timed], rate_bps: float) -> Iterator[str]:
    """A warning about rows that took much longer than their link bound."""
    slow = [row for row in rows if row.seconds > SLOW * row.bound_s]
    if not slow:
        return
    worst = max(slow, key=lambda row: row.seconds / row.bound_s)
    yield (
        f"{len(slow)} of {len(rows)} rows took over {SLOW:g} times what their links take, at most "
        f"{worst.seconds / worst.bound_s:.1f} times ({worst.name}; {worst.cores:.1f} cores busy with it): this "
        "machine's processors were the limit, not the links; take fewer hosts, or a --rate below "
        f"{rate_bps / 1e6:g}mbit"
    )
