"""Lower bounds of a simulation's memory and time. Each parameter of a network is range-checked, but not products such
as ranks times bytes times repeats; so this is checked before anything is allocated.
"""

import math

import psutil

from emulator.networks.netsim.config import JobConfig, NetworkConfig
from switchml.errors import BudgetSpent, ConfigError
from switchml.protocol.packet import HEADER_BYTES
from switchml.protocol.sizes import LANE_BYTES

PACKET_S = 1e-5
"""Wall-clock time per packet: 40 to 125 µs were measured on one core of a Xeon, and no machine is
five times as fast."""
HOST_BYTES, RANK_BYTES = 10_000, 350_000
"""Memory of Python objects and a worker's records, independent of its slots."""
SLOT_BYTES = 400
"""Memory of a worker's record of a slot, without its packets; a pool's is no smaller."""


def check(config: NetworkConfig, seconds: float = math.inf, memory_bytes: float | None = None) -> None:
    """Raises ConfigError where a network needs more memory than is free, or than `memory_bytes`, and BudgetSpent where
    its packets take longer than `seconds` of wall-clock time."""
    free_bytes = min(psutil.virtual_memory().available, memory_bytes or math.inf)
    slots = config.slots_of_jobs()
    needed_bytes = config.hosts * HOST_BYTES + sum(map(_bytes, config.jobs, slots))
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"this network needs about {needed_bytes / 1e9:,.1f} GB, but {free_bytes / 1e9:,.1f} GB are free: take "
            "fewer or smaller jobs, or fewer slots"
        )
    packets = sum(map(_packets, config.jobs))
    if packets * PACKET_S > seconds:
        raise BudgetSpent(
            f"at least {packets:,} packets take more than {packets * PACKET_S:,.0f} s; {seconds:g} s are allowed "
            "(--time-limit)"
        )


def _bytes(job: JobConfig, slots: int) -> int:
    """Bytes of tensors, masks of zeros, and the packets of used slots."""
    copies = len(job.kinds) + (2 if job.block else 0)
    used = min(slots, job.size_bytes // job.payload_bytes + 1)
    a_slot = SLOT_BYTES + 2 * (HEADER_BYTES + job.payload_bytes)
    return 3 * job.size_bytes + job.workers * (RANK_BYTES + copies * job.size_bytes + used * a_slot)


def _packets(job: JobConfig) -> int:
    """Minimum number of packets that the ranks send."""
    a_call = int(job.density * job.size_bytes / 4 * LANE_BYTES[job.wire] / job.payload_bytes)
    return job.repeats * job.workers * max(1, a_call // job.train_packets)
