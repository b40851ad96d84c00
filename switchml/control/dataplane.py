"""The interface of what adds packets up, the software aggregator (switchml/aggregator) or P4 switches
(p4/dataplane.py), as the control plane uses it.

Plain data goes in (`JobSpec`) and comes out (`JobCounters`); how slots and workers are stored is up to the data plane.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from switchml.counters import COUNTERS, REFUSED

__all__ = ["COUNTERS", "REFUSED", "Address", "Dataplane", "JobCounters", "JobSpec", "Link", "PartSpec"]

Address = tuple[str, int]
"""IPv4 and UDP port."""


@dataclass(frozen=True)
class PartSpec:
    """What a further part of a job has of its own: the ranks' addresses, and numbers as in `JobSpec`."""

    addresses: tuple[Address, ...]
    job_tag: int
    isn: int
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class JobSpec:
    """One job as the data plane sees it.

    `workers` is the world size n. `protocol` 1 or 2. `slots` is S, a power of two in v2 and 8192 in v1.
    `addresses[rank]` is (IPv4, UDP port): where the rank's packets come from and its results go to; in v1 the port is 0
    (any) and an entry is None until that rank has called UdpSession. `job_tag`, `isn`: section 2 of docs/protocol.md (0
    in v1). `wire` as in packet.py. `transports[rank]` and `macs[rank]` (0: unknown), from the rank's join request,
    describe how its packets travel; a software aggregator ignores them. Empty: by UDP sockets.
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
    """With what packets are signed (docs/protocol.md, section 10); empty: they are not."""
    more: tuple[PartSpec, ...] = ()
    """Further parts (section 7), of as many slots each."""
    has_deadline: bool = False
    """Whether rounds may end without ranks that are late (section 13)."""
    large_bytes: int = 0
    """Of data in the job's large packets (section 7), which all ranks hand over in memory; 0: there are none."""

    @property
    def data_bytes(self) -> int:
        """Of data in a packet at most."""
        return max(self.payload_bytes, self.large_bytes)

    @property
    def parts(self) -> "tuple[JobSpec, ...]":
        """Each part as a job by itself."""
        first = replace(self, more=())
        return first, *(replace(first, **vars(part)) for part in self.more)


@dataclass(frozen=True)
class Link:
    """How a rank that makes its Ethernet frames itself reaches the switch. `where`: `udp:ADDRESS:PORT` for a frame a
    datagram, or `packet:INTERFACE`; empty if the rank has an interface of its own. MAC addresses are numbers."""

    where: str
    mac: int
    switch_mac: int


@dataclass(frozen=True)
class JobCounters:
    """`ranks[rank][name]` for the names in COUNTERS, and the number of slots with a round under way."""

    ranks: tuple[dict[str, int], ...]
    slots_in_use: int
    missing: tuple[int, ...] = field(default=())
    """Ranks that an open round waits for (union over open rounds that began at least a second ago)."""


class Dataplane(Protocol):
    """A driver. Methods may be called from any thread and return when the change is in force."""

    address: tuple[str, int]
    """Where agents send their packets: IPv4 and UDP port."""
    slot_capacity: int
    """Slots that all v2 jobs together may have."""
    receive_buffer_bytes: int
    """What the data socket can hold unread; bounds the window advised to agents (0: no bound)."""
    buffer_a_rank: bool
    """Whether each rank's packets have such a buffer for themselves."""
    transports: tuple[str, ...]
    """How agents may reach it, the best first; see host_agent/agent.py."""
    mac: int
    """Its MAC address, 0 if it has none of its own."""
    v1_place: tuple[str, int] | None
    """IPv4 and MAC address to which v1 hosts send their packets, where that is not `address`."""
    padded: bool = False
    """Whether sparse packets without data have to be padded, because a packet may not grow by more than 512 bytes
    (docs/protocol.md, section 8)."""
    dense_only: bool = False
    """Whether sparse packets are refused, because switches in a tree know none (section 9)."""
    collectives: bool = False
    """Whether addressed packets are taken, and so collectives other than sums for all ranks (section 11)."""
    only_sums: bool = False
    """Whether those with another op than the sum are refused: minima, maxima and operations on bits."""
    halves: bool = False
    """Whether half precision is added up as it is, in jobs that have the memory (pool_state.parts_of; section 11)."""

    ends_early: bool = False
    """Whether a round can end without the ranks that are late (section 13)."""

    authenticates: bool = False
    """Whether it can check and sign packets (section 10)."""

    most_parts: int
    """How many parts a job may have (section 7)."""

    memory: str = ""
    """Name of memory that shows a rank whether it can share some with it (switchml/net/shm.py); "": none can."""

    def parts_for(self, wanted: int) -> int:
        """How many parts the job has that starts next, of so many at most."""

    def start_job(self, spec: JobSpec) -> None:
        """Install a job with clean slots. Raises ConfigError if an address belongs to another job or no memory is
        left."""

    def set_address(self, job_id: int, rank: int, address: tuple[str, int], mac: int = 0) -> None:
        """v1 only: a rank's address became known."""

    def stop_job(self, job_id: int) -> None:
        """Remove the job; its packets are refused from now on. Unknown ids are ignored."""

    def address_for(self, sender: Address) -> Address:
        """Where packets of a rank that sends from `sender` must go (`address` unless there are several); called once
        the rank's job has started."""

    def segment(self, job_id: int, part: int = 0) -> str:
        """Name of the memory that ranks on the data plane's own machine may share with a part of a job
        (switchml/net/shm.py), or ""."""

    def link(self, job_id: int, rank: int) -> Link | None:
        """How the rank's frames travel; None if `address_for` is all that it needs."""

    def failed(self) -> dict[int, str]:
        """Jobs that can't continue because the data plane lost their state, and why. They are still to be stopped."""

    def counters(self, job_id: int) -> JobCounters:
        """Raises KeyError for an unknown job."""

    def refused(self) -> dict[str, int]:
        """The counters named in REFUSED."""
