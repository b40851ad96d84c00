"""Lower bounds of an all-reduce's time, in closed form: the simulation must agree with them without loss or late ranks.

Seconds throughout. n ranks, S bytes, links of B bits a second in each direction, L bytes on the line for every P bytes
of tensor, s slots.
"""

from __future__ import annotations

from emulator.netsim.config import JobConfig, LinkConfig
from switchml.protocol.packet import HEADER_BYTES
from switchml.protocol.sizes import LANE_BYTES


def packets(job: JobConfig) -> int:
    """Packets that each rank sends for one all-reduce, without rounds repeated after a wrong guess."""
    per_packet = job.payload_bytes // LANE_BYTES[job.wire]
    return -(-(job.size_bytes // 4) // per_packet)


def round_trip_s(job: JobConfig, link: LinkConfig) -> float:
    """A lone packet to the switch and its result back: twice its serialization and twice the delay."""
    line_bytes = job.payload_bytes + HEADER_BYTES + link.framing_bytes
    return 2 * (max(8 * line_bytes / link.rate_bps, link.packet_s) + link.delay_s)


def aggregation_s(job: JobConfig, link: LinkConfig, slots: int, above: LinkConfig | None = None) -> float:
    """In-network aggregation. A rank whose window of w packets covers the round trip sends at line rate: `RTT + (N -
    1) L/B`. Otherwise it sends w packets back to back each round trip: the last of N leaves `(N-1) mod w` packets
    after the beginning of round trip `(N-1) div w` (the usual argument for a sliding window; SwitchML, NSDI'21,
    section 3.3). `above`: the link of racks that add up their own ranks: its round trip comes on top, and the slower
    link counts.
    """
    service, round_trip = 0.0, 0.0
    for one in (link, above) if above else (link,):
        line_bytes = job.payload_bytes + HEADER_BYTES + one.framing_bytes
        service = max(service, 8 * line_bytes / one.rate_bps, one.packet_s)
        round_trip += round_trip_s(job, one)
    window, last = min(slots, job.window or slots), packets(job) - 1
    if window * service >= round_trip:
        return round_trip + last * service
    return round_trip + last // window * round_trip + last % window * service


def ring_s(workers: int, size_bytes: float, rate_bps: float, step_s: float = 0.0, line_share: float = 1.0) -> float:
    """A ring: 2(n-1) steps of S/n bytes, each with a latency (Patarasuk and Yuan, JPDC 2009). `line_share`: payload's
    share of what is on the line."""
    steps = 2 * (workers - 1)
    return steps * (step_s + 8 * size_bytes / workers / (rate_bps * line_share))
