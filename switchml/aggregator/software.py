"""The software aggregator: applies the rules of pool.py to packets from a UDP socket and sends the results, all in one
compiled loop.

`SoftwareDataplane` implements the control plane's `Dataplane`. One thread owns all state and runs `loop.serve`, which
does not hold the GIL and creates no Python objects; to change a job, other threads pass a function to that thread and
wake it: the loop returns, the function runs, the loop starts again. Each job has its own slots; the only shared
structure is a table from sender to (job, rank).
"""

import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from switchml import logs
from switchml.aggregator import loop as compiled
from switchml.aggregator.job_state import JobState
from switchml.aggregator.loop import MAX_JOBS
from switchml.aggregator.loop_thread import LoopThread, Result
from switchml.aggregator.senders import MAX_SENDERS, fill_senders
from switchml.control.dataplane import Address, JobCounters, JobSpec
from switchml.errors import ConfigError
from switchml.net import impair, shm, sockets, udp
from switchml.net.ports import data_port
from switchml.protocol import packet as wire_format
from switchml.protocol.pool import Pool
from switchml.protocol.pool_state import MULTICAST, UNICAST, WAITING
from switchml.runtime.jit import compile_once

log = logs.of("switchml.aggregator")

SOCKET_BUFFER_BYTES = 16 << 20


class SoftwareTraits:
    """Properties that a software aggregator, of one thread or several, reports to the control plane."""

    kind = "software"
    buffer_a_rank = False
    transports: tuple[str, ...] = ("shm", "udp", "zmq")
    padded = dense_only = only_sums = False
    authenticates = collectives = halves = ends_early = True
    mac = 0
    v1_place: tuple[str, int] | None = None
    most_parts = 1
    memory = ""

    def parts_for(self, wanted: int) -> int:
        return min(wanted, self.most_parts)

    def link(self, job_id: int, rank: int) -> None:
        """None: agents need only the address."""

    def failed(self) -> dict[int, str]:
        return {}


