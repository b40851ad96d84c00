"""Switches that add up (docs/protocol.md, section 9): one for all ranks, or a tree of two levels. There a rack's switch
adds up its own ranks and sends one partial sum up; the switch above adds those, and its result comes down the same
path. All apply the aggregator's own rule (switchml/protocol/pool.py), the one above with racks in the place of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from emulator.netsim.packets import AGGREGATOR, Packet, Train, coupled
from switchml.protocol import packet as wire_format
from switchml.protocol.packet import BITMAP_BYTES, FLAG_MIXED, FLAG_OVERFLOW, HEADER_BYTES, R_FLAG
from switchml.protocol.pool import Pool
from switchml.protocol.pool_state import CONSUME, MULTICAST, UNICAST, WAITING
from switchml.protocol.pool_v2 import receive_v2, result_of, size_for
from switchml.runtime.memory import u8_at

PARTIAL = 0x04
"""In the size code of a partial sum."""
TAIL_BYTES = 2
"""After its payload: the flags that it has below, and 0."""


def rack_address(rack: int) -> int:
    """The value of `Packet.to` for a rack's switch."""
    return AGGREGATOR - 1 - rack


@dataclass
class Seat:
    """One job at one switch. `children[i]`: what the pool's rank i is: job ranks behind it, and where they are reached
    (a host, or a rack's address). `train_packets`: how many results may travel as one train."""

    pool: Pool
    children: tuple[tuple[tuple[int, ...], int], ...]
    train_packets: int = 1
    results: dict[int, int] = field(default_factory=dict)
    """Row → seq of the result from above that it contains."""

    def __post_init__(self) -> None:
        self.index = {rank: i for i, (ranks, _) in enumerate(self.children) for rank in ranks}

    def result(self, row: int) -> np.ndarray:
        """uint8: the result packet in a row, itself."""
        return u8_at(*result_of(self.pool.state, row))

    def to_child(self, packet: Packet, child: int, data: np.ndarray) -> Packet:
        """An answer to `packet` for one child."""
        ranks, to = self.children[child]
        return Packet(data, packet.job, ranks[0], to)

    def to_all(self, packet: Packet, data: np.ndarray) -> list[tuple[int, Packet]]:
        """An answer to `packet` for each child, by child."""
        return [(child, Packet(data, packet.job, ranks[0], to)) for child, (ranks, to) in enumerate(self.children)]


