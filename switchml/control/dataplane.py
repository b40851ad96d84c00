"""The interface of data planes, which sum packets, for the control plane: the software aggregator (switchml/aggregator)
or P4 switches (p4/dataplane.py).

Plain data is passed in (`JobSpec`) and out (`JobCounters`); the data plane decides how to store slots and workers.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from switchml.counters import COUNTERS, REFUSED

__all__ = ["COUNTERS", "REFUSED", "Address", "Dataplane", "JobCounters", "JobSpec", "Link", "PartSpec"]

Address = tuple[str, int]
"""IPv4 and UDP port."""


@dataclass(frozen=True)
class PartSpec:
    """Properties of a further part of a job: the ranks' addresses, and numbers as in `JobSpec`."""

    addresses: tuple[Address, ...]
    job_tag: int
    isn: int
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class JobSpec:
    """One job from the data plane's point of view.

    `workers` is the world size n. `protocol` 1 or 2. `slots` is S, a power of two in v2 and 8192 in v1.
    `addresses[rank]` is (IPv4, UDP port): the source of the rank's packets and the destination of its results; in v1
    the port is 0 (any) and an entry is None until that rank has called UdpSession. `job_tag`, `isn`: section 2 of
    docs/protocol.md (0 in v1). `wire` as in packet.py. `transports[rank]` and `macs[rank]` (0: unknown), from the
    rank's join request, describe the path of its packets; a software aggregator ignores them. Empty: by UDP sockets.
    """

    job_id: int
    protocol: int
    workers: int
    slots: int
    payload_bytes: int
    addresses: tuple[tuple[str, int] | None, ...]
    job_tag: int = 0
    isn: int = 0
    wire: int = 0
    transports: tuple[str, ...] = ()
    macs: tuple[int, ...] = ()
    key: bytes = field(default=b"", repr=False)
    """Key with which packets are signed (docs/protocol.md, section 10); empty: they are not signed."""
    more: tuple[PartSpec, ...] = ()
    """Further parts (section 7), with the same number of slots each."""
    has_deadline: bool = False
    """Whether rounds may end without late ranks (section 13)."""
    large_bytes: int = 0
    """Data bytes of the job's large packets (section 7), which all ranks exchange in shared memory; 0: no large
    packets."""

    @property
    def data_bytes(self) -> int:
        """Maximum data bytes of a packet."""
        return max(self.payload_bytes, self.large_bytes)

    @property
    def parts(self) -> "tuple[JobSpec, ...]":
        """Each part as a job by itself."""
        first = replace(self, more=())
        return first, *(replace(first, **vars(part)) for part in self.more)


@dataclass(frozen=True)
class Link:
    """Path to the switch of a rank that builds its Ethernet frames itself. `where`: `udp:ADDRESS:PORT` for one frame
    per datagram, or `packet:INTERFACE`; empty if the rank has an interface of its own. MAC addresses are numbers."""

    where: str
    mac: int
    switch_mac: int


@dataclass(frozen=True)
class JobCounters:
    """Counters of a job: `ranks[rank][name]` for the names in COUNTERS, and the number of slots with an open round."""

    ranks: tuple[dict[str, int], ...]
    slots_in_use: int
    missing: tuple[int, ...] = field(default=())
    """Ranks that an open round waits for (union over open rounds that began at least a second ago)."""


class Dataplane(Protocol):
    """A data plane. Methods may be called from any thread and return when the change has taken effect."""

    address: tuple[str, int]
    """Address to which agents send their packets: IPv4 and UDP port."""
    slot_capacity: int
    """Total number of slots of all v2 jobs."""
    receive_buffer_bytes: int
    """Bytes that the data socket can buffer; bounds the window advised to agents (0: no bound)."""
    buffer_a_rank: bool
    """Whether each rank's packets have such a buffer of their own."""
    transports: tuple[str, ...]
    """Transports by which agents may reach it, the best first; see host_agent/agent.py."""
    mac: int
    """Its MAC address, 0 if it has none of its own."""
    v1_place: tuple[str, int] | None
    """IPv4 and MAC address to which v1 hosts send their packets, if that is not `address`."""
    padded: bool = False
    """Whether sparse packets without data must be padded, because a packet may not grow by more than 512 bytes
    (docs/protocol.md, section 8)."""
    dense_only: bool = False
    """Whether sparse packets are refused, because switches in a tree do not support them (section 9)."""
    collectives: bool = False
    """Whether addressed packets are accepted, and so collectives other than sums for all ranks (section 11)."""
    only_sums: bool = False
    """Whether addressed packets with an op other than the sum are refused: minima, maxima and bitwise operations."""
    halves: bool = False
    """Whether half precision is summed unconverted, in jobs with the required memory (pool_state.parts_of; section 11).
    """

    ends_early: bool = False
    """Whether a round can end without late ranks (section 13)."""

    authenticates: bool = False
    """Whether it can verify and sign packets (section 10)."""

    most_parts: int
    """Maximum number of parts of a job (section 7)."""

    memory: str = ""
    """Name of a shared-memory segment with which a rank tests whether it can share memory with the data plane
    (switchml/net/shm.py); "": none can."""

    def parts_for(self, wanted: int) -> int:
        """Number of parts of the next job to start, at most `wanted`."""

    def start_job(self, spec: JobSpec) -> None:
        """Install a job with clean slots. Raises ConfigError if an address belongs to another job or no memory
        is left."""

    def set_address(self, job_id: int, rank: int, address: tuple[str, int], mac: int = 0) -> None:
        """v1 only: set a rank's address once it is known."""

    def stop_job(self, job_id: int) -> None:
        """Remove the job; its packets are refused from now on. Unknown ids are ignored."""

    def address_for(self, sender: Address) -> Address:
        """Destination of the packets of a rank that sends from `sender` (`address` unless there are several); called
        once the rank's job has started."""

    def segment(self, job_id: int, part: int = 0) -> str:
        """Name of the memory that ranks on the data plane's own machine may share with a part of a job
        (switchml/net/shm.py), or ""."""

    def link(self, job_id: int, rank: int) -> Link | None:
        """Path of the rank's frames; None if `address_for` suffices."""

    def failed(self) -> dict[int, str]:
        """Jobs that can't continue because the data plane lost their state → the reason. They must still be stopped."""

    def counters(self, job_id: int) -> JobCounters:
        """Counters of a job. Raises KeyError for an unknown job."""

    def refused(self) -> dict[str, int]:
        """The counters named in REFUSED."""
