"""What an all-reduce costs over links of a given rate, by who adds up. Rings and the switch are played packet by packet
(`emulator/network`) at two sizes, and a line is drawn through them; a server that all send to is a closed form.
"""

from __future__ import annotations

from functools import cache

from emulator.network import experiment
from emulator.network.config import JobConfig, LinkConfig, NetworkConfig
from emulator.trace.transfers import Transfer

SECONDS = (0.004, 0.064)
"""How long the two all-reduces that are played keep a link busy, about."""
LEAST_BYTES, MOST_BYTES = 16 << 10, 2 << 20
BURST_BYTES, LEAST_QUEUE_BYTES, QUEUE_S = 72 << 10, 256 << 10, 0.025
"""As emulator/star.py shapes links."""
FRAMING_BYTES = 8 + 20 + 14
"""UDP, IPv4 and Ethernet, what tc counts of a datagram besides its payload."""
TRAIN_PACKETS = 60


@cache
def over_link(placement: str, link_bytes_per_s: float, ranks: int) -> Transfer:
    """`placement`: ring, switchml or ps."""
    if placement == "ps":
        ring = over_link("ring", link_bytes_per_s, ranks)
        return Transfer(ring.fixed_s / max(1, ranks - 1), link_bytes_per_s / ranks)
    small, large = (max(LEAST_BYTES, int(seconds * link_bytes_per_s) // 1024 * 1024) for seconds in SECONDS)
    small, large = min(small, MOST_BYTES // 8), min(max(large, 4 * small), MOST_BYTES)
    small_s, large_s = (_play(placement, link_bytes_per_s, ranks, size) for size in (small, large))
    per_byte_s = max((large_s - small_s) / (large - small), 1e-15)
    return Transfer(max(small_s - small * per_byte_s, 0.0), 1.0 / per_byte_s)


def _play(placement: str, link_bytes_per_s: float, ranks: int, size_bytes: int) -> float:
    """Median seconds of an all-reduce; the token buckets start each one full, as after a step's computation."""
    rate = link_bytes_per_s * 8
    job = JobConfig(
        workers=ranks,
        size_bytes=size_bytes,
        backend=placement,
        repeats=3,
        pause_s=2 * BURST_BYTES / link_bytes_per_s,
        train_packets=TRAIN_PACKETS,
    )
    link = LinkConfig(
        rate_bps=rate,
        delay_s=0.0,
        queue_bytes=max(LEAST_QUEUE_BYTES, round(link_bytes_per_s * QUEUE_S)),
        burst_bytes=BURST_BYTES,
        framing_bytes=FRAMING_BYTES,
    )
    return experiment.run(NetworkConfig(jobs=(job,), link=link)).jobs[0].median_s
