"""A data plane that adds nothing up: it records its calls, so that the control plane can be tested alone.

`python -m tests.support.fake_dataplane PORT` serves a controller on one, for tests that kill an aggregator.
"""

from __future__ import annotations

import sys
import threading

from switchml.control.dataplane import JobCounters, JobSpec
from switchml.counters import COUNTERS, REFUSED
from switchml.errors import ConfigError


class FakeDataplane:
    """Implements `Dataplane`. `jobs[job_id]` is the JobSpec; a test may set `counts[job_id]`, `missing[job_id]` and
    `broken[job_id]`."""

    kind = "fake"
    buffer_a_rank = False
    transports = ("udp", "zmq")
    v1_place = None
    padded = dense_only = authenticates = collectives = only_sums = halves = ends_early = False
    mac = 0
    most_parts = 1
    memory = ""

    def __init__(
        self, slot_capacity: int = 65536, receive_buffer_bytes: int = 0, address: tuple[str, int] = ("127.0.0.1", 48864)
    ):
        self.address = address
        self.slot_capacity = slot_capacity
        self.receive_buffer_bytes = receive_buffer_bytes
        self.jobs: dict[int, JobSpec] = {}
        self.rank_addresses: dict[int, list[tuple[str, int] | None]] = {}
        self.counts: dict[int, list[dict[str, int]]] = {}
        self.missing: dict[int, tuple[int, ...]] = {}
        self.broken: dict[int, str] = {}
        self._lock = threading.Lock()

    @property
    def slots_in_use(self) -> int:
        return sum(job.slots for job in self.jobs.values() if job.protocol == 2)

    def address_for(self, sender: tuple[str, int]) -> tuple[str, int]:
        return self.address

    def start_job(self, spec: JobSpec) -> None:
        with self._lock:
            used = {
                address for addresses in self.rank_addresses.values() for address in addresses if address is not None
            }
            if used & set(spec.addresses):
                raise ConfigError(f"an address of {spec.addresses} belongs to another job")
            if spec.protocol == 2 and self.slots_in_use + spec.slots > self.slot_capacity:
                raise ConfigError("no memory left")
            self.jobs[spec.job_id] = spec
            self.rank_addresses[spec.job_id] = list(spec.addresses)
            self.counts[spec.job_id] = [dict.fromkeys(COUNTERS, 0) for _ in range(spec.workers)]

    def set_address(self, job_id: int, rank: int, address: tuple[str, int], mac: int = 0) -> None:
        self.rank_addresses[job_id][rank] = address

    def stop_job(self, job_id: int) -> None:
        with self._lock:
            self.jobs.pop(job_id, None)
            self.rank_addresses.pop(job_id, None)

    def segment(self, job_id: int, part: int = 0) -> str:
        return ""

    def parts_for(self, wanted: int) -> int:
        return min(wanted, self.most_parts)

    def link(self, job_id: int, rank: int) -> None:
        pass

    def failed(self) -> dict[int, str]:
        return dict(self.broken)

    def counters(self, job_id: int) -> JobCounters:
        if job_id not in self.jobs:
            raise KeyError(job_id)
        return JobCounters(tuple(dict(rank) for rank in self.counts[job_id]), 0, self.missing.get(job_id, ()))

    def refused(self) -> dict[str, int]:
        return dict.fromkeys(REFUSED, 3)


if __name__ == "__main__":
    from switchml.control.server import Controller

    print(Controller(FakeDataplane(), control_port=int(sys.argv[1])).start().control[1], flush=True)
    threading.Event().wait()
