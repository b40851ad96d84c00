"""A switch with slots shared by all jobs, and the aggregator behind it (docs/protocol.md, section 14). Both apply the
compiled rules of switchml/protocol/best_effort.py.
"""

from collections.abc import Callable, Sequence

import numpy as np

from emulator.networks.netsim.link import Environment
from emulator.networks.netsim.packets import Packet, Train
from switchml.protocol import packet as wire_format
from switchml.protocol.best_effort import (
    PARTIAL_BYTES,
    TRAILER_BYTES,
    first_rank,
    new_shared,
    receive_partial,
    release,
    take,
)
from switchml.protocol.pool import Pool
from switchml.protocol.pool_state import MULTICAST, UNICAST, WAITING
from switchml.protocol.pool_v2 import result_of
from switchml.runtime.memory import u8_at


def _trailer(ranks: Sequence[int]) -> np.ndarray:
    bits = np.zeros(8 * TRAILER_BYTES, np.uint8)
    bits[list(ranks)] = 1
    return np.packbits(bits, bitorder="little")


class Front:
    """The switch, with `slots` slots. `down(packet)` sends to a host, `up(packet)` to the aggregator behind."""

    def __init__(self, env: Environment, slots: int, down: Callable[[Packet], object], up: Callable[[Packet], object]):
        self._env, self._down, self._up = env, down, up
        self._jobs: dict[int, tuple[Pool, Sequence[int]]] = {}
        self._partial = np.zeros(PARTIAL_BYTES, np.uint8)
        self.shared = new_shared(slots)

    def add(self, job: int, pool: Pool, hosts: Sequence[int]) -> None:
        """Add a job whose rank r is at hosts[r], before anything arrives for it."""
        self._jobs[job] = pool, hosts

    def receive(self, item: Packet | Train) -> None:
        """Handle contributions of ranks."""
        for packet in item.packets if isinstance(item, Train) else (item,):
            pool, _ = self._jobs[packet.job]
            size, passed = take(
                self.shared, pool.job[0], packet.rank, packet.address, packet.length, self._env.now, self._partial
            )
            if size:  # possibly another job's, which the aggregator behind detects by its tag
                self._up(Packet(self._partial[:size], packet.job, packet.rank))
            if passed:
                self._up(Packet(np.concatenate([packet.data, _trailer([packet.rank])]), packet.job, packet.rank))

    def receive_result(self, packet: Packet) -> None:
        """Handle a result or a wait packet from behind."""
        _, hosts = self._jobs[packet.job]
        data, trailer = packet.data[:-TRAILER_BYTES], packet.data[-TRAILER_BYTES:-2]
        if data[0] >> 4 != wire_format.WAIT:
            job_tag, seq = (int.from_bytes(data[at].tobytes(), "big") for at in (slice(6, 8), slice(2, 6)))
            release(self.shared, job_tag, seq)
        for rank in np.flatnonzero(np.unpackbits(trailer, bitorder="little")).tolist():
            self._down(Packet(u8_at(packet.address, _length_for(data, rank)), packet.job, rank, hosts[rank]))


def _length_for(data: np.ndarray, rank: int) -> int:
    return len(wire_format.for_rank(data.tobytes(), rank))


class Behind:
    """The aggregator behind the switch; `down(packet)` sends to the switch."""

    def __init__(self, down: Callable[[Packet], object]):
        self._down = down
        self._jobs: dict[int, tuple[int, Pool]] = {}
        self._reply = np.zeros(wire_format.MAX_SPARSE_BYTES, np.uint8)

    def add(self, job: int, pool: Pool) -> None:
        """Add a job, before anything arrives for it."""
        self._jobs[int(pool.job[0]["job_tag"])] = job, pool

    def receive(self, packet: Packet) -> None:
        """Handle a sum of the switch, or a packet that it forwarded."""
        job, pool = self._jobs[int.from_bytes(packet.data[6:8].tobytes(), "big")]
        action, row = receive_partial(pool.state, self._reply, packet.address, packet.length)
        if action not in (MULTICAST, UNICAST, WAITING):
            return
        ranks: Sequence[int] = range(int(pool.job[0]["workers"]))
        data = self._reply[: wire_format.HEADER_BYTES + wire_format.BITMAP_BYTES]
        if action != WAITING:
            data = u8_at(*result_of(pool.state, row))
        if action != MULTICAST:
            ranks = [first_rank(packet.address + packet.length - TRAILER_BYTES)]
        if action == UNICAST:
            data = self._reply[: _length_for(data, ranks[0])]
        self._down(Packet(np.concatenate([data, _trailer(ranks)]), job, ranks[0]))
