"""One rank's trace as flat arrays, independent of the program that wrote it. An *event* is a span on a *lane*: a host
thread, a stream of an accelerator, a transport. Times are by the clock of the rank's machine. Everything that later
steps may need is kept: nested events refer to their parents, and known dependencies are in `causes`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from switchml.errors import TraceError


class What(IntEnum):
    """Kind of an event."""

    COMPUTE = 0
    """A kernel on an accelerator, or an operator on a host thread."""
    COLLECTIVE = 1
    """A rank's part of a collective, from ready to done: NCCL's kernel, gloo's work on its thread, an all-reduce of the
    switchml agent."""
    SEND = 2
    RECV = 3
    LOAD = 4
    """Fetching samples: `DataLoader.__next__`, reads."""
    CODEC = 5
    COPY = 6
    """A copy between host and device memory."""
    LAUNCH = 7
    """A runtime call on a host thread that enqueues work on a stream; the cause of the event that it launched."""
    SYNC = 8
    """A wait of a host thread or stream: cudaStreamSynchronize, `Work.wait`; its causes are the awaited events."""
    SCOPE = 9
    """A span that only labels nested events: user annotations, Python functions, profiler steps, autograd nodes."""
    CHECKPOINT = 10


COMMUNICATION = (What.COLLECTIVE, What.SEND, What.RECV)


class LaneKind(IntEnum):
    """Kind of a lane."""

    HOST = 0
    DEVICE = 1
    TRANSPORT = 2


NONE = -1


@dataclass(frozen=True)
class Lane:
    """A sequence of events: DEVICE and TRANSPORT events start in lane order; HOST events nest."""

    name: str
    kind: LaneKind


@dataclass(frozen=True)
class Group:
    """A communicator: its name, if the trace has one, and its ranks in the job."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Events:
    """The events of a trace. All arrays (events,), sorted by lane, then start, a parent before its children."""

    name: np.ndarray
    """int32, index into `RankTrace.names`."""
    what: np.ndarray
    """int8, `What`."""
    lane: np.ndarray
    """int32, index into `RankTrace.lanes`."""
    start_s: np.ndarray
    """float64, seconds since `RankTrace.epoch_s`."""
    duration_s: np.ndarray
    """float64."""
    parent: np.ndarray
    """int32: the enclosing event on the lane, NONE at the top."""
    collective: np.ndarray
    """int8, `emulator.jobs.workload.graph.Collective` (P2P for SEND and RECV), 0 for all else."""
    group: np.ndarray
    """int32, index into `RankTrace.groups`, NONE for events other than communication."""
    sequence: np.ndarray
    """int64: index among the communications of its group on this rank, from 0; for SEND and RECV, between this rank and
    `peer` in that direction. NONE for events other than communication. Members with the same number belong to the same
    transfer."""
    peer: np.ndarray
    """int32: the other rank of a SEND or RECV, otherwise NONE."""
    bytes: np.ndarray
    """float64: message size as defined by `Collective`; the size of a COPY or of a gradient; otherwise 0."""
    gradient: np.ndarray
    """bool: this host event made a gradient of `bytes` final (AccumulateGrad); DDP buckets gradients in this order."""

    def __len__(self) -> int:
        return len(self.name)

    @property
    def end_s(self) -> np.ndarray:
        """float64 (events,): end times."""
        return self.start_s + self.duration_s

    def around(self, event: int) -> Iterator[int]:
        """Yield the events that enclose `event` on its lane, from the innermost outwards."""
        while (event := int(self.parent[event])) != NONE:
            yield event


class WireWhat(IntEnum):
    """Kind of a transport's record."""

    SENT = 0
    RESENT = 1
    RECEIVED = 2
    """First receipt of a result."""
    REPEATED = 3
    """Repeated receipt of a result."""


@dataclass(frozen=True)
class Wire:
    """Packet log of the switchml transport. All arrays (records,), sorted by time. (job, tensor, chunk, version)
    identifies a record's transaction, equally on all ranks and at the aggregator."""

    at_s: np.ndarray
    """float64, seconds since `RankTrace.epoch_s`."""
    what: np.ndarray
    """int8, `WireWhat`."""
    job: np.ndarray
    """int32."""
    tensor: np.ndarray
    """int64: number of the all-reduce on this agent, from 0."""
    chunk: np.ndarray
    """int64: index of the packet in the tensor."""
    version: np.ndarray
    """int8: version bit of the slot."""
    bytes: np.ndarray
    """int32: size of the datagram."""

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class Pings:
    """A rank's ends of messages for clock comparison. All arrays (ends,)."""

    at_s: np.ndarray
    """float64, seconds since `RankTrace.epoch_s`."""
    message: np.ndarray
    """int64: message number, equal at both ends."""
    is_sent: np.ndarray
    """bool: the time is just before departure; else it is that of arrival."""

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class RankTrace:
    """Trace of one rank."""

    rank: int
    world_size: int
    host: str
    """Traces with the same host share one clock. "" if the file does not name it: then each trace has a separate clock.
    """
    source: Path
    format: str
    """"kineto", "chakra", "dpro", "simai" or "switchml"."""
    epoch_s: float
    """Origin of times: Unix seconds by the clock of this machine; 0 if the file does not contain it."""
    names: list[str]
    lanes: list[Lane]
    groups: list[Group]
    events: Events
    causes: np.ndarray
    """int32 (causes, 2): the first event had to end (a LAUNCH: to begin) before the second could begin (a SYNC: end).
    Excludes the order on a lane."""
    steps: np.ndarray
    """float64 (steps, 2): start and end of each iteration since `epoch_s`; a single one if none is marked."""
    backend: str = ""
    """gloo, nccl, switchml…; "" if the file does not contain it."""
    wire: Wire | None = None
    gradient_names: dict[int, str] = field(default_factory=dict)
    """Event → parameter name, where known."""
    pings: Pings | None = None
    about: dict[str, str] = field(default_factory=dict)
    """Other information in the file: device, versions, bucket_cap_mb, codec."""

    @property
    def lane_kind(self) -> np.ndarray:
        """int8 (events,): `LaneKind` of each event's lane."""
        return np.array([lane.kind for lane in self.lanes], np.int8)[self.events.lane]

    def lanes_of(self, kind: LaneKind) -> list[int]:
        """Return the numbers of the lanes of a kind."""
        return [number for number, lane in enumerate(self.lanes) if lane.kind == kind]

    def __repr__(self) -> str:
        return f"<RankTrace {self.rank} of {self.world_size}, {len(self.events):,} events: {str(self.source)!r}>"


AnyTrace = TypeVar("AnyTrace", bound=Any)
"""A trace type with `rank` and `source`, the path of its file."""


def one_a_rank(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return traces in rank order; TraceError if two are of the same rank."""
    in_order = sorted(traces, key=lambda trace: trace.rank)
    for one, other in pairwise(in_order):
        if one.rank == other.rank:
            raise TraceError(
                f"{one.source} and {other.source} are both of rank {one.rank}; one trace a rank is expected"
            )
    return in_order
