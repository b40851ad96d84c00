"""What limits an experiment: its links or this machine's processors, which play all hosts and switches. The rate of
links is chosen so that it is the links, and rows that processors slowed down are named.
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
"""Racks whose switches aggregate, too, and racks that leave it to the switch above them."""
PROBE_BPS = 1e9
"""Of links that hold nothing up."""
PROBE_BYTES = 256 << 10
MOST_BPS, LEAST_BPS = 1e8, 1e6
SHARE = 0.4
"""Of what the processors pass on at PROBE_BPS, the links get: the rest is room for other programs."""
SLOW = 1.3
"""Times the bound of its links that a row may take before processors are to blame."""


class Links(Protocol):
    """What an experiment says of its all-reduces."""

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
    """A row: seconds of an all-reduce beside those that its links alone take, and how many cores were busy."""

    name: str
    seconds: float
    bound_s: float
    cores: float


def rate_for(goodput_bps: float) -> float:
    """A rate of links, bits a second, that the processors keep up with which passed `goodput_bps` on at PROBE_BPS."""
    return rounded(SHARE * goodput_bps)


def rounded(rate_bps: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above it, from LEAST_BPS to MOST_BPS."""
    power = 10.0 ** math.floor(math.log10(max(rate_bps, LEAST_BPS)))
    return min(MOST_BPS, max(step * power for step in (1, 2, 5) if step * power <= max(rate_bps, LEAST_BPS)))


def bound_s(plan: Links, series: str, workers: int, slots: int, link_loss: float, racks: int) -> float:
    """Seconds that the links alone take. A ring: 2 (n-1)/n of the tensor in TCP's segments. In the network: all packets
    one after the other and a round trip, or a round trip for each window of `slots`; what racks only forward shares the
    link between switches."""
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
    """A sentence for the rows that took much longer than their links do."""
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
