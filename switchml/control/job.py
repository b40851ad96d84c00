"""One job of the registry (jobs.py) and its ranks' memberships: plain state, without rules."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from switchml.control.agreement import Reports
from switchml.control.dataplane import JobCounters
from switchml.control.membership import JoinRequest

_CALLS, _MAX_COUNTS = re.compile(r"[a-z_]{1,20}(/gloo)?"), 32
"""Pattern of the names of collectives, and of a loader's counters, that a rank may report, and their maximum number."""
Count = TypeVar("Count", int, float)


@dataclass(eq=False)
class Member:
    """One rank's membership; `state` is joined, left or lost."""

    ticket: int
    request: JoinRequest
    state: str = "joined"
    calls: dict[str, int] = field(default_factory=dict)
    """Number of collectives called by the rank's program so far, by name."""

    loading: dict[str, float] = field(default_factory=dict)
    """Counters of the rank's planned loader, by name."""

    def count(self, calls: Mapping[str, int], loading: Mapping[str, float]) -> None:
        """Store a report of the rank; drops names that are not allowed."""
        self.calls, self.loading = _known(calls), _known(loading)


@dataclass(eq=False)
class Job:
    """One job. `members` has a rank from the moment it joins; fields from `job_id` on are set when the job starts."""

    name: str
    secret: bytes
    world_size: int
    created: float
    deadline: float
    client: str
    """Client whose first rank created it."""
    is_open: bool
    """Whether it has no secret, so that its details are public."""
    state: str = "forming"
    reason: str = ""
    members: dict[int, Member] = field(default_factory=dict)
    job_id: int = 0
    job_tag: int = 0
    isn: int = 0
    slots: int = 0
    queues: int = 1
    epoch: int = 0
    """Number of times it has moved to another aggregator."""
    reports: Reports = field(default_factory=Reports)
    final: JobCounters | None = None
    """The data plane's counters at the end, once the job is over."""

    @property
    def present(self) -> list[Member]:
        """Members that have neither left nor been lost."""
        return [member for member in self.members.values() if member.state == "joined"]

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined a forming job yet."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    @property
    def has_large_packets(self) -> bool:
        """Whether packets may be large: every rank supports them, and benefits from them."""
        return all(member.request.large_packets for member in self.members.values())

    @property
    def first(self) -> JoinRequest:
        """The request that the others must match."""
        return next(iter(self.members.values())).request


def _known(counts: Mapping[str, Count]) -> dict[str, Count]:
    """The allowed counts, at most _MAX_COUNTS in order of names."""
    names = [name for name in sorted(counts) if _CALLS.fullmatch(name) and math.isfinite(counts[name])]
    return {name: counts[name] for name in names[:_MAX_COUNTS]}
