"""Several aggregator threads as one data plane: each has its own UDP port, its own slots, and its own jobs.

Threads share nothing, so they scale with the cores. A job lives on one of them; one that needs more than a core joins
several times, by listing the aggregator several times (`host:50099,host:50099`), and its shards are on different
threads. Sessions of protocol v1, whose agents know only one port, are on the first.
"""

import threading
from collections import Counter
from typing import Any

from switchml.aggregator.raw import RawV1
from switchml.aggregator.software import SoftwareDataplane, SoftwareTraits
from switchml.control.dataplane import Address, JobCounters, JobSpec
from switchml.errors import ConfigError
from switchml.protocol import packet as wire_format


class ThreadedDataplane(SoftwareTraits):
    """`threads` SoftwareDataplanes on ports `port`, `port` + 1, … (0: any free ones) behind the interface of one.

    Other options are SoftwareDataplane's; `slot_capacity` is that of all threads together. With `raw`, the name of an
    interface, sessions of protocol v1 are on that (raw.py). Raises ConfigError if a port or the interface can't be had.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1",
        port: int = wire_format.UDP_PORT,
        *,
        threads: int,
        slot_capacity: int = 65536,
        seed: int = 0,
        raw: str | None = None,
        **options: Any,
    ) -> None:
        if threads < 1 or (port and port + threads - 1 > 65535):
            raise ConfigError(f"{threads} threads from data port {port} on: expected at least 1, on ports up to 65535")
        self.slot_capacity = slot_capacity
        self._planes: list[SoftwareDataplane] = []
        self._raw: RawV1 | None = None
        try:
            if raw is not None:
                self._raw = RawV1(raw)
                self.v1_place = self._raw.ip, self._raw.mac
            for i in range(threads):
                at = port + i if port else 0
                self._planes.append(
                    SoftwareDataplane(bind, at, slot_capacity=slot_capacity, seed=seed * threads + i, **options)
                )
        except ConfigError:
            self.stop()
            raise
        self.address = self._planes[0].address
        self.receive_buffer_bytes = min(plane.receive_buffer_bytes for plane in self._planes)
        self._homes: dict[int, SoftwareDataplane | RawV1] = {}
        self._senders: dict[Address, tuple[int, int, Address]] = {}  # (job, rank, where its thread is reached)
        self._lock = threading.Lock()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where packets may go, a thread each."""
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
    def _all(self) -> list[SoftwareDataplane | RawV1]:
        return [*self._planes, *([self._raw] if self._raw is not None else [])]

    # -- Dataplane --

    def start_job(self, spec: JobSpec) -> None:
        """Raises ConfigError as SoftwareDataplane does."""
        with self._lock:
            if spec.job_id in self._homes:
                raise ConfigError(f"job {spec.job_id} is running already")
            for rank, address in enumerate(spec.addresses):
                if address in self._senders:
                    job, other, _ = self._senders[address]
                    raise ConfigError(
                        f"address {address[0]}:{address[1]} of rank {rank} belongs to rank {other} of job {job}"
                    )
            load = Counter(self._homes.values())
            plane: SoftwareDataplane | RawV1 = min(self._planes, key=lambda p: load[p])
            if spec.protocol == 1:
                plane = self._raw or self._planes[0]
            plane.start_job(spec)
            self._homes[spec.job_id] = plane
            for rank, address in enumerate(spec.addresses):
                if address is not None:
                    self._senders[address] = spec.job_id, rank, _address_of(plane)

    def set_address(self, job_id: int, rank: int, address: Address, mac: int = 0) -> None:
        """Raises ConfigError if it belongs to somebody else, KeyError for an unknown job."""
        with self._lock:
            plane = self._homes[job_id]
            plane.set_address(job_id, rank, address, mac)
            self._senders[address] = job_id, rank, _address_of(plane)

    def stop_job(self, job_id: int) -> None:
        with self._lock:
            plane = self._homes.pop(job_id, None)
            self._senders = {at: home for at, home in self._senders.items() if home[0] != job_id}
            if plane is not None:
                plane.stop_job(job_id)

    def address_for(self, sender: Address) -> Address:
        """The port of the thread that has the sender's job; the first one's for strangers."""
        with self._lock:
            return self._senders[sender][2] if sender in self._senders else self.address

    def segment(self, job_id: int) -> str:
        home = self._homes[job_id]
        return home.segment(job_id) if isinstance(home, SoftwareDataplane) else ""

    def counters(self, job_id: int) -> JobCounters:
        """Raises KeyError for an unknown job."""
        return self._homes[job_id].counters(job_id)

    def refused(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for plane in self._all:
            total.update(plane.refused())
        return dict(total)


def _address_of(plane: SoftwareDataplane | RawV1) -> Address:
    return plane.address if isinstance(plane, SoftwareDataplane) else (plane.ip, wire_format.UDP_PORT)
