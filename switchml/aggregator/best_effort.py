"""A data plane of two tiers (docs/protocol.md, section 14): a software switch with few slots shared by all jobs, and
behind it a software aggregator that completes every round. To ranks it is one aggregator, and any agent of protocol v2
can use it.
"""

import os

import numpy as np

from switchml.aggregator import tiers
from switchml.aggregator.job_state import JobState
from switchml.aggregator.loop import MAX_JOBS
from switchml.aggregator.loop_thread import LoopThread
from switchml.aggregator.senders import MAX_SENDERS, fill_senders
from switchml.aggregator.software import SOCKET_BUFFER_BYTES, SoftwareTraits
from switchml.control.allocation import DATAGRAM_MEMORY_BYTES
from switchml.control.dataplane import Address, JobCounters, JobSpec
from switchml.counters import COUNTERS
from switchml.errors import ConfigError
from switchml.net import impair, sockets, udp
from switchml.net.ports import data_port
from switchml.protocol import best_effort
from switchml.protocol import packet as wire_format
from switchml.protocol.pool_state import JOB
from switchml.runtime.jit import compile_once
from switchml.runtime.memory import u8_at

_LOOPBACK = "127.0.0.1"
"""Address of the aggregator behind the switch, unreachable from other machines."""
_BY_FRONT = ("received_packets", "received_bytes", "sent_packets", "sent_bytes")
"""Counters of packets from and to ranks; other counters are those of the aggregator behind the switch."""