class Aggregator:
    """`down(packet or train)` sends towards the ranks, `up(packet)` to the switch above (None: there is none)."""

    def __init__(self, down: Callable[[Packet | Train], object], up: Callable[[Packet], object] | None = None):
        self._down, self._up = down, up
        self._seats: dict[int, Seat] = {}
        self._reply = np.zeros(wire_format.MAX_SPARSE_BYTES, np.uint8)

    def add(self, job: int, seat: Seat) -> None:
        """Add a job, before anything arrives for it."""
        self._seats[job] = seat

    def receive(self, item: Packet | Train) -> None:
        """Contributions of ranks, or a partial sum, from below. The answers leave child by child, as the software
        aggregator sends them."""
        if not isinstance(item, Train):
            for _, answer in self._answers(self._seats[item.job], item):
                self._down(answer)
            return
        seat = self._seats[item.packets[0].job]
        by_child: dict[int, list[Packet]] = defaultdict(list)
        for packet in item.packets:
            for child, answer in self._answers(seat, packet):
                by_child[child].append(answer)
        for child in sorted(by_child):
            for coupling in coupled(by_child[child], seat.train_packets, item.framing_bytes):
                self._down(coupling)

    def _answers(self, seat: Seat, packet: Packet) -> list[tuple[int, Packet]]:
        pool, child, flags = seat.pool, seat.index[packet.rank], 0
        if seat.children[child][1] < AGGREGATOR:  # a switch below sends partial sums and nothing else
            if not packet.data.item(0) & PARTIAL:
                return []
            flags = int(packet.data[-TAIL_BYTES])
            packet = Packet(packet.data[:-TAIL_BYTES], packet.job, packet.rank)
            packet.data[0] &= ~PARTIAL & 0xFF
        action, row = receive_v2(pool.state, self._reply, child, packet.address, packet.length)
        if flags and action in (CONSUME, MULTICAST):
            self._add_flags(seat, row, flags)
        if action == WAITING:
            return [(child, seat.to_child(packet, child, self._wait(seat)))]
        if self._up is not None and action == MULTICAST:
            self._send_up(seat, packet, row, is_retransmission=False)
        elif self._up is not None and action == UNICAST and seat.results.get(row) != int(pool.slots[row]["seq"]):
            if packet.data[0] & R_FLAG:
                self._send_up(seat, packet, row, is_retransmission=True)
        elif action == MULTICAST:
            result = seat.result(row)
            return [
                (child, seat.to_child(packet, child, result[: size_for(pool.state, row, child)]))
                for child in range(len(seat.children))
            ]
        elif action == UNICAST:
            _, length = result_of(pool.state, row)
            return [(child, seat.to_child(packet, child, self._reply[:length]))]
        return []

    def _add_flags(self, seat: Seat, row: int, flags: int) -> None:
        """Add a partial sum's flags to the slot, and to its result, if there is one already."""
        seat.pool.slots[row]["flags"] |= flags & (FLAG_OVERFLOW | FLAG_MIXED)
        seat.result(row)[HEADER_BYTES - 1] = seat.pool.slots[row]["flags"]

    def _wait(self, seat: Seat) -> np.ndarray:
        """The wait packet in the reply, its missing children as their ranks."""
        packet = self._reply[: HEADER_BYTES + BITMAP_BYTES]
        missing = np.flatnonzero(np.unpackbits(packet[HEADER_BYTES:], bitorder="little"))
        bits = np.zeros(8 * BITMAP_BYTES, np.uint8)
        bits[[rank for child in missing for rank in seat.children[child][0]]] = 1
        packet[HEADER_BYTES:] = np.packbits(bits, bitorder="little")
        return packet

    # With a switch above

    def _send_up(self, seat: Seat, packet: Packet, row: int, *, is_retransmission: bool) -> None:
        """Send the partial sum in a row to the switch above, as a contribution."""
        assert self._up is not None
        slot = seat.pool.slots[row]
        partial = np.concatenate([seat.result(row), np.array([slot["flags"], 0], np.uint8)])
        size = wire_format.SIZE_CODE_OF[int(seat.pool.job[0]["payload"])] | PARTIAL
        wire = int(slot["form"]) & 3
        partial[0] = (wire_format.CONTRIBUTION + wire) << 4 | (R_FLAG if is_retransmission else 0) | size
        partial[HEADER_BYTES - 1] = int(slot["used"]) & 0xFF
        first_rank = seat.children[0][0][0]
        self._up(Packet(partial, packet.job, first_rank))

    def receive_result(self, packet: Packet) -> None:
        """A result or a wait packet from above."""
        seat = self._seats[packet.job]
        pool, data = seat.pool, packet.data
        seq = int.from_bytes(data[2:6].tobytes(), "big")
        row = seq & (len(pool.slots) - 1)
        slot = pool.slots[row]
        is_open = int(slot["seq"]) == seq and slot["count"] == len(seat.children) and seat.results.get(row) != seq
        if not is_open or not pool.seen[row].any():
            return
        if data[0] >> 4 != wire_format.WAIT:
            result = seat.result(row)
            result[:] = data
            result[0] &= ~R_FLAG & 0xFF
            seat.results[row] = seq
            data = result
        for _, answer in seat.to_all(packet, data):
            self._down(answer)


def seat(ranks: Sequence[int], hosts: Sequence[int], train_packets: int, **pool) -> Seat:
    """One job at the switch that the hosts of `ranks` are connected to. `pool`: options of its Pool."""
    children = tuple(((rank,), hosts[rank]) for rank in ranks)
    return Seat(Pool(workers=len(ranks), **pool), children, train_packets)


def seats(
    ranks_of_rack: Sequence[Sequence[int]], racks: Sequence[int], hosts: Sequence[int], train_packets: int, **pool
) -> tuple[list[Seat], Seat]:
    """One job in a tree: the seat at each of `racks`, whose ranks are `ranks_of_rack`, and the one above them."""
    children = tuple((tuple(ranks), rack_address(rack)) for rack, ranks in zip(racks, ranks_of_rack, strict=True))
    below = [seat(ranks, hosts, train_packets, **pool) for ranks in ranks_of_rack]
    return below, Seat(Pool(workers=len(racks), **pool), children)
