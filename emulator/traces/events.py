"""One rank's trace as flat arrays, whichever program wrote it. An *event* is a span on a *lane*: a host thread, a
stream of an accelerator, a transport. Times are by the clock of the rank's machine. Nothing is dropped that a later
step might need: nested events keep their parents, and known causes stand in `causes`.
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
    """What an event is."""

    COMPUTE = 0
    """A kernel on an accelerator, or an operator on a host thread."""
    COLLECTIVE = 1
    """A rank's part of a collective, from ready to done: NCCL's kernel, gloo's work on its thread, our all-reduce."""
    SEND = 2
    RECV = 3
    LOAD = 4
    """Fetching samples: `DataLoader.__next__`, reads."""
    CODEC = 5
    COPY = 6
    """Between host and device memory."""
    LAUNCH = 7
    """A runtime call on a host thread that puts work on a stream; the cause of the event that it launched."""
    SYNC = 8
    """A host thread or stream waits: cudaStreamSynchronize, `Work.wait`; its causes are what it waits for."""
    SCOPE = 9
    """A span that only names what is inside: user annotations, Python functions, profiler steps, autograd nodes."""
    CHECKPOINT = 10


COMMUNICATION = (What.COLLECTIVE, What.SEND, What.RECV)


class LaneKind(IntEnum):
    """What runs the events of a lane."""

    HOST = 0
    DEVICE = 1
    TRANSPORT = 2


NONE = -1


@dataclass(frozen=True)
class Lane:
    """Where events happen: DEVICE and TRANSPORT events begin in the order of the lane; HOST events nest."""

    name: str
    kind: LaneKind


@dataclass(frozen=True)
class Group:
    """A communicator: its name where the trace has one, and its ranks in the job."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Events:
    """All arrays (events,), sorted by lane, then start, a parent before its children."""

    name: np.ndarray
    """int32, into `RankTrace.names`."""
    what: np.ndarray
    """int8, `What`."""
    lane: np.ndarray
    """int32, into `RankTrace.lanes`."""
    start_s: np.ndarray
    """float64, seconds since `RankTrace.epoch_s`."""
    duration_s: np.ndarray
    """float64."""
    parent: np.ndarray
    """int32: the event that encloses it on its lane, NONE at the top."""
    collective: np.ndarray
    """int8, `emulator.jobs.workload.graph.Collective` (P2P for SEND and RECV), 0 for all else."""
    group: np.ndarray
    """int32, into `RankTrace.groups`, NONE for what is no communication."""
    sequence: np.ndarray
    """int64: its number among the communications of its group on this rank, from 0; of SEND and RECV, between this
    rank and `peer` in that direction. NONE for what is no communication. The same number on all members is the same
    transfer."""
    peer: np.ndarray
    """int32: the other rank of a SEND or RECV, NONE for all else."""
    bytes: np.ndarray
    """float64: message size as `Collective` counts it; the size of a COPY or of a gradient; else 0."""
    gradient: np.ndarray
    """bool: this host event made a gradient of `bytes` final (AccumulateGrad); in order, these are what DDP buckets."""

    def __len__(self) -> int:
        return len(self.name)

    @property
    def end_s(self) -> np.ndarray:
        """float64 (events,)."""
        return self.start_s + self.duration_s

    def around(self, event: int) -> Iterator[int]:
        """The events that enclose `event` on its lane, from the innermost on."""
        while (event := int(self.parent[event])) != NONE:
            yield event


class WireWhat(IntEnum):
    """What a transport's record says."""

    SENT = 0
    RESENT = 1
    RECEIVED = 2
    """A result that was new."""
    REPEATED = 3
    """A result that was known already."""


@dataclass(frozen=True)
class Wire:
    """What our own transport did, packet by packet. All arrays (records,), sorted by time. (job, tensor, chunk,
    version) is a record's transaction: the same on all ranks and at the aggregator."""

    at_s: np.ndarray
    """float64, seconds since `RankTrace.epoch_s`."""
    what: np.ndarray
    """int8, `WireWhat`."""
    job: np.ndarray
    """int32."""
    tensor: np.ndarray
    """int64: the number of the all-reduce on this agent, from 0."""
    chunk: np.ndarray
    """int64: the packet's place in the tensor."""
    version: np.ndarray
    """int8: the slot's version bit."""
    bytes: np.ndarray
    """int32: of the datagram."""

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class Pings:
    """A rank's ends of messages that compared clocks. All arrays (ends,)."""

    at_s: np.ndarray
    """float64, seconds since `RankTrace.epoch_s`."""
    message: np.ndarray
    """int64: the same number at both of its ends."""
    is_sent: np.ndarray
    """bool: it was about to leave here; else it had come."""

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class RankTrace:
    """What one rank did."""

    rank: int
    world_size: int
    host: str
    """Traces of one host share one clock. "" where the file does not say: then each trace has a clock of its own."""
    source: Path
    format: str
    """ "kineto", "chakra", "dpro", "simai" or "switchml"."""
    epoch_s: float
    """What times count from: Unix seconds by the clock of this machine; 0 where the file does not say."""
    names: list[str]
    lanes: list[Lane]
    groups: list[Group]
    events: Events
    causes: np.ndarray
    """int32 (causes, 2): the first event had to end (a LAUNCH: to begin) before the second could begin (a SYNC: end).
    Order on a lane is not repeated here."""
    steps: np.ndarray
    """float64 (steps, 2): start and end of each iteration since `epoch_s`; one for everything if none is marked."""
    backend: str = ""
    """gloo, nccl, switchml…; "" where the file does not say."""
    wire: Wire | None = None
    gradient_names: dict[int, str] = field(default_factory=dict)
    """Event → parameter, where known."""
    pings: Pings | None = None
    about: dict[str, str] = field(default_factory=dict)
    """What else the file says for people: device, versions, bucket_cap_mb, codec."""

    @property
    def lane_kind(self) -> np.ndarray:
        """int8 (events,): `LaneKind` of each event's lane."""
        return np.array([lane.kind for lane in self.lanes], np.int8)[self.events.lane]

    def lanes_of(self, kind: LaneKind) -> list[int]:
        """Numbers of the lanes of a kind."""
        return [number for number, lane in enumerate(self.lanes) if lane.kind == kind]

    def __repr__(self) -> str:
        return f"<RankTrace {self.rank} of {self.world_size}, {len(self.events):,} events: {str(self.source)!r}>"


AnyTrace = TypeVar("AnyTrace", bound=Any)
"""Has a `rank` and a `source`, the path of its file."""


def one_a_rank(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Traces in the order of their ranks; TraceError where two are of one rank."""
    in_order = sorted(traces, key=lambda trace: trace.rank)
    for one, other in pairwise(in_order):
        if one.rank == other.rank:
            raise TraceError(
                f"{one.source} and {other.source} are both of rank {one.rank}; one trace a rank is expected"
            )
    return in_order
