"""The aggregation switch: the aggregator's rules (switchml/pool.py) in virtual time, a pool of slots for each job."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.network.packets import Packet
from switchml import packet as wire_format
from switchml.packet import BITMAP_BYTES, HEADER_BYTES
from switchml.pool import MULTICAST, UNICAST, WAITING, Pool, receive_v2


class Aggregator:
    """`send(packet)` carries a packet to the host `hosts[job][rank]`."""

    def __init__(self, send: Callable[[Packet], object]):
        self.pools: dict[int, Pool] = {}
        self.hosts: dict[int, tuple[int, ...]] = {}
        self._send = send
        self._reply = np.zeros(wire_format.MAX_PACKET_BYTES, np.uint8)

    def receive(self, packet: Packet) -> None:
        """Apply one packet."""
        pool = self.pools[packet.job]
        action, row = receive_v2(
            pool.job[0],
            pool.slots,
            pool.seen,
            pool.rows,
            pool.counters,
            self._reply,
            packet.rank,
            packet.address,
            packet.length,
        )
        if action == MULTICAST:
            result = pool.rows[row, -packet.length :]
            for rank in range(len(pool.counters)):
                self._emit(result, packet.job, rank)
        elif action == UNICAST:
            self._emit(self._reply[: packet.length], packet.job, packet.rank)
        elif action == WAITING:
            self._emit(self._reply[: HEADER_BYTES + BITMAP_BYTES], packet.job, packet.rank)

    def _emit(self, data: np.ndarray, job: int, rank: int) -> None:
        self._send(Packet(data, job, rank, self.hosts[job][rank]))
