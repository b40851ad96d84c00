"""v1 sessions: p4app-switchML's controller state for UDP hosts, with one job in the data plane each.

Like jobs.py a state machine without gRPC or a clock. A host calls UdpSession once; rank 0's call starts the session,
the others' calls add their addresses. v1 has neither a call to leave nor a heartbeat, so a session ends when

- rank 0 opens another with its session id,
- a host opens another session from an address that this one uses, since v1 distinguishes workers only by their IPv4
  address,
- neither a call nor a packet came for the idle timeout, or no packet at all for a minute,
- a v2 job starts from an address that this one names but has had no packet from: a call alone reserves no address.

Anybody who can reach the control port can thus end a v1 session; v2 jobs are not affected.
"""

import ipaddress
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from switchml.control.dataplane import Address, Dataplane, JobSpec
from switchml.control.jobs import Journal, no_journal
from switchml.control.membership import Reason, Refused, check_address
from switchml.control.quotas import UNLIMITED, Quotas
from switchml.errors import SwitchMLError
from switchml.protocol.packet import SIZE_CODES, V1_MAX_WORKERS, V1_SLOTS

IDLE_TIMEOUT_S = 3600.0
UNUSED_TIMEOUT_S = 60.0
"""Seconds after which a session without a first packet ends."""
SWITCH_MAC = 0x001122334455
"""The default MAC address of p4app-switchML's switch, which hosts put into their frames."""


@dataclass
class V1Session:
    """One session. `addresses[rank]` and `macs[rank]` are None and 0 until that rank has called. `client`: that of rank
    0, which created it."""

    session_id: int
    job_id: int
    workers: int
    payload_bytes: int
    created: float
    last_active: float
    addresses: list[tuple[str, int] | None]
    macs: list[int]
    client: str = ""
    received_packets: int = 0
    slots: int = field(default=V1_SLOTS, init=False)

    @property
    def name(self) -> str:
        return f"v1 session {self.session_id}"

    @property
    def missing(self) -> list[int]:
        return [rank for rank, address in enumerate(self.addresses) if address is None]


