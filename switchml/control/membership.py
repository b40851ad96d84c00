"""The job registry's inputs and outputs: plain data, and the checks that need only the request itself.

`JoinRequest` is one rank's request to join. `Started`, `PeerLost`, `PeerLeft`, `Ended`, `Disagreement` and `Refused`
are the events that the rank may get. The messages of v2.proto carry the same data; these classes are independent of
gRPC so that the registry can be tested without it.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from switchml.control.dataplane import Address, Link
from switchml.errors import JoinError
from switchml.protocol.packet import SIZE_CODE_OF, V2_MAX_WORKERS, WIRE_DTYPES

PROTOCOL = 2
"""Version of the control protocol and of the packets (docs/protocol.md) that the registry supports."""
MIN_SLOTS = 2
MAX_SLOTS = 1 << 16
"""Bounds of a job's pool; a pool is a power of two so that slot = seq mod S survives the wrap of seq
(docs/protocol.md section 2).
"""
MAX_PARTS = 16
"""Maximum number of data addresses of a rank."""
MAX_EPOCHS = 1024
"""Maximum number of times that a job may move to another aggregator."""
MAX_NAME = 200
CONTROL_ONLY = "none"
"""Transport of ranks that send no packets. Their job is only a membership (its ranks, and which of them died or left):
the data plane is not involved, and it takes no slots."""


class Reason(Enum):
    """Reasons for refusing a join; server.py maps each to a gRPC status."""

    INVALID = "the request is invalid in itself"
    SECRET = "the job has another secret"
    CONFLICT = "the request does not fit the job as it is"
    DUPLICATE = "rank or address is in use"
    CAPACITY = "the aggregator has not enough slots or memory"
    TIMEOUT = "the job did not fill in time"


class Refused(JoinError):
    """Refusal of a join: `reason` is its kind, the text is human-readable."""

    def __init__(self, reason: Reason, message: str):
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Resumption:
    """A rank's progress in a job that continues at another aggregator (docs/protocol.md, section 12). The fields are
    those of Resumption in v2.proto."""

    lineage: int
    epoch: int
    rounds: tuple[bytes, ...]
    former_tags: tuple[int, ...] = ()
    has_no_result: bool = False


@dataclass(frozen=True)
class JoinRequest:
    """One rank's request to join. The fields are those of JoinRequest in v2.proto, and the client to which it is
    attributed (quotas.py)."""

    job: str
    rank: int
    world_size: int
    address: Address
    secret: str = field(default="", repr=False)
    slots: int = 0
    payload_bytes: int = 1024
    wire: int = 0
    protocol: int = PROTOCOL
    receive_buffer_bytes: int = 0
    timeout_s: float = 0.0
    host: str = ""
    pid: int = 0
    transport: str = ""
    mac: int = 0
    client: str = ""
    authenticate: bool = False
    more_addresses: tuple[Address, ...] = ()
    queues: int = 1
    resumption: Resumption | None = None
    deadline_s: float = 0.0
    large_packets: bool = False

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Source addresses of its packets, by part."""
        return self.address, *self.more_addresses

    @property
    def is_control_only(self) -> bool:
        return self.transport == CONTROL_ONLY

    @property
    def who(self) -> str:
        """Description in messages: `rank 2 (node7, pid 123)`."""
        return f"rank {self.rank} ({self.host or 'unknown host'}, pid {self.pid})"

    def check(self) -> None:
        """Raises Refused if no job could accept this request."""
        if self.protocol != PROTOCOL:
            raise _invalid(
                f"the agent speaks protocol {self.protocol}, this aggregator {PROTOCOL}: "
                "install the same switchml version on both"
            )
        if not self.job or len(self.job) > MAX_NAME or not self.job.isprintable():
            raise _invalid(f"job name of {len(self.job)} characters: expected 1 to {MAX_NAME} printable ones")
        if not 1 <= self.world_size <= V2_MAX_WORKERS:
            raise _invalid(f"world size {self.world_size}: expected 1 to {V2_MAX_WORKERS}")
        if not 0 <= self.rank < self.world_size:
            raise _invalid(f"rank {self.rank} of {self.world_size}: expected 0 to {self.world_size - 1}")
        if self.slots and not (MIN_SLOTS <= self.slots <= MAX_SLOTS and self.slots & (self.slots - 1) == 0):
            raise _invalid(f"{self.slots} slots: expected 0 or a power of two from {MIN_SLOTS} to {MAX_SLOTS}")
        if self.payload_bytes not in SIZE_CODE_OF:
            raise _invalid(f"payload of {self.payload_bytes} bytes: expected one of {sorted(SIZE_CODE_OF)}")
        if self.wire not in WIRE_DTYPES:
            raise _invalid(f"wire format {self.wire}: expected one of {sorted(WIRE_DTYPES)}")
        if not 0 <= self.timeout_s < 1e6:
            raise _invalid(f"join timeout of {self.timeout_s} s: expected 0 to 1000000")
        if not 0 <= self.deadline_s < 1e6:
            raise _invalid(f"deadline of {self.deadline_s} s: expected 0 to 1000000")
        if not 0 <= self.mac < 1 << 48:
            raise _invalid(f"MAC address {self.mac:x}: expected one of 48 bits")
        if self.is_control_only:
            return
        if len(self.addresses) > MAX_PARTS:
            raise _invalid(f"{len(self.addresses)} data addresses: expected {MAX_PARTS} at most")
        for address in self.addresses:
            check_address(address)
        if len(set(self.addresses)) < len(self.addresses):
            raise _invalid(f"data addresses {self.addresses}: expected each of them once")
        if self.resumption is not None:
            rounds = self.resumption.rounds
            if len(rounds) != len(self.addresses) or {len(part) * len(rounds) for part in rounds} != {self.slots}:
                raise _invalid(
                    f"rounds of {[len(part) for part in rounds]} slots: expected those of {len(self.addresses)} parts, "
                    f"of {self.slots} slots together"
                )
            if self.resumption.has_no_result and any(map(any, rounds)):
                raise _invalid("rounds that have results, of a rank that has none: expected zeros")
            if not 1 <= self.resumption.epoch < MAX_EPOCHS or len(self.resumption.former_tags) >= MAX_EPOCHS:
                raise _invalid(f"epoch {self.resumption.epoch}: expected 1 to {MAX_EPOCHS - 1}")