class SoftwareDataplane(SoftwareTraits):
    """The aggregator's data side on a UDP socket of `bind`:`port` (0: any free port).

    `slot_capacity`: total slots of v2 jobs (2 kB of memory each). `loss_rate`, `reorder_rate`, `duplicate_rate`:
    probabilities applied to each packet when it arrives and again when it leaves; `seed` makes them repeatable.
    `shared_memory`: exchange packets in memory with ranks of this machine and user (disabled by a rate above 0, which
    applies to a network). Raises ConfigError if the address can't be bound or a rate is not a probability.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1",
        port: int = wire_format.UDP_PORT,
        *,
        slot_capacity: int = 65536,
        loss_rate: float = 0.0,
        reorder_rate: float = 0.0,
        duplicate_rate: float = 0.0,
        seed: int = 0,
        shared_memory: bool = True,
    ) -> None:
        self.slot_capacity = slot_capacity
        uplink = impair.new_impairment(loss_rate, reorder_rate, duplicate_rate, 2 * seed + 1)
        downlink = impair.new_impairment(loss_rate, reorder_rate, duplicate_rate, 2 * seed + 2)
        self._shared = shared_memory and not (loss_rate or reorder_rate or duplicate_rate)
        self._socket = data_port(bind, port)
        self.address: Address = self._socket.getsockname()
        self.receive_buffer_bytes = sockets.grow_buffers(self._socket, SOCKET_BUFFER_BYTES)
        self._thread = LoopThread(lambda: compiled.serve(self._loop), "switchml-aggregator")
        self._loop = compiled.new_loop(self._socket, self._thread.wake, uplink, downlink)
        self._jobs: dict[int, JobState] = {}
        if self._shared:
            with suppress(OSError):  # not supported by the kernel: ranks use UDP
                _, self._memory_fd, self.memory = shm.create(1, 1, memory="switchml-probe")

    # -- lifecycle --

    def start(self) -> "SoftwareDataplane":
        compile_once(compiled.serve, self._loop)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and close the socket. May be called twice."""
        if self._thread.stop():
            self._thread.run(self._close)

    def _close(self) -> None:
        for job in self._jobs.values():
            job.close()
        if self.memory:
            os.close(self._memory_fd)
        self._socket.close()
        os.close(self._thread.wake)

    def run_on(self, cores: set[int]) -> None:
        """Restrict the thread to these cores."""
        self._thread.run_on(cores)

    def _in_loop(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the thread that owns the arrays, between two batches; returns its result."""
        return self._thread.run(action)

    def handle(self, sender: int, address: int, length: int) -> list[tuple[int, bytes]]:
        """Process one datagram of endpoint `sender` (udp.endpoint); returns the resulting packets as (endpoint, bytes).
        For a data plane that was not started: without socket, clock or other threads (emulator/networks/faults)."""
        value, action, row = compiled.apply_one(
            self._loop.senders, self._loop.jobs, np.uint64(sender), address, length, self._loop.replies[0]
        )
        if value < 0:
            self._loop.totals[0] += 1
        if action not in (MULTICAST, UNICAST, WAITING):
            return []
        job = next(job for job in self._jobs.values() if job.index == value >> 16)
        if action == MULTICAST:
            result, pool = job.pool.result(row, length), job.pool
            return [
                (endpoint, wire_format.for_rank(result, rank))
                for rank, endpoint in enumerate(job.endpoints.tolist())
                if not isinstance(pool, Pool) or pool.gets_result(row, rank)
            ]
        size = wire_format.HEADER_BYTES + wire_format.BITMAP_BYTES
        if action == UNICAST:
            size = len(wire_format.for_rank(job.pool.result(row, length), value & 0xFFFF))
        return [(sender, self._loop.replies[0, :size].tobytes())]

    # -- Dataplane --

    def start_job(self, spec: JobSpec) -> None:
        """Start a job. Raises ConfigError if an address belongs to another job or there are too many jobs or
        workers."""
        state = JobState(spec, self._shared, self.halves)
        try:
            self._in_loop(lambda: self._install(state))
        except BaseException:
            state.close()
            raise

    def _install(self, state: JobState) -> None:
        spec = state.spec
        if self._thread.stopping:
            raise ConfigError(f"job {spec.job_id} can't start: the aggregator is stopping")
        if spec.job_id in self._jobs:
            raise ConfigError(f"job {spec.job_id} is running already")
        free = np.flatnonzero(self._loop.jobs["protocol"] == 0)
        senders = sum(len(job.endpoints) for job in self._jobs.values()) + spec.workers
        if not len(free) or senders > MAX_SENDERS:
            raise ConfigError(f"no more jobs can start: at most {MAX_JOBS} jobs and {MAX_SENDERS} workers at once")
        for rank, address in enumerate(spec.addresses):
            if address is not None:
                if address in spec.addresses[:rank]:
                    first = spec.addresses.index(address)
                    raise ConfigError(
                        f"address {address[0]}:{address[1]} is given for rank {first} and for rank {rank}"
                    )
                self._check_address(spec, rank, address)
        state.index = int(free[0])
        self._jobs[spec.job_id] = state
        self._loop.jobs[state.index] = state.entry()
        for rank, address in enumerate(spec.addresses):
            if address is not None:
                state.endpoints[rank] = udp.endpoint(*address)
        self._rebuild_senders()

    def set_address(self, job_id: int, rank: int, address: Address, mac: int = 0) -> None:
        """v1: set a rank's address once it is known. Raises ConfigError if it belongs to another rank, KeyError for an
        unknown job."""

        def install() -> None:
            state = self._jobs[job_id]
            self._check_address(state.spec, rank, address)
            state.endpoints[rank] = udp.endpoint(*address)
            self._rebuild_senders()

        self._in_loop(install)

    def stop_job(self, job_id: int) -> None:
        def remove() -> None:
            state = self._jobs.pop(job_id, None)
            if state is not None:
                self._loop.jobs[state.index]["protocol"] = 0
                self._rebuild_senders()
                state.close()

        self._in_loop(remove)

    def address_for(self, sender: Address) -> Address:
        return self.address

    def segment(self, job_id: int, part: int = 0) -> str:
        return self._jobs[job_id].segment_name

    def counters(self, job_id: int) -> JobCounters:
        """Counters of a job. Raises KeyError for an unknown job."""
        return self._jobs[job_id].count()

    def refused(self) -> dict[str, int]:
        return {"refused_address": int(self._loop.totals[0])}

    def _check_address(self, spec: JobSpec, rank: int, address: Address) -> None:
        value = udp.endpoint(*address)
        for job in self._jobs.values():
            for other, known in enumerate(job.endpoints):
                same = int(known) == value or (
                    min(job.spec.protocol, spec.protocol) == 1 and int(known) >> 16 == value >> 16
                )
                if known and same and (job.spec.job_id, other) != (spec.job_id, rank):
                    raise ConfigError(
                        f"address {address[0]}:{address[1]} of rank {rank} belongs to rank {other} of job "
                        f"{job.spec.job_id}"
                    )

    def _rebuild_senders(self) -> None:
        shared = [job.index for job in self._jobs.values() if job.segment is not None]
        self._loop.rings[0] = len(shared)
        self._loop.rings[1 : 1 + len(shared)] = shared
        self._loop.authenticated[0] = any(job.spec.key for job in self._jobs.values())
        fill_senders(
            self._loop.senders,
            [
                (key, job.index << 16 | rank)
                for job in self._jobs.values()
                for rank, key in enumerate(job.endpoints.tolist())
                if key
            ],
        )
