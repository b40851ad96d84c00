"""Allocation of an aggregator's resources to a job: its slots, the window of each rank, and the numbers that identify
its packets."""

import secrets
from collections.abc import Callable, Collection, Sequence

from switchml.control.dataplane import Address, PartSpec
from switchml.control.membership import MIN_SLOTS
from switchml.protocol.packet import MAX_BLOCKS
from switchml.protocol.pool_state import parts_of

KEY_BYTES = 16

DATAGRAM_MEMORY_BYTES = 2304
"""What Linux charges a socket's receive buffer for one datagram of about 1 KiB: its `skb->truesize`, a 2 KiB data
area plus the sk_buff itself. A buffer of B bytes therefore holds B / 2304 packets, whatever their payload adds up to.
"""
MIN_WINDOW = 4
"""The minimum advised window, however small the buffers: below it, waiting for round trips costs more than occasional
losses."""

PART_SLOTS = 256
"""The minimum slots of a part of a job with several parts: below it a part has too few packets in flight to be faster.
"""

ALL_RANKS_SLOTS, LEAST_SLOTS, MOST_SLOTS = 4096, 512, 2048
"""Default slots of a job: ALL_RANKS_SLOTS over its ranks, so that the data of all rounds in flight fits a processor's
cache, within these bounds. With few ranks, more slots have little benefit, since each one is used less often. Doubled
if other collectives use half of them (docs/protocol.md, section 11)."""


def default_slots(workers: int, queues: int = 1, *, large_packets: bool = False) -> int:
    """Default number of slots for a job of `workers` ranks: a power of two. `queues`: 1 or 2 share them."""
    if large_packets:
        return LARGE_SLOTS * queues
    share = ALL_RANKS_SLOTS >> (workers - 1).bit_length()
    return min(max(share, LEAST_SLOTS), MOST_SLOTS) * queues


LARGE_SLOTS = 64
"""Slots of a queue with large packets: those of a rank, and the results, then fit a core's second-level cache. More
rounds in flight exceed it, fewer make ranks wait (measured with 16 to 512, and 2, 4 and 8 ranks)."""
MAX_MEMORY_BYTES = 128 << 20
"""Maximum memory of the packets and results that a job's ranks and its aggregator share."""


def large_bytes(workers: int, slots: int, payload_bytes: int) -> int:
    """Data bytes of the large packets of a job whose ranks all share memory with the aggregator; 0 if the memory does
    not suffice for packets larger than others."""
    size = MAX_BLOCKS * payload_bytes
    while size > payload_bytes and (
        2 * (workers + 1) * slots * size > MAX_MEMORY_BYTES or not parts_of(workers, slots, size)
    ):
        size //= 2
    return size if size > payload_bytes else 0


def fit_slots(requested: int, free: int) -> int:
    """`requested` slots (a power of two), halved until `free` suffices; 0 if not even MIN_SLOTS fit."""
    slots = requested
    while slots > free and slots > MIN_SLOTS:
        slots //= 2
    return slots if slots <= free else 0


def count_parts(offered: int, slots: int) -> int:
    """Number of parts of a job with `slots` slots: a power of two, as each has a power of two of the slots."""
    return 1 << (max(min(offered, slots // PART_SLOTS), 1).bit_length() - 1)


def advised_window(slots: int, workers: int, aggregator_buffer_bytes: int, agent_buffer_bytes: int) -> int:
    """Number of rounds that a rank may have in flight, so that no socket buffer overflows when all of them arrive at
    once.

    The aggregator's buffer receives the packets of all ranks, an agent's only its own results. A buffer of 0 is
    unknown.
    """
    window = slots
    if aggregator_buffer_bytes:
        window = min(window, aggregator_buffer_bytes // (workers * DATAGRAM_MEMORY_BYTES))
    if agent_buffer_bytes:
        window = min(window, agent_buffer_bytes // DATAGRAM_MEMORY_BYTES)
    return min(slots, max(window, MIN_WINDOW))


def draw_tag(used: Collection[int], randbelow: Callable[[int], int] = secrets.randbelow) -> int:
    """Draw a tag that no other job has (docs/protocol.md section 2), from a cryptographic source. Never 0, which v1
    uses."""
    while True:
        job_tag = 1 + randbelow(0xFFFF)
        if job_tag not in used:
            return job_tag


def draw_key(randbelow: Callable[[int], int] = secrets.randbelow) -> bytes:
    """Draw the key of a job's packets (section 10)."""
    return randbelow(1 << 8 * KEY_BYTES).to_bytes(KEY_BYTES, "big")


def draw_isn(slots: int, randbelow: Callable[[int], int] = secrets.randbelow) -> int:
    """Draw an initial sequence number: 32 bits, a multiple of 2 * `slots`."""
    return randbelow((1 << 32) // (2 * slots)) * 2 * slots


def draw_parts(
    addresses: Sequence[Sequence[Address]],
    slots: int,
    used: Collection[int],
    randbelow: Callable[[int], int] = secrets.randbelow,
    *,
    with_keys: bool,
) -> list[PartSpec]:
    """Draw the addresses, tag, sequence number and key of each part of a job. `addresses[rank][part]`; `slots`: of each
    part, 0 for a job that sends no packets; `used`: tags of other jobs."""
    tags, drawn = set(used), []
    for ranks in zip(*addresses, strict=True):
        part = PartSpec(
            addresses=ranks,
            job_tag=draw_tag(tags, randbelow),
            isn=draw_isn(slots, randbelow) if slots else 0,
            key=draw_key(randbelow) if with_keys else b"",
        )
        tags.add(part.job_tag)
        drawn.append(part)
    return drawn
