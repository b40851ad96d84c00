"""Progress checks of an agent's calls: calls past their deadline, needed peers that left, stalls that deserve a
warning."""

import logging
import math
from collections.abc import Callable, Collection, Iterable

from host_agent.calls import PendingCall
from switchml.control import membership
from switchml.errors import CollectiveTimeout, PeerLost
from switchml.protocol.worker import Worker
from switchml.protocol.worker_state import TASKS

log = logging.getLogger("host_agent")

INTERVAL_S = 0.25
"""Interval in seconds between checks."""
STALL_S = 1.0
_SETTLED_S = 0.5
"""A wait packet that arrives this long after a peer has left was sent after it: networks delay packets for less."""
_FRESH_S = 1.5
"""Seconds for which the ranks named by a wait packet count as missing: a stalled round is probed every 0.4 s or sooner.
"""


class StallWarning:
    """Logs, at increasing intervals, what a rank is waiting for."""

    def __init__(self, job: str, rank: int):
        self._job, self._rank = job, rank
        self._at = 0.0

    def __call__(self, now: float, stalled_s: float, call: PendingCall, culprits: str) -> None:
        """Log that `call` has made no progress for `stalled_s`, if a message is due."""
        if stalled_s >= STALL_S and now >= self._at:
            self._at = now + min(max(1.0, stalled_s), 30.0)
            log.warning(f"job '{self._job}' rank {self._rank}: {call.name} has waited {stalled_s:.0f} s for {culprits}")


class Watch:
    """Checks of `worker`'s calls. `job` and `rank` identify it in messages, `aggregator` is (IPv4, port),
    `may_be_dropped`: whether the network may drop all UDP. Times are those of one clock, in seconds."""

    def __init__(self, worker: Worker, job: str, rank: int, aggregator: tuple[str, int], may_be_dropped: bool):
        self._worker, self._job = worker, job
        self._aggregator, self._may_be_dropped = "{}:{}".format(*aggregator), may_be_dropped
        self.departure: PeerLost | None = None
        """The error of calls that begin now, if a peer has left."""
        self._departed_at = 0.0
        self._waits, self._waited_at = 0, 0.0
        self._arrived_after = self._checked_at = self._checked_before = -math.inf
        """The earliest possible arrival of the last wait packet; the times of the last check and of the one before."""
        self._warn = StallWarning(job, rank)

    def moved(self, aggregator: tuple[str, int]) -> None:
        """Note that packets are now sent to another aggregator, (IPv4, port)."""
        self._aggregator = "{}:{}".format(*aggregator)

    def peer_left(self, event: membership.PeerLeft, now: float) -> None:
        """Handle a peer's departure. It has read its last results, but this rank may still be waiting for its copy of
        them. So calls in progress continue until the aggregator reports that a round lacks a contribution of a rank
        that left; later calls fail at once."""
        departure = lost(self._job, event.ranks, event.reason)
        if self.departure is not None:
            departure.ranks = (*self.departure.ranks, *departure.ranks)
        self.departure, self._departed_at = departure, now

    def missing_ranks(self, now: float) -> tuple[int, ...]:
        """Ranks named by a recent wait packet."""
        return self._worker.missing_ranks() if now - self._waited_at < _FRESH_S else ()

    def stands_still(self, now: float) -> bool:
        """Whether a queue has been waiting for a result without receiving any for a while."""
        queues = self._worker.queues
        waits = queues["base"] < queues["next"]
        return bool((waits & (now - queues["progress_at"] / 1e9 >= STALL_S)).any())

    def check(
        self, now: float, running: Collection[PendingCall], queued: Iterable[PendingCall]
    ) -> BaseException | None:
        """The error that ends all calls, or None."""
        waits = int(self._worker.counters["waits"])
        if waits != self._waits:
            self._waits, self._waited_at = waits, now
            # It was read since the last check, and packets read then arrived after the check before it. No later bound
            # is safe: a process that was suspended finds packets from before its peers left, in a socket or already
            # read.
            self._arrived_after = self._checked_before
        self._checked_before, self._checked_at = self._checked_at, now
        missing = self.missing_ranks(now)
        stalled_s = now - int(self._worker.queues["progress_at"].max()) / 1e9
        is_settled = self._arrived_after >= self._departed_at + _SETTLED_S  # an older wait packet proves nothing
        needs_all = any(call.request.late is None for call in running)
        if self.departure is not None and needs_all and is_settled and set(missing) & set(self.departure.ranks):
            return self.departure
        missing_now = missing if stalled_s >= INTERVAL_S else ()
        if error := late(self._job, now, (*running, *queued), missing_now, lambda call: self._progress(call, now)):
            return error
        culprits = f"rank {_listed(missing)}" if missing else f"an answer from the aggregator at {self._aggregator}"
        if self._may_be_dropped and not self._worker.counters["received"]:
            culprits += "; if the network between drops UDP, SWITCHML_TRANSPORT=zmq goes by TCP"
        self._warn(now, stalled_s, next(iter(running)), culprits)
        return None

    def _progress(self, call: PendingCall, now: float) -> str:
        """Progress of a late call, its pace, and its retransmissions, to show whether and why it is slow, or
        stalled."""
        begun, worker = call.begun, self._worker
        if begun is None:
            return ": it has not begun, as earlier ones are under way"
        task, counters = worker.state.tasks[begun.number % TASKS], worker.counters
        done, chunks, elapsed_s = int(task["done"]), int(task["chunks"]), now - begun.at
        all_of_it = f" (all would take {elapsed_s * chunks / done:,.1f} s)" if done else ""
        sent, resent = int(counters["sent"]) - begun.sent, int(counters["retransmitted"]) - begun.retransmitted
        return (
            f": {done:,} of {chunks:,} chunks in {elapsed_s:,.1f} s{all_of_it}, {resent:,} of {sent:,} packets sent "
            f"were retransmissions, {worker.identity['slots']} slots of {task['capacity']} bytes"
        )


def late(
    job: str,
    now: float,
    calls: Iterable[PendingCall],
    missing: tuple[int, ...],
    progress: Callable[[PendingCall], str] = lambda call: "",
) -> CollectiveTimeout | None:
    """The error of the first of these calls whose deadline has passed; they wait for the ranks `missing`. `progress`
    describes a call's progress."""
    call = next((call for call in calls if call.deadline <= now), None)
    if call is None:
        return None
    culprits = f"; it waits for rank {_listed(missing)}" if missing else ""
    # Gloo's and NCCL's errors have the word "timeout", which callers look for.
    message = f"job '{job}': {call.name} reached its timeout before it was done{culprits}{progress(call)}"
    return CollectiveTimeout(message, missing)


def lost(job: str, ranks: Iterable[int], reason: str) -> PeerLost:
    """The error of calls that need these ranks."""
    ranks = tuple(ranks)
    return PeerLost(f"job '{job}': rank {_listed(ranks)} lost{': ' if reason else ''}{reason}", ranks)


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
