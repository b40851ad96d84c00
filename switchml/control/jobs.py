"""The job registry: the ranks of each job, and the notices that they get when that changes.

A state machine without gRPC, sockets, threads or a clock: inputs are requests, losses and `now` (seconds, any monotonic
origin); outputs are notices, pairs of (ticket, event). A ticket identifies one rank's membership. The data plane is
controlled through `dataplane.Dataplane`.

    forming ──all ranks in──► running ──a rank left──► ending ──all left──► ended
     │ timeout, nobody left    └────── a rank lost ──────┴─────────────► failed
     └──────────────────────► failed

A job in `ending` still holds its slots, because a rank that has not left may need a last result again; its name can be
reused already. Jobs that have ended or failed hold no resources.
"""

import hashlib
import hmac
import itertools
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

from switchml.control import membership, resuming
from switchml.control.agreement import MAX_QUEUES, Report
from switchml.control.allocation import count_parts, default_slots, draw_parts, fit_slots, large_bytes
from switchml.control.dataplane import Address, Dataplane, JobCounters, JobSpec
from switchml.control.job import Job, Member
from switchml.control.membership import Ended, Event, JoinRequest, PeerLeft, PeerLost, Reason, Refused
from switchml.control.quotas import UNLIMITED, Quotas, WrongSecrets
from switchml.control.starting import started
from switchml.errors import SwitchMLError

N_ENDED_SHOWN = 16
"""Number of ended or failed jobs that `switchml status` still shows."""
NAMED = 8
"""Maximum number of ranks that a message names in full."""
_ANY_JOB = ""
"""Placeholder for the job name when a client asks for the jobs with a secret."""

Notice = tuple[int, Event]
Journal = Callable[..., None]
"""Called as `journal(kind, **fields)` for each change that observers may follow; events.py lists them."""


def no_journal(kind: str, **fields: Any) -> None:
    """The journal of a registry without observers."""