class V1Sessions:
    """All v1 sessions of one aggregator. Not thread-safe. Times are seconds of any monotonic clock."""

    def __init__(
        self,
        dataplane: Dataplane,
        *,
        job_ids: Iterator[int] | None = None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        journal: Journal = no_journal,
        quotas: Quotas = UNLIMITED,
        is_own: Callable[[Address], bool] = lambda address: False,
    ):
        self.dataplane = dataplane
        self.idle_timeout_s = idle_timeout_s
        self.live: dict[int, V1Session] = {}
        self.ended_totals: Counter[str] = Counter()
        self._job_ids = job_ids if job_ids is not None else itertools.count(1)
        self._journal = journal
        self._quotas = quotas
        self._is_own = is_own

    def open(
        self,
        session_id: int,
        rank: int,
        workers: int,
        size_code: int,
        ipv4: int,
        mac: int,
        now: float,
        client: str = "",
    ) -> V1Session:
        """Handle a rank's call of UdpSession. Raises Refused."""
        address = self._check(rank, workers, size_code, ipv4)
        nobody: list[Address | None] = [None] * workers
        call = V1Session(session_id, 0, workers, SIZE_CODES[size_code], now, now, nobody, [0] * workers, client)
        try:
            session = self._begin(call, address, mac) if rank == 0 else self._add(call, rank, address, mac)
        except SwitchMLError as error:
            if isinstance(error, Refused):
                raise
            raise Refused(Reason.CAPACITY, f"session {session_id}: {error}") from error
        self._journal(
            "rank_joined",
            job=session.name,
            rank=rank,
            host="",
            pid=0,
            address=f"{address[0]}:0",
            joined=workers - len(session.missing),
            world_size=workers,
        )
        return session

    def expire(self, now: float) -> None:
        """End the sessions that have been idle for too long. Call it periodically: a session counts as active if its
        counters have changed since the last call.
        """
        for session in list(self.live.values()):
            received = sum(rank["received_packets"] for rank in self.dataplane.counters(session.job_id).ranks)
            if received != session.received_packets:
                session.received_packets, session.last_active = received, now
                continue
            limit_s = self.idle_timeout_s if received else min(self.idle_timeout_s, UNUSED_TIMEOUT_S)
            if now - session.last_active >= limit_s:
                self._end(session, f"idle for {limit_s:g} s")

    def evict_unused(self, addresses: Collection[Address]) -> None:
        """End the sessions that only claim one of these addresses, from which a v2 job starts."""
        ips = {ip for ip, _ in addresses}
        for session in list(self.live.values()):
            ranks = self.dataplane.counters(session.job_id).ranks
            for address, counters in zip(session.addresses, ranks, strict=True):
                if address is not None and address[0] in ips and not counters["received_packets"]:
                    self._end(session, f"{address[0]} joined a v2 job and had sent nothing to this session")
                    break

    def fail(self, job_id: int, reason: str) -> None:
        """End a session whose state the data plane has lost. v1 has no message that could notify its hosts."""
        for session in [session for session in self.live.values() if session.job_id == job_id]:
            self._end(session, reason)

    def shutdown(self, reason: str) -> None:
        for session in list(self.live.values()):
            self._end(session, reason)

    def _check(self, rank: int, workers: int, size_code: int, ipv4: int) -> tuple[str, int]:
        if not 1 <= workers <= V1_MAX_WORKERS:
            raise Refused(Reason.INVALID, f"num_workers {workers}: expected 1 to {V1_MAX_WORKERS}")
        if rank >= workers:
            raise Refused(Reason.INVALID, f"rank {rank} of {workers}: expected 0 to {workers - 1}")
        if size_code not in SIZE_CODES:
            raise Refused(Reason.INVALID, f"packet_size {size_code}: expected MTU_256 (1) or MTU_1024 (3)")
        ip = str(ipaddress.IPv4Address(ipv4))
        check_address((ip, 1))
        if self._is_own((ip, 0)):
            raise Refused(
                Reason.INVALID, f"worker address {ip} is the aggregator's own: it would send its results to itself"
            )
        return ip, 0

    def _begin(self, session: V1Session, address: tuple[str, int], mac: int) -> V1Session:
        """Begin a session: rank 0's call resets the session's state, as on the original switch, and ends any other
        session with its address."""
        if session.session_id in self.live:
            self._end(self.live[session.session_id], "rank 0 opened it again")
        self._quotas.check_jobs(session.client, sum(other.client == session.client for other in self.live.values()))
        self._take_over(address)
        session.job_id = next(self._job_ids)
        session.addresses[0], session.macs[0] = address, mac
        spec = JobSpec(
            session.job_id,
            1,
            session.workers,
            V1_SLOTS,
            session.payload_bytes,
            tuple(session.addresses),
            macs=tuple(session.macs),
        )
        self.dataplane.start_job(spec)
        self.live[session.session_id] = session
        self._journal(
            "job_started",
            job=session.name,
            job_id=session.job_id,
            world_size=session.workers,
            slots=V1_SLOTS,
            payload_bytes=session.payload_bytes,
            formed_in_s=0.0,
        )
        return session

    def _add(self, call: V1Session, rank: int, address: tuple[str, int], mac: int) -> V1Session:
        """Add another rank, whose `call` has the form of the session that it would open."""
        session_id = call.session_id
        session = self.live.get(session_id)
        if session is None:
            raise Refused(
                Reason.CONFLICT,
                f"session {session_id} is not open: rank 0 calls UdpSession first, the others after a Barrier",
            )
        for what, theirs, ours in (
            ("num_workers", call.workers, session.workers),
            ("payload bytes", call.payload_bytes, session.payload_bytes),
        ):
            if theirs != ours:
                raise Refused(
                    Reason.CONFLICT,
                    f"rank {rank} requests {what} {theirs}, but rank 0 opened session {session_id} with {ours}",
                )
        if address in session.addresses and session.addresses[rank] != address:
            raise Refused(
                Reason.DUPLICATE,
                f"{address[0]} is rank {session.addresses.index(address)} of session {session_id} already: "
                "v1 needs an IPv4 address a worker",
            )
        self._take_over(address, but=session)
        self.dataplane.set_address(session.job_id, rank, address, mac)
        session.addresses[rank], session.macs[rank], session.last_active = address, mac, call.created
        return session

    def _take_over(self, address: tuple[str, int], but: V1Session | None = None) -> None:
        for other in list(self.live.values()):
            if other is not but and address in other.addresses:
                self._end(other, f"{address[0]} opened another session")

    def _end(self, session: V1Session, reason: str) -> None:
        for rank in self.dataplane.counters(session.job_id).ranks:
            self.ended_totals.update(rank)
        self.dataplane.stop_job(session.job_id)
        del self.live[session.session_id]
        self._journal("job_ended", job=session.name, job_id=session.job_id, state="ended", reason=reason)
