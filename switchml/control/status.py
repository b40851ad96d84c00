"""The aggregator's state for observers: counters sampled once per second, rates computed from them, and the reply to
`Status`.

`Monitor` reads the registries and the data plane, changes neither, and writes stalls and rates to the journal
(events.py).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from switchml import __version__
from switchml.control import v2_pb2
from switchml.control.dataplane import Dataplane, JobCounters
from switchml.control.job import Job
from switchml.control.jobs import JobRegistry, Journal
from switchml.control.messages import address
from switchml.control.sessions import V1Session, V1Sessions
from switchml.counters import COUNTERS, MALFORMED

NO_COUNTERS = JobCounters((), 0)
PACKET_RATES = ("received_packets", "sent_packets", "retransmissions", "stale")
"""Packet rates in the event `rates`, in addition to the job's progress, for jobs without a secret."""


@dataclass
class Sample:
    """A job's counters at time `at`, and their increase per second since the previous sample."""

    at: float
    counters: JobCounters
    rates: list[dict[str, float]] = field(default_factory=list)

    def gained(self, name: str) -> float:
        """Rate of `name` per second, over all ranks."""
        return sum(rank.get(name, 0.0) for rank in self.rates)


class Monitor:
    """Monitors the jobs of one aggregator. Times are seconds of one monotonic clock; `started` is the start time of the
    aggregator.
    """

    def __init__(
        self, registry: JobRegistry, sessions: V1Sessions, dataplane: Dataplane, started: float, journal: Journal
    ):
        self.events_address = ""
        self.tunnel_addresses: tuple[str, ...] = ()
        self.malformed = 0
        """Number of control messages that could not be parsed."""
        self._registry = registry
        self._sessions = sessions
        self._dataplane = dataplane
        self._started = started
        self._journal = journal
        self._samples: dict[int, Sample] = {}
        self._stalled: dict[int, tuple[int, ...]] = {}

    def sample(self, now: float) -> None:
        """Take a sample of every job; call it about once per second."""
        fresh: dict[int, Sample] = {}
        for job in self._jobs():
            counters = self._counters(job.job_id)
            sample = fresh[job.job_id] = Sample(now, counters)
            before = self._samples.get(job.job_id)
            if before is not None and now > before.at:
                sample.rates = [
                    {name: max(count - old.get(name, 0), 0) / (now - before.at) for name, count in rank.items()}
                    for rank, old in zip(counters.ranks, before.counters.ranks, strict=False)
                ]
            self._report(job, sample)
        self._samples = fresh
        self._stalled = {job_id: missing for job_id, missing in self._stalled.items() if job_id in fresh}

    def reply(self, now: float, shown: Collection[Job]) -> v2_pb2.StatusReply:
        """The current state, with the rates of the last sample: v1 sessions, and the v2 jobs in `shown`. Other live
        jobs are excluded from the totals, too: otherwise an attacker could find a job's tag and sequence numbers by
        bisection on the counters of refused packets.
        """
        live = [self._registry_job(job, now) for job in self._registry.live if job in shown]
        sessions = [self._v1_session(session, now) for session in self._sessions.live.values()]
        ended = [self._registry_job(job, now) for job in reversed(self._registry.ended) if job in shown]
        totals = self._registry.ended_totals + self._sessions.ended_totals
        for job in live + sessions:
            for rank in job.ranks:
                totals.update(dict(rank.counters))
        return v2_pb2.StatusReply(
            version=__version__,
            uptime_s=now - self._started,
            events_address=self.events_address,
            dataplane=v2_pb2.DataplaneStatus(
                kind=getattr(self._dataplane, "kind", type(self._dataplane).__name__),
                address=address(self._dataplane.address),
                slot_capacity=self._dataplane.slot_capacity,
                slots_allocated=self._registry.slots_allocated,
                receive_buffer_bytes=self._dataplane.receive_buffer_bytes,
                transports=self._dataplane.transports,
                mac=self._dataplane.mac,
                switch=getattr(self._dataplane, "where", ""),
                most_parts=self._dataplane.most_parts,
                memory=self._dataplane.memory,
            ),
            refused=self._dataplane.refused() | {MALFORMED: self.malformed},
            totals={name: totals[name] for name in COUNTERS},
            jobs=live + sessions + ended,
            tunnel_addresses=self.tunnel_addresses,
            hidden_jobs=len(self._registry.live) - len(live),
        )

    def _jobs(self) -> Iterator[Job | V1Session]:
        """Jobs and sessions in the data plane."""
        yield from (job for job in self._registry.live if job.job_id)
        yield from self._sessions.live.values()

    def _counters(self, job_id: int) -> JobCounters:
        try:
            return self._dataplane.counters(job_id)
        except KeyError:
            return NO_COUNTERS

    def _goodput_bps(self, sample: Sample, payload_bytes: int) -> float:
        # A round is completed by exactly one rank's packet.
        return sample.gained("completed") * payload_bytes * 8

    def _report(self, job: Job | V1Session, sample: Sample) -> None:
        missing = sample.counters.missing
        if missing != self._stalled.get(job.job_id, ()):
            self._stalled[job.job_id] = missing
            self._journal("stall", job=job.name, job_id=job.job_id, missing=list(missing))
        payload_bytes = job.first.payload_bytes if isinstance(job, Job) else job.payload_bytes
        self._journal(
            "rates",
            job=job.name,
            job_id=job.job_id,
            goodput_bps=self._goodput_bps(sample, payload_bytes),
            rounds_per_s=sample.gained("completed"),
            slots_in_use=sample.counters.slots_in_use,
            # For a job with a secret, nothing that reveals the effect of a forged packet.
            **{f"{name}_per_s": sample.gained(name) for name in (() if _has_secret(job) else PACKET_RATES)},
        )

    def _registry_job(self, job: Job, now: float) -> v2_pb2.JobStatus:
        running = job.state in ("running", "ending")
        counters = self._counters(job.job_id) if running else job.final or NO_COUNTERS
        first = job.first if job.members else None
        return self._job_status(
            job,
            counters,
            [
                v2_pb2.RankStatus(
                    rank=rank,
                    state=member.state,
                    address=address(member.request.address),
                    host=member.request.host,
                    pid=member.request.pid,
                    calls=member.calls,
                    loading=member.loading,
                )
                for rank, member in sorted(job.members.items())
            ],
            self._samples.get(job.job_id) if running else None,
            now,
            state=job.state,
            reason=job.reason,
            protocol=2,
            world_size=job.world_size,
            slots_in_use=counters.slots_in_use if running else 0,
            payload_bytes=first.payload_bytes if first else 0,
            wire=first.wire if first else 0,
            missing=job.missing if job.state == "forming" else counters.missing if running else (),
        )

    def _v1_session(self, session: V1Session, now: float) -> v2_pb2.JobStatus:
        counters = self._counters(session.job_id)
        return self._job_status(
            session,
            counters,
            [
                v2_pb2.RankStatus(rank=rank, state="joined", address=address(known))
                for rank, known in enumerate(session.addresses)
                if known is not None
            ],
            self._samples.get(session.job_id),
            now,
            state="running",
            protocol=1,
            world_size=session.workers,
            slots_in_use=counters.slots_in_use,
            payload_bytes=session.payload_bytes,
            missing=sorted({*session.missing, *counters.missing}),
        )

    def _job_status(
        self,
        job: Job | V1Session,
        counters: JobCounters,
        ranks: list[v2_pb2.RankStatus],
        sample: Sample | None,
        now: float,
        **values: Any,
    ) -> v2_pb2.JobStatus:
        """The status fields common to both protocols; `values` are further fields of the message."""
        sample = sample or Sample(now, NO_COUNTERS)
        for status in ranks:
            status.counters.update(counters.ranks[status.rank] if counters.ranks else {})
            status.rates.update(sample.rates[status.rank] if sample.rates else {})
        return v2_pb2.JobStatus(
            job_id=job.job_id,
            name=job.name,
            epoch=getattr(job, "epoch", 0),
            age_s=now - job.created,
            slots=job.slots,
            goodput_bps=self._goodput_bps(sample, values["payload_bytes"]),
            ranks=ranks,
            **values,
        )


def _has_secret(job: Job | V1Session) -> bool:
    return isinstance(job, Job) and not job.is_open