class JobRegistry:
    """All v2 jobs of one aggregator. Not thread-safe: one thread or event loop owns it.

    A job may take `join_timeout_s` to form unless its first rank sets a timeout, and gets `slots` (0: a default for the
    number of ranks) unless its ranks request a number. `job_ids` is shared with other registries on the same data
    plane. `quotas` limit each client. `is_own(address)`: whether the address is the aggregator's own.
    `evict_unused(addresses)` is called before a job with these addresses starts. `randbelow` draws numbers that
    outsiders must not be able to guess; only simulations replace it.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        *,
        join_timeout_s: float = 60.0,
        slots: int = 0,
        job_ids: Iterator[int] | None = None,
        journal: Journal = no_journal,
        quotas: Quotas = UNLIMITED,
        is_own: Callable[[Address], bool] = lambda address: False,
        evict_unused: Callable[[Collection[Address]], None] = lambda addresses: None,
        randbelow: Callable[[int], int] = secrets.randbelow,
    ):
        self.dataplane = dataplane
        self._randbelow = randbelow
        self.join_timeout_s = join_timeout_s
        self.slots = slots
        self.live: list[Job] = []
        self.ended: deque[Job] = deque(maxlen=N_ENDED_SHOWN)
        self.ended_totals: Counter[str] = Counter()
        self._job_ids = job_ids if job_ids is not None else itertools.count(1)
        self._tickets = itertools.count(1)
        self._job_of: dict[int, Job] = {}
        self._journal = journal
        self._quotas = quotas
        self._is_own, self._evict_unused = is_own, evict_unused
        self._wrong_secrets = WrongSecrets()
        # Secrets are stored as hashes with a key of this process, so that memory contents are useless elsewhere.
        self._key = secrets.token_bytes(32)

    @property
    def slots_allocated(self) -> int:
        """Slots of the jobs that the data plane holds."""
        return sum(job.slots for job in self.live)

    @property
    def addresses(self) -> set[Address]:
        """Data addresses of the ranks of all jobs."""
        return {address for job in self.live for member in job.present for address in member.request.addresses}

    def knows(self, ticket: int) -> bool:
        """Whether the rank is in a job that is not over."""
        return ticket in self._job_of

    def has_started(self, ticket: int) -> bool:
        """Whether the rank's job has started, and is not over."""
        return ticket in self._job_of and self._job_of[ticket].state != "forming"

    def join(self, request: JoinRequest, now: float) -> tuple[int, list[Notice]]:
        """Add a rank; returns its ticket, and the notices to deliver. Raises Refused.

        The notices contain Started for every rank if this was the last one, or Refused for every rank if the job could
        not start.
        """
        request.check()
        self._check_authentication(request)
        self._check_deadline(request)
        job = self._by_name(request.job)
        if job is not None:
            self._check_secret(job, request, now)
            self._check_fits(job, request)
        self._check_quotas(job, request)
        self._check_address_free(request)
        if job is None:
            job = Job(
                request.job,
                self._hash(request.secret),
                request.world_size,
                now,
                now + (request.timeout_s or self.join_timeout_s),
                client=request.client,
                is_open=not request.secret,
            )
            self.live.append(job)
            self._journal("job_forming", job=job.name, world_size=job.world_size)
        elif resuming.waits_longer(job, request):
            job.deadline = max(job.deadline, now + (request.timeout_s or self.join_timeout_s))
        member = Member(next(self._tickets), request)
        job.members[request.rank] = member
        self._job_of[member.ticket] = job
        self._journal(
            "rank_joined",
            job=job.name,
            rank=request.rank,
            host=request.host,
            pid=request.pid,
            address=f"{request.address[0]}:{request.address[1]}",
            joined=len(job.members),
            world_size=job.world_size,
        )
        return member.ticket, [] if job.missing else self._start(job, now)

    def leave(self, ticket: int, now: float) -> list[Notice]:
        """Handle a rank that leaves cleanly. Tickets of jobs that are over are ignored."""
        job = self._job_of.get(ticket)
        if job is None:
            return []
        member = self._member(job, ticket)
        if job.state == "forming":
            return self._withdraw(job, member, "left the job")
        del self._job_of[ticket]
        member.state = "left"
        event = PeerLeft((member.request.rank,), f"{member.request.who} left the job")
        self._journal("peer_left", job=job.name, ranks=list(event.ranks), reason=event.reason)
        if not job.present:
            self._end(job, "ended", "all ranks left")
            return []
        job.state = "ending"
        return [(other.ticket, event) for other in job.present]

    def lost(self, ticket: int, how: str, now: float) -> list[Notice]:
        """Handle a lost rank; `how` completes the sentence that begins with its name ("disconnected")."""
        job = self._job_of.get(ticket)
        if job is None:
            return []
        member = self._member(job, ticket)
        if job.state == "forming":
            return self._withdraw(job, member, how)
        member.state = "lost"
        event = PeerLost((member.request.rank,), f"{member.request.who} {how}")
        self._journal("peer_lost", job=job.name, ranks=list(event.ranks), reason=event.reason)
        return self._fail(job, event, event.reason)

    def count(self, ticket: int, calls: dict[str, int], loading: dict[str, float]) -> None:
        """Store a rank's counts of collectives, and the counters of its planned loader."""
        if ticket in self._job_of:
            self._member(self._job_of[ticket], ticket).count(calls, loading)

    def waiting(self, ticket: int, part: int, report: Report) -> list[Notice]:
        """Handle a report of a rank whose call stalls: end the job if the ranks called different collectives."""
        job = self._job_of.get(ticket)
        if job is None or job.state == "forming" or part >= membership.MAX_PARTS or len(report.queues) != job.queues:
            return []
        reason = job.reports.add(part, self._member(job, ticket).request.rank, report)
        return self._fail(job, membership.Disagreement(reason), reason) if reason else []

    def expire(self, now: float) -> list[Notice]:
        """Fail jobs that did not form in time."""
        notices: list[Notice] = []
        for job in [job for job in self.live if job.state == "forming" and now >= job.deadline]:
            # gRPC sends the message in a header of at most 8 KiB, enough for a few names and a number.
            joined = ", ".join(job.members[rank].request.who for rank in sorted(job.members)[:NAMED])
            if len(job.members) > NAMED:
                joined += f" and {len(job.members) - NAMED} more"
            missing = membership.name_ranks(job.missing)
            reason = (
                f"job {job.name!r} did not fill within {job.deadline - job.created:.3g} s: {joined} joined, "
                f"{missing} {'is' if len(job.missing) == 1 else 'are'} missing"
            )
            notices += self._fail(job, Refused(Reason.TIMEOUT, reason), reason)
        return notices

    def fail(self, job_id: int, reason: str) -> list[Notice]:
        """Fail a job whose state the data plane lost, and notify its ranks. Unknown ids are ignored."""
        job = next((job for job in self.live if job.job_id == job_id), None)
        return self._fail(job, Ended(reason), reason) if job is not None else []

    def shutdown(self, reason: str) -> list[Notice]:
        """End every job and notify its ranks of `reason`."""
        notices: list[Notice] = []
        for job in list(self.live):
            notices += [(member.ticket, Ended(reason)) for member in job.present]
            self._end(job, "ended", reason)
        return notices

    def shown_to(self, secret: str, client: str, now: float) -> list[Job]:
        """Live jobs and recently ended ones, the latest first, whose details `client` may see: those with this secret,
        and those without one. Raises Refused if the client has to wait after wrong secrets.
        """
        jobs = [*self.live, *reversed(self.ended)]
        shown = [job for job in jobs if job.is_open]
        if not secret or len(shown) == len(jobs):
            return shown
        self._wrong_secrets.check(client, _ANY_JOB, now)
        digest = self._hash(secret)
        shown = [job for job in jobs if job.is_open or hmac.compare_digest(job.secret, digest)]
        if all(job.is_open for job in shown):
            self._wrong_secrets.count(client, _ANY_JOB, now)
        else:
            self._wrong_secrets.forgive(client, _ANY_JOB)
        return shown

    # Internal: admission.

    def _by_name(self, name: str) -> Job | None:
        """The job that a new rank of this name joins: a job that is ending admits no rank."""
        return next((job for job in self.live if job.name == name and job.state != "ending"), None)

    def _hash(self, secret: str) -> bytes:
        return hashlib.blake2b(secret.encode(), key=self._key).digest()

    def _check_secret(self, job: Job, request: JoinRequest, now: float) -> None:
        """Raises Refused if the secret is wrong, or came after too many wrong ones. This is checked first: without the
        secret no detail of the job is revealed.
        """
        self._wrong_secrets.check(request.client, job.name, now)
        if not hmac.compare_digest(job.secret, self._hash(request.secret)):
            self._wrong_secrets.count(request.client, job.name, now)
            raise Refused(
                Reason.SECRET,
                f"job {job.name!r} exists and has another secret: use another job name, or start all "
                "ranks with the same SWITCHML_SECRET",
            )
        self._wrong_secrets.forgive(request.client, job.name)

    def _check_fits(self, job: Job, request: JoinRequest) -> None:
        """Raises Refused unless `request` may become a member of `job`."""
        for what, theirs, ours in (
            ("world size", request.world_size, job.world_size),
            ("payload_bytes", request.payload_bytes, job.first.payload_bytes),
            ("wire format", request.wire, job.first.wire),
            ("to go on with", resuming.lineage(request), resuming.lineage(resuming.unlike(job, request))),
            ("slots", request.slots, resuming.alike(job, request).slots),
            ("control only", request.is_control_only, job.first.is_control_only),
            ("authenticate", request.authenticate, job.first.authenticate),
            ("deadline_s", request.deadline_s, job.first.deadline_s),
        ):
            if theirs != ours:
                raise Refused(
                    Reason.CONFLICT,
                    f"rank {request.rank} requests {what} {theirs}, but job {job.name!r} was started "
                    f"with {ours} by {job.first.who}",
                )
        member = job.members.get(request.rank)
        if member is not None:
            ip, port = member.request.address
            raise Refused(
                Reason.DUPLICATE,
                f"rank {request.rank} has joined already from {ip}:{port} "
                f"({member.request.host}, pid {member.request.pid}), job {job.name!r}",
            )

    def _check_quotas(self, job: Job | None, request: JoinRequest) -> None:
        """Raises Refused if the client has reached a limit."""
        client = request.client
        members = (member for other in self.live for member in other.present)
        self._quotas.check_ranks(client, sum(member.request.client == client for member in members))
        if job is None:
            self._quotas.check_jobs(client, sum(other.client == client for other in self.live))

    def _check_authentication(self, request: JoinRequest) -> None:
        if request.authenticate and not self.dataplane.authenticates:
            raise Refused(
                Reason.CONFLICT,
                f"job {request.job!r} is to be authenticated, and a P4 switch can't compute the tags of packets: "
                "join without authenticate, or use a software aggregator",
            )

    def _check_deadline(self, request: JoinRequest) -> None:
        if request.deadline_s and not self.dataplane.ends_early:
            raise Refused(
                Reason.CONFLICT,
                f"job {request.job!r} has a deadline, and this aggregator's sums always wait for every rank: join "
                "without deadline, or use a software aggregator or one P4 switch that runs switchml.json",
            )

    def _check_address_free(self, request: JoinRequest) -> None:
        if request.is_control_only:
            return
        for ip, port in request.addresses:
            if self._is_own((ip, port)):
                raise Refused(
                    Reason.INVALID,
                    f"data address {ip}:{port} is the aggregator's own: expected that of the rank's socket",
                )
        for job in self.live:
            for member in job.present:
                for ip, port in set(member.request.addresses) & set(request.addresses):
                    whose = f"by {member.request.who}" if job.name == request.job else f"in job {job.name!r}"
                    raise Refused(Reason.DUPLICATE, f"data address {ip}:{port} is used already {whose}")

    # Internal: start and end.

    def _start(self, job: Job, now: float) -> list[Notice]:
        try:
            rounds = resuming.agreed(job)
            spec = self._spec(job)
            if spec.slots:
                self.dataplane.start_job(spec)
        except Refused as refusal:
            return self._fail(job, refusal, str(refusal))
        except Exception as error:  # a failure of this job must not affect the others
            message = error if isinstance(error, SwitchMLError) else repr(error)
            reason = f"job {job.name!r} can't start: {message}"
            return self._fail(job, Refused(Reason.CAPACITY, reason), reason)
        job.job_id, job.job_tag, job.isn, job.state = spec.job_id, spec.job_tag, spec.isn, "running"
        job.slots = spec.slots * len(spec.parts)
        job.epoch = resuming.epoch(job)
        self._journal(
            "job_started",
            job=job.name,
            job_id=job.job_id,
            world_size=job.world_size,
            slots=job.slots,
            payload_bytes=spec.payload_bytes,
            formed_in_s=round(now - job.created, 3),
            **({"epoch": job.epoch} if job.epoch else {}),
        )
        members = [job.members[rank] for rank in range(job.world_size)]
        peers = tuple(
            membership.Peer(member.request.rank, member.request.host, member.request.pid) for member in members
        )
        moved = {"queues": job.queues, "rounds": rounds, "epoch": job.epoch}
        return [(member.ticket, started(self.dataplane, spec, member.request, peers, **moved)) for member in members]

    def _spec(self, job: Job) -> JobSpec:
        """The specification of a complete job for the data plane. Raises Refused if there are not enough resources."""
        requests = [job.members[rank].request for rank in range(job.world_size)]
        slots = parts = 0
        if not job.first.is_control_only:
            addresses = {address for request in requests for address in request.addresses}
            self._check_addresses_released(job, addresses)
            self._evict_unused(addresses)
            slots, parts = self._allocate(job)
        # For a job that sends no packets: one part, and one address for all ranks.
        first, *more = draw_parts(
            [request.addresses[: max(parts, 1)] for request in requests],
            slots,
            {other.job_tag for other in self.live} | resuming.former_tags(job),
            self._randbelow,
            with_keys=job.first.authenticate,
        )
        most = large_bytes(job.world_size, slots, job.first.payload_bytes)
        return JobSpec(
            job_id=next(self._job_ids),
            protocol=membership.PROTOCOL,
            workers=job.world_size,
            slots=slots,
            payload_bytes=job.first.payload_bytes,
            wire=job.first.wire,
            transports=tuple(request.transport for request in requests),
            macs=tuple(request.mac for request in requests),
            more=tuple(more),
            has_deadline=job.first.deadline_s > 0,
            large_bytes=most if slots and job.has_large_packets else 0,
            **vars(first),
        )

    def _check_addresses_released(self, job: Job, addresses: Collection[Address]) -> None:
        """Raises Refused if an address still belongs to a job that is ending, which its rank has left."""
        for other in self.live:
            if other.state != "ending":
                continue
            for member in other.members.values():
                for ip, port in set(member.request.addresses).intersection(addresses):
                    raise Refused(
                        Reason.DUPLICATE,
                        f"job {job.name!r} can't start: data address {ip}:{port} belongs to job "
                        f"{other.name!r} until {membership.name_ranks(m.request.rank for m in other.present)} "
                        "of it left too",
                    )

    def _allocate(self, job: Job) -> tuple[int, int]:
        """Slots per part of a job, and number of its parts. Slots are those requested, or the default for each part,
        halved until they fit the free slots and the client's share. Raises Refused with the numbers if not even
        MIN_SLOTS fit.
        """
        capacity = self.dataplane.slot_capacity
        free = capacity - self.slots_allocated
        clients = sum(other.slots for other in self.live if other.client == job.client)
        if self.dataplane.collectives:
            job.queues = min(MAX_QUEUES, *(max(member.request.queues, 1) for member in job.members.values()))
        most = min(len(member.request.addresses) for member in job.members.values())
        requested = resuming.slots(job) or self.slots
        parts = self.dataplane.parts_for(count_parts(most, requested or capacity))
        wanted = default_slots(job.world_size, job.queues, large_packets=job.has_large_packets)
        requested = requested or parts * wanted
        slots = fit_slots(requested, self._quotas.slots_left(free, clients))
        if not slots:
            raise Refused(
                Reason.CAPACITY,
                f"job {job.name!r} requests {requested} slots and needs at least {membership.MIN_SLOTS}: {free} of the "
                f"aggregator's {capacity} are free, {len(self.live) - 1} other jobs have the rest"
                + (f", {clients} of them this client's, its whole share" if free >= membership.MIN_SLOTS else ""),
            )
        parts = count_parts(parts, slots)
        resuming.check_room(job, slots, parts)
        return slots // parts, parts

    def _member(self, job: Job, ticket: int) -> Member:
        return next(member for member in job.members.values() if member.ticket == ticket)

    def _withdraw(self, job: Job, member: Member, how: str) -> list[Notice]:
        """Remove a rank before the job has started: the others keep waiting, and the rank may rejoin."""
        del job.members[member.request.rank]
        del self._job_of[member.ticket]
        reason = f"{member.request.who} {how} before the job started"
        self._journal("peer_lost", job=job.name, ranks=[member.request.rank], reason=reason)
        if not job.members:
            self._end(job, "failed", reason)
        return []

    def _fail(self, job: Job, event: Event, reason: str) -> list[Notice]:
        notices = [(member.ticket, event) for member in job.present]
        self._end(job, "failed", reason)
        return notices

    def _end(self, job: Job, state: str, reason: str) -> None:
        """End the job: slots, name, tag and addresses are free from now on."""
        if job.job_id:
            job.final = self._final_counters(job)
            self.dataplane.stop_job(job.job_id)
        for member in job.members.values():
            self._job_of.pop(member.ticket, None)
        self.live.remove(job)
        job.state, job.reason = state, reason
        self.ended.append(job)
        self._journal("job_ended", job=job.name, job_id=job.job_id, state=state, reason=reason)

    def _final_counters(self, job: Job) -> JobCounters | None:
        try:
            final = self.dataplane.counters(job.job_id)
        except KeyError:
            return None
        for rank in final.ranks:
            self.ended_totals.update(rank)
        return final
