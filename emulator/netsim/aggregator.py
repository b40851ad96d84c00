"""The aggregation switch: the aggregator's rules (switchml/protocol/pool.py) in virtual time, a pool of slots for each
job."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.netsim.packets import Packet, Train, coupled
from switchml.protocol import packet as wire_format
from switchml.protocol.packet import BITMAP_BYTES, HEADER_BYTES
from switchml.protocol.pool import Pool
from switchml.protocol.pool_state import MULTICAST, UNICAST, WAITING
from switchml.protocol.pool_v2 import receive_v2, result_of
from switchml.runtime.memory import u8_at


class Aggregator:
    """`send(packet or train)` carries it to its host. Jobs are added before anything arrives."""

    def __init__(self, send: Callable[[Packet | Train], object]):
        self._jobs: dict[int, tuple[Pool, tuple[int, ...], int]] = {}
        self._send = send
        self._reply = np.zeros(wire_format.MAX_SPARSE_BYTES, np.uint8)

    def add(self, job: int, pool: Pool, hosts: tuple[int, ...], train_packets: int) -> None:
        """`hosts[rank]`: where results go; `train_packets`: how many of them may travel as one train."""
        self._jobs[job] = (pool, hosts, train_packets)

    def receive(self, item: Packet | Train) -> None:
        """Apply a packet or the packets of a train; the answers leave rank by rank, as the software aggregator sends
        them."""
        if not isinstance(item, Train):
            for answer in self._answers(item):
                self._send(answer)
            return
        _, hosts, most = self._jobs[item.packets[0].job]
        by_rank: dict[int, list[Packet]] = {rank: [] for rank in range(len(hosts))}
        for packet in item.packets:
            for answer in self._answers(packet):
                by_rank[answer.rank].append(answer)
        for answers in by_rank.values():
            for coupling in coupled(answers, most, item.framing_bytes):
                self._send(coupling)

    def _answers(self, packet: Packet) -> list[Packet]:
        pool, hosts, _ = self._jobs[packet.job]
        action, row = receive_v2(pool.state, self._reply, packet.rank, packet.address, packet.length)
        if action == WAITING:
            return [Packet(self._reply[: HEADER_BYTES + BITMAP_BYTES], packet.job, packet.rank, hosts[packet.rank])]
        if action not in (MULTICAST, UNICAST):
            return []
        address, length = result_of(pool.state, row)
        if action == UNICAST:
            return [Packet(self._reply[:length], packet.job, packet.rank, hosts[packet.rank])]
        result = u8_at(address, length)
        return [Packet(result, packet.job, rank, host) for rank, host in enumerate(hosts)]
