"""How much of an aggregator a job gets: its slots, the window of each rank, and the numbers that identify its
packets."""

import secrets
from collections.abc import Callable, Collection, Sequence

from switchml.control.dataplane import Address, PartSpec
from switchml.control.membership import MIN_SLOTS
from switchml.protocol.packet import MOST_BLOCKS
from switchml.protocol.pool_state import parts_of

KEY_BYTES = 16

DATAGRAM_MEMORY_BYTES = 2304
"""What Linux charges a socket's receive buffer for one datagram of about 1 KiB: its `skb->truesize`, a 2 KiB data
area plus the sk_buff itself. A buffer of B bytes therefore holds B / 2304 packets, whatever their payload adds up to.
"""
MIN_WINDOW = 4
"""The least window that is advised, however small the buffers: below it, waiting for round trips costs more than
occasional losses."""

PART_SLOTS = 256
"""The least slots of a part of a job that has several: below it a part has too few packets under way to gain by it."""

ALL_RANKS_SLOTS, LEAST_SLOTS, MOST_SLOTS = 4096, 512, 2048
"""Slots of a job that leaves the number to us: ALL_RANKS_SLOTS over its ranks, so that the data of all rounds under way
fits a processor's cache, within these bounds. Few ranks benefit from more slots, as they use each one less often. As
many again where other collectives have half of them (docs/protocol.md, section 11)."""


def default_slots(workers: int, queues: int = 1, *, large_packets: bool = False) -> int:
    """How many slots suit a job of so many workers: a power of two. `queues`: 1 or 2 share them."""
    if large_packets:
        return LARGE_SLOTS * queues
    share = ALL_RANKS_SLOTS >> (workers - 1).bit_length()
    return min(max(share, LEAST_SLOTS), MOST_SLOTS) * queues


LARGE_SLOTS = 64
"""Slots of a queue where packets are large: those of a rank, and the results, then fit a core's second-level cache.
More rounds under way leave it, fewer make ranks wait (measured with 16 to 512, and 2, 4 and 8 ranks)."""
MOST_MEMORY_BYTES = 128 << 20
"""Of the packets and results that a job's ranks and its aggregator share."""


def large_bytes(workers: int, slots: int, payload_bytes: int) -> int:
    """Bytes of data in the large packets of a job whose ranks all share memory with the aggregator; 0 if there is not
    the memory for packets larger than others."""
    size = MOST_BLOCKS * payload_bytes
    while size > payload_bytes and (
        2 * (workers + 1) * slots * size > MOST_MEMORY_BYTES or not parts_of(workers, slots, size)
    ):
        size //= 2
    return size if size > payload_bytes else 0


def fit_slots(requested: int, free: int) -> int:
    """`requested` slots (a power of two), halved until `free` suffices; 0 if not even MIN_SLOTS do."""
    slots = requested
    while slots > free and slots > MIN_SLOTS:
        slots //= 2
    return slots if slots <= free else 0


def count_parts(offered: int, slots: int) -> int:
    """Of how many parts a job with so many slots consists: a power of two, as each has a power of two of the slots."""
    return 1 << (max(min(offered, slots // PART_SLOTS), 1).bit_length() - 1)


def advised_window(slots: int, workers: int, aggregator_buffer_bytes: int, agent_buffer_bytes: int) -> int:
    """How many rounds a rank may have under way, so that no socket buffer overflows when all of them arrive at once.

    The aggregator's buffer takes the packets of all ranks, an agent's only its own results. A buffer of 0 is unknown.
    """
    window = slots
    if aggregator_buffer_bytes:
        window = min(window, aggregator_buffer_bytes // (workers * DATAGRAM_MEMORY_BYTES))
    if agent_buffer_bytes:
        window = min(window, agent_buffer_bytes // DATAGRAM_MEMORY_BYTES)
    return min(slots, max(window, MIN_WINDOW))


def draw_tag(used: Collection[int], randbelow: Callable[[int], int] = secrets.randbelow) -> int:
    """A tag that no other job has (docs/protocol.md section 2), from a cryptographic source. Never 0, which v1 has."""
    while True:
        job_tag = 1 + randbelow(0xFFFF)
        if job_tag not in used:
            return job_tag


def draw_key(randbelow: Callable[[int], int] = secrets.randbelow) -> bytes:
    """The key of a job's packets (section 10)."""
    return randbelow(1 << 8 * KEY_BYTES).to_bytes(KEY_BYTES, "big")


def draw_isn(slots: int, randbelow: Callable[[int], int] = secrets.randbelow) -> int:
    """An initial sequence number: 32 bits, a multiple of 2 * `slots`."""
    return randbelow((1 << 32) // (2 * slots)) * 2 * slots


def draw_parts(
    addresses: Sequence[Sequence[Address]],
    slots: int,
    used: Collection[int],
    randbelow: Callable[[int], int] = secrets.randbelow,
    *,
    with_keys: bool,
) -> list[PartSpec]:
    """What each part of a job has of its own. `addresses[rank][part]`; `slots`: of each part, 0 for a job that sends no
    packets; `used`: tags of other jobs."""
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
