"""Several aggregator threads as one data plane: each has its own UDP port, slots and jobs.

Threads share nothing, so they scale with the cores. A job whose ranks have a socket for each thread has parts on
several (docs/protocol.md, section 7); other jobs run on one, and sessions of protocol v1, whose agents know only one
port, on the first.
"""

import threading
from collections import Counter
from typing import Any

from switchml import logs
from switchml.aggregator.raw import RawV1
from switchml.aggregator.software import SoftwareDataplane, SoftwareTraits
from switchml.control.dataplane import Address, JobCounters, JobSpec
from switchml.errors import ConfigError
from switchml.protocol import packet as wire_format
from switchml.runtime.cores import share_of_cores

log = logs.of("switchml.aggregator")

Home = SoftwareDataplane | RawV1
"""Data plane of a job, or of a part of one."""


class ThreadedDataplane(SoftwareTraits):
    """`threads` SoftwareDataplanes on ports `port`, `port` + 1, … (0: any free ones) with the interface of one; further
    ones, up to `most_threads`, are started when a job has parts for them.

    Other options are SoftwareDataplane's; `slot_capacity` is that of all threads together. With `raw`, the name of an
    interface, sessions of protocol v1 use that interface (raw.py). Raises ConfigError if a port or the interface is not
    available.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1",
        port: int = wire_format.UDP_PORT,
        *,
        threads: int,
        most_threads: int = 0,
        slot_capacity: int = 65536,
        seed: int = 0,
        raw: str | None = None,
        **options: Any,
    ) -> None:
        if threads < 1 or (port and port + threads - 1 > 65535):
            raise ConfigError(f"{threads} threads from data port {port} on: expected at least 1, on ports up to 65535")
        self.slot_capacity = slot_capacity
        self.most_parts = max(threads, most_threads)
        self._bind, self._port, self._seed, self._options = bind, port, seed * threads, options
        self._planes: list[SoftwareDataplane] = []
        self._raw: RawV1 | None = None
        try:
            if raw is not None:
                self._raw = RawV1(raw)
                self.v1_place = self._raw.ip, self._raw.mac
            for _ in range(threads):
                self._planes.append(self._new_plane())
        except ConfigError:
            self.stop()
            raise
        self.address = self._planes[0].address
        self.memory = self._planes[0].memory
        self.receive_buffer_bytes = min(plane.receive_buffer_bytes for plane in self._planes)
        self._homes: dict[int, list[Home]] = {}  # of each part
        self._senders: dict[Address, tuple[int, int, Address]] = {}  # (job, rank, address of its thread)
        self._lock = threading.Lock()

    def _new_plane(self) -> SoftwareDataplane:
        number = len(self._planes)
        port = self._port + number if self._port else 0
        return SoftwareDataplane(
            self._bind, port, slot_capacity=self.slot_capacity, seed=self._seed + number, **self._options
        )

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Addresses to which ranks may send packets, one per thread."""
        return tuple(plane.address for plane in self._planes)

    def start(self) -> "ThreadedDataplane":
        for plane in self._all:
            plane.start()
        return self

    def stop(self) -> None:
        """Stop all threads and close their sockets. May be called twice."""
        for plane in self._all:
            plane.stop()

    @property
    def _all(self) -> list[Home]:
        return [*self._planes, *([self._raw] if self._raw is not None else [])]

    # -- Dataplane --

    def parts_for(self, wanted: int) -> int:
        """Number of parts of a job, up to the maximum number of threads; fewer if a port is in use. Starts threads as
        needed."""
        with self._lock:
            while len(self._planes) < min(wanted, self.most_parts):
                try:
                    plane = self._new_plane()
                except ConfigError as error:
                    self.most_parts = len(self._planes)
                    log.warning("%d threads in place of more: %s", self.most_parts, error)
                    break
                self._planes.append(plane.start())
            return min(wanted, len(self._planes))

    def start_job(self, spec: JobSpec) -> None:
        """Start a job. Raises ConfigError as SoftwareDataplane does."""
        with self._lock:
            if spec.job_id in self._homes:
                raise ConfigError(f"job {spec.job_id} is running already")
            for part in spec.parts:
                for rank, address in enumerate(part.addresses):
                    if address in self._senders:
                        job, other, _ = self._senders[address]
                        raise ConfigError(
                            f"address {address[0]}:{address[1]} of rank {rank} belongs to rank {other} of job {job}"
                        )
            load = Counter(plane for home in self._homes.values() for plane in home)
            chosen = sorted(self._planes, key=lambda plane: load[plane])[: len(spec.parts)]
            homes: list[Home] = [plane for plane in self._planes if plane in chosen]
            if spec.protocol == 1:
                homes = [self._raw or self._planes[0]]
            self._homes[spec.job_id] = []
            try:
                for part, plane in zip(spec.parts, homes, strict=True):
                    plane.start_job(part)
                    self._homes[spec.job_id].append(plane)
            except BaseException:
                self._remove(spec.job_id)
                raise
            for part, plane in zip(spec.parts, homes, strict=True):
                for rank, address in enumerate(part.addresses):
                    if address is not None:
                        self._senders[address] = spec.job_id, rank, _address_of(plane)
            self._share_cores()

    def set_address(self, job_id: int, rank: int, address: Address, mac: int = 0) -> None:
        """Set a rank's address. Raises ConfigError if it belongs to another rank, KeyError for an unknown job."""
        with self._lock:
            (plane,) = self._homes[job_id]
            plane.set_address(job_id, rank, address, mac)
            self._senders[address] = job_id, rank, _address_of(plane)

    def stop_job(self, job_id: int) -> None:
        with self._lock:
            self._senders = {at: home for at, home in self._senders.items() if home[0] != job_id}
            self._remove(job_id)

    def _remove(self, job_id: int) -> None:
        for plane in self._homes.pop(job_id, ()):
            plane.stop_job(job_id)
        self._share_cores()

    def _share_cores(self) -> None:
        """Pin threads with a part of a divided job to that part's share of the cores, and let all others run on any
        core."""
        shares = {plane: share_of_cores(0, 1) for plane in self._planes}
        for home in self._homes.values():
            for number, plane in enumerate(home):
                if len(home) > 1 and isinstance(plane, SoftwareDataplane):
                    shares[plane] = share_of_cores(number, len(home))
        for plane, cores in shares.items():
            plane.run_on(cores)

    def address_for(self, sender: Address) -> Address:
        """The port of the thread that has the sender's job; the first one's for unknown senders."""
        with self._lock:
            return self._senders[sender][2] if sender in self._senders else self.address

    def segment(self, job_id: int, part: int = 0) -> str:
        home = self._homes[job_id][part]
        return home.segment(job_id) if isinstance(home, SoftwareDataplane) else ""

    def counters(self, job_id: int) -> JobCounters:
        """Combined counters of all parts. Raises KeyError for an unknown job."""
        parts = [plane.counters(job_id) for plane in self._homes[job_id]]
        ranks = tuple(
            {name: sum(part[name] for part in rank) for name in rank[0]}
            for rank in zip(*(part.ranks for part in parts), strict=True)
        )
        missing = {rank for part in parts for rank in part.missing}
        return JobCounters(ranks, sum(part.slots_in_use for part in parts), tuple(sorted(missing)))

    def refused(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for plane in self._all:
            total.update(plane.refused())
        return dict(total)


def _address_of(plane: Home) -> Address:
    return plane.address if isinstance(plane, SoftwareDataplane) else (plane.ip, wire_format.UDP_PORT)
