"""Whether an agent's calls make progress: calls past their deadline, peers that left and are needed, stalls worth a
warning."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from host_agent.calls import Call
from switchml.control import membership
from switchml.errors import CollectiveTimeout, PeerLost
from switchml.protocol.worker import Worker

log = logging.getLogger("host_agent")

INTERVAL_S = 0.25
"""How often to check."""
_STALL_S = 1.0
_SETTLED_S = 0.75
"""A wait packet that is seen so long after a peer has left was sent after it: networks delay packets for less, and
packets are looked at every INTERVAL_S."""
_FRESH_S = 1.5
"""How long the ranks that a wait packet named count as missing: a stalled round is probed every 0.4 s or sooner."""


class Watch:
    """Of `worker`'s calls. `job` and `rank` name it in messages, `aggregator` is (IPv4, port), `may_be_dropped`: the
    network may drop all UDP. Times are those of one clock, in seconds."""

    def __init__(self, worker: Worker, job: str, rank: int, aggregator: tuple[str, int], may_be_dropped: bool):
        self._worker, self._job, self._rank = worker, job, rank
        self._aggregator, self._may_be_dropped = "{}:{}".format(*aggregator), may_be_dropped
        self.departure: PeerLost | None = None
        """The error of calls that begin now: a peer has left."""
        self._departed_at = 0.0
        self._waits, self._waited_at = 0, 0.0
        self._warn_at = 0.0

    def loss(self, event: membership.PeerLost | membership.PeerLeft) -> PeerLost:
        """The error of calls that need these ranks."""
        return PeerLost(f"job '{self._job}': rank {_listed(event.ranks)} lost: {event.reason}", tuple(event.ranks))

    def peer_left(self, event: membership.PeerLeft, now: float) -> None:
        """A peer that left has read its last results, but this rank may still be waiting for its copy of them. So
        calls under way go on until the aggregator says that a round lacks a contribution of a rank that left; later
        calls fail at once."""
        departure = self.loss(event)
        if self.departure is not None:
            departure.ranks = (*self.departure.ranks, *departure.ranks)
        self.departure, self._departed_at = departure, now

    def missing_ranks(self, now: float) -> tuple[int, ...]:
        """Ranks that a recent wait packet named."""
        return self._worker.missing_ranks() if now - self._waited_at < _FRESH_S else ()

    def check(self, now: float, running: Collection[Call], queued: Iterable[Call]) -> BaseException | None:
        """The error that ends all calls, if there is one."""
        waits = int(self._worker.counters["waits"])
        if waits != self._waits:
            self._waits, self._waited_at = waits, now
        missing = self.missing_ranks(now)
        stalled_s = now - int(self._worker.timers["progress_at"]) / 1e9
        is_settled = self._waited_at >= self._departed_at + _SETTLED_S  # an older wait packet proves nothing
        if self.departure is not None and is_settled and set(missing) & set(self.departure.ranks):
            return self.departure
        late = [call for call in (*running, *queued) if call.deadline <= now]
        if late:
            missing = missing if stalled_s >= INTERVAL_S else ()
            culprits = f"; it waits for rank {_listed(missing)}" if missing else ""
            return CollectiveTimeout(
                f"job '{self._job}': all-reduce {late[0].index} is not done in the time it was given{culprits}", missing
            )
        if stalled_s >= _STALL_S and now >= self._warn_at:
            self._warn(next(iter(running)).index, stalled_s, missing)
            self._warn_at = now + min(max(1.0, stalled_s), 30.0)
        return None

    def _warn(self, index: int, stalled_s: float, missing: tuple[int, ...]) -> None:
        culprits = f"rank {_listed(missing)}" if missing else f"an answer from the aggregator at {self._aggregator}"
        if self._may_be_dropped and not self._worker.counters["received"]:
            culprits += "; if the network between drops UDP, SWITCHML_TRANSPORT=zmq goes by TCP"
        log.warning(
            "job '%s' rank %d: all-reduce %d has waited %.0f s for %s",
            self._job,
            self._rank,
            index,
            stalled_s,
            culprits,
        )


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