class BestEffortDataplane(SoftwareTraits):
    """The switch on a UDP socket of `bind`:`port` (0: any free port) with `shared_slots`, a power of two, for all jobs,
    and the aggregator behind it, on a free port of the loopback address.

    `slot_capacity`: total slots that jobs may have at the aggregator behind the switch. The three rates are
    SoftwareDataplane's and apply to every packet that the switch receives or sends, including those between the tiers.
    Raises ConfigError if the address can't be bound, a rate is not a probability, or `shared_slots` is not a power of
    two.
    """

    transports: tuple[str, ...] = "udp", "zmq"
    authenticates = halves = ends_early = False
    buffer_a_rank = True
    """Each rank may have as many rounds in flight as there are shared slots: more would never find a free one."""

    def __init__(
        self,
        bind: str = "127.0.0.1",
        port: int = wire_format.UDP_PORT,
        *,
        shared_slots: int,
        slot_capacity: int = 65536,
        loss_rate: float = 0.0,
        reorder_rate: float = 0.0,
        duplicate_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.slot_capacity = slot_capacity
        uplink = impair.new_impairment(loss_rate, reorder_rate, duplicate_rate, 2 * seed + 1)
        downlink = impair.new_impairment(loss_rate, reorder_rate, duplicate_rate, 2 * seed + 2)
        best_effort.new_shared(shared_slots)  # raises an error before a socket is open
        self._sockets = [data_port(bind, port)]
        self.address: Address = self._sockets[0].getsockname()
        try:
            self._sockets.append(data_port(_LOOPBACK, 0))
        except ConfigError:
            self._sockets[0].close()
            raise
        buffers = [sockets.grow_buffers(sock, SOCKET_BUFFER_BYTES) for sock in self._sockets]
        self.receive_buffer_bytes = min(*buffers, shared_slots * DATAGRAM_MEMORY_BYTES)
        self._front_thread = LoopThread(lambda: tiers.serve_front(self._front), "switchml-front")
        self._behind_thread = LoopThread(lambda: tiers.serve_behind(self._behind), "switchml-behind")
        front, behind = (
            udp.endpoint(_LOOPBACK if bind == "0.0.0.0" else bind, self.address[1]),
            udp.endpoint(*self._sockets[1].getsockname()),
        )
        self._front = tiers.new_front(self._sockets[0], self._front_thread.wake, shared_slots, behind, uplink, downlink)
        self._behind = tiers.new_behind(self._sockets[1], self._behind_thread.wake, front)
        self._jobs: dict[int, JobState] = {}
        """Accessed by the front thread only."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Addresses to which ranks may send packets."""
        return (self.address,)

    # -- lifecycle --

    def start(self) -> "BestEffortDataplane":
        compile_once(tiers.serve_front, self._front)
        compile_once(tiers.serve_behind, self._behind)
        self._behind_thread.start()
        self._front_thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and close the sockets. May be called twice."""
        for thread, sock in zip((self._front_thread, self._behind_thread), self._sockets, strict=True):
            if thread.stop():
                sock.close()
                os.close(thread.wake)

    # -- without sockets, threads and a clock (emulator/networks/faults) --

    @property
    def behind(self) -> int:
        """The endpoint (udp.endpoint) of the aggregator behind the switch."""
        return int(self._front.behind[0])

    def handle(self, sender: int, address: int, length: int, now_ns: int) -> list[tuple[int, bytes]]:
        """Process one datagram of endpoint `sender` at the switch; returns the resulting packets as (endpoint, bytes),
        including those for `behind`. For a data plane that was not started."""
        front = self._front
        count = tiers.apply_front(front, np.uint64(sender), address, length, now_ns)
        return [(int(front.outgoing.endpoint[k]), data) for k, data in enumerate(_listed(front.outgoing, count))]

    def handle_behind(self, address: int, length: int) -> list[bytes]:
        """Process one datagram of the switch at the aggregator behind it; returns the reply, if there is one."""
        behind = self._behind
        return _listed(behind.outgoing, tiers.apply_behind(behind, 0, behind.front[0], address, length))

    # -- Dataplane --

    def start_job(self, spec: JobSpec) -> None:
        """Start a job. Raises ConfigError if an address belongs to another job, there are too many jobs or workers, or
        the job uses protocol v1."""
        if spec.protocol != 2:
            raise ConfigError("protocol v1 has no best-effort slots: its ranks need an aggregator of their own")
        state = JobState(spec, shared=False)
        self._front_thread.run(lambda: self._install(state))

    def _install(self, state: JobState) -> None:
        spec = state.spec
        if self._front_thread.stopping:
            raise ConfigError(f"job {spec.job_id} can't start: the aggregator is stopping")
        if spec.job_id in self._jobs:
            raise ConfigError(f"job {spec.job_id} is running already")
        if any(job.spec.job_tag == spec.job_tag for job in self._jobs.values()):
            raise ConfigError(f"job {spec.job_id} has the tag of another job")
        front = self._front
        free = np.flatnonzero(front.jobs["job_tag"] == 0)
        if not len(free) or sum(job.spec.workers for job in self._jobs.values()) + spec.workers > MAX_SENDERS:
            raise ConfigError(f"no more jobs can start: at most {MAX_JOBS} jobs and {MAX_SENDERS} workers at once")
        known = {
            int(key): (job.spec.job_id, rank) for job in self._jobs.values() for rank, key in enumerate(job.endpoints)
        }
        for rank, address in enumerate(spec.addresses):
            assert address is not None  # None only in protocol v1
            key = udp.endpoint(*address)
            if key in known:
                job, other = known[key]
                raise ConfigError(
                    f"address {address[0]}:{address[1]} of rank {rank} belongs to rank {other} of job {job}"
                )
            state.endpoints[rank] = key
            known[key] = spec.job_id, rank
        state.index = int(free[0])
        self._jobs[spec.job_id] = state
        self._behind_thread.run(lambda: self._install_behind(state))
        front.jobs[state.index] = state.pool.job[0]
        front.endpoints[state.index, : spec.workers] = state.endpoints
        front.counters[state.index] = 0
        front.job_of_tag[spec.job_tag] = state.index
        self._rebuild_senders()

    def _install_behind(self, state: JobState) -> None:
        self._behind.jobs[state.index] = state.entry()
        self._behind.job_of_tag[state.spec.job_tag] = state.index

    def stop_job(self, job_id: int) -> None:
        def remove() -> None:
            state = self._jobs.pop(job_id, None)
            if state is None:
                return
            job_tag = state.spec.job_tag
            self._front.job_of_tag[job_tag] = -1
            self._front.jobs[state.index] = np.zeros((), JOB)
            best_effort.release_job(self._front.shared, job_tag)
            self._rebuild_senders()

            def remove_behind() -> None:
                self._behind.job_of_tag[job_tag] = -1
                self._behind.jobs[state.index]["protocol"] = 0

            self._behind_thread.run(remove_behind)

        self._front_thread.run(remove)

    def set_address(self, job_id: int, rank: int, address: Address, mac: int = 0) -> None:
        """Only protocol v1 has addresses that become known later, and it is not supported here."""
        raise KeyError(job_id)

    def address_for(self, sender: Address) -> Address:
        return self.address

    def segment(self, job_id: int, part: int = 0) -> str:
        """No shared memory: returns ""."""
        return ""

    def counters(self, job_id: int) -> JobCounters:
        """Counters of a job. Raises KeyError for an unknown job."""
        state = self._jobs[job_id]
        counted = state.count()
        front = self._front.counters[state.index, : state.spec.workers]
        ranks = []
        for rank, own in zip(counted.ranks, front, strict=True):
            seen = dict(zip(COUNTERS, own.tolist(), strict=True))
            refused = {name: rank[name] + seen[name] for name in ("refused_tag", "refused_format")}
            ranks.append(rank | refused | {name: seen[name] for name in _BY_FRONT})
        return JobCounters(tuple(ranks), counted.slots_in_use, counted.missing)

    def refused(self) -> dict[str, int]:
        return {"refused_address": int(self._front.totals[0])}

    def shared_counts(self) -> dict[str, int]:
        """Numbers of packets received by the switch, by outcome, with the names of `best_effort.COUNTS`."""
        return dict(zip(best_effort.COUNTS, self._front.shared.counts.tolist(), strict=True))

    def shared_in_use(self) -> int:
        """Number of slots of the switch with an open round."""
        return int(np.count_nonzero(self._front.shared.slots["key"]))

    def _rebuild_senders(self) -> None:
        fill_senders(
            self._front.senders,
            [
                (key, job.index << 16 | rank)
                for job in self._jobs.values()
                for rank, key in enumerate(job.endpoints.tolist())
            ],
        )


def _listed(packets: udp.Packets, count: int) -> list[bytes]:
    return [u8_at(packets.address[k], int(packets.length[k])).tobytes() for k in range(count)]