def _invalid(message: str) -> Refused:
    return Refused(Reason.INVALID, message)


def check_address(address: Address) -> None:
    """Raises Refused unless `address` is an IPv4 unicast address and a port that results can be sent to."""
    ip, port = address
    try:
        parsed = ipaddress.IPv4Address(ip)
    except ValueError:
        raise _invalid(f"data address {ip!r}: expected an IPv4 address") from None
    if parsed.is_unspecified or parsed.is_multicast or ip == "255.255.255.255":
        raise _invalid(f"data address {ip}: results can't be sent there, expected the agent's own address")
    if not 1 <= port <= 65535:
        raise _invalid(f"data port {port}: expected 1 to 65535")


@dataclass(frozen=True)
class Peer:
    """Identity of a rank, for messages."""

    rank: int
    host: str
    pid: int


@dataclass(frozen=True)
class Part:
    """A further part of a job, with the fields that `Started` has for the first one (docs/protocol.md, section 7)."""

    data_address: Address
    job_tag: int
    isn: int
    key: bytes = field(default=b"", repr=False)
    segment: str = ""


@dataclass(frozen=True)
class Started:
    """All ranks have joined. `job_tag`, `isn`, `slots`, `wire`: section 2 of docs/protocol.md; at most `window` rounds
    should be in flight at once; packets are sent to `data_address`; `peers[rank]` describes the others. `segment` names
    the memory that the aggregator offers to share (switchml/net/shm.py), or is empty; `link` is set for ranks that
    build their Ethernet frames themselves; `padded`, `dense_only`, `collectives`, `only_sums` and `halves`: see
    `Dataplane`; `key`: signs packets, or is empty; `more_parts`: parts other than the one described by these fields;
    `queues`: number of queues of collectives (section 11); `rounds` of each part, if ranks continue here (section 12),
    and the job's `epoch`.
    """

    job_id: int
    job_tag: int
    isn: int
    slots: int
    window: int
    payload_bytes: int
    wire: int
    data_address: Address
    peers: tuple[Peer, ...]
    segment: str = ""
    link: Link | None = None
    padded: bool = False
    dense_only: bool = False
    key: bytes = field(default=b"", repr=False)
    collectives: bool = False
    only_sums: bool = False
    halves: bool = False
    more_parts: tuple[Part, ...] = ()
    queues: int = 1
    rounds: tuple[bytes, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class JobInfo(Started):
    """A started job from the point of view of one of its ranks."""

    job: str
    rank: int
    world_size: int

    @property
    def parts(self) -> "tuple[JobInfo, ...]":
        """Each part as a job by itself."""
        first = replace(self, more_parts=())
        return first, *(replace(first, **vars(part)) for part in self.more_parts)


@dataclass(frozen=True)
class PeerLost:
    """These ranks died or stopped answering; the job has failed."""

    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class PeerLeft:
    """These ranks left cleanly; rounds that still need them will never complete."""

    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Ended:
    """The aggregator ended the job."""

    reason: str


@dataclass(frozen=True)
class Disagreement:
    """The ranks called different collectives; the job has failed."""

    reason: str


Event = Started | PeerLost | PeerLeft | Ended | Disagreement | Refused


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-2, 5`."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text}"
