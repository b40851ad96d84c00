"""Aggregating switches (docs/protocol.md, section 9): one for all ranks, or a tree of two levels. In a tree, a rack's
switch sums its own ranks and sends one partial sum up; the switch above sums those, and its result comes down the same
path. All apply the aggregator's own rule (switchml/protocol/pool.py), the one above with racks in the place of ranks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from emulator.networks.netsim.packets import AGGREGATOR, Packet, Train, coupled
from switchml.protocol import packet as wire_format
from switchml.protocol.lanes import combine
from switchml.protocol.packet import (
    ADDRESSED,
    ADDRESSED_BYTES,
    BITMAP_BYTES,
    FLAG_MIXED,
    FLAG_OVERFLOW,
    HEADER_BYTES,
    R_FLAG,
    SPARSE,
)
from switchml.protocol.pool import Pool
from switchml.protocol.pool_state import CONSUME, MULTICAST, UNICAST, WAITING
from switchml.protocol.pool_v2 import receive_v2, result_of
from switchml.runtime.memory import u8_at

PARTIAL = 0x04
"""Flag in the size code of a dense partial sum."""
TAIL_BYTES = 2
"""Bytes after the payload of a dense partial sum: its flags, and 0."""
PARTIAL_WORDS, FLAGS_SHIFT, COLUMNS = 0x80, 4, 0x0F
"""Byte 1 of any other partial sum: marker bit, shift of the flags, and mask of the columns."""


def rack_address(rack: int) -> int:
    """The value of `Packet.to` for a rack's switch."""
    return AGGREGATOR - 1 - rack


@dataclass
class JobSlots:
    """One job at one switch. `children[i]`: the pool's rank i: the job ranks behind it, and its destination (a host, or
    a rack's address). `train_packets`: maximum number of results in one train."""

    pool: Pool
    children: tuple[tuple[tuple[int, ...], int], ...]
    train_packets: int = 1
    results: dict[int, int] = field(default_factory=dict)
    """Row → seq of the result from above stored in it."""

    def __post_init__(self) -> None:
        self.index = {rank: i for i, (ranks, _) in enumerate(self.children) for rank in ranks}

    def is_switch(self, child: int) -> bool:
        """Whether a child is a switch, which sends only partial sums."""
        return self.children[child][1] < AGGREGATOR

    def result(self, row: int) -> np.ndarray:
        """uint8: a view of the result packet in a row."""
        return u8_at(*result_of(self.pool.state, row))

    def to_child(self, packet: Packet, child: int, data: np.ndarray) -> Packet:
        """A reply to `packet` for one child: a result, without data that are not for the ranks behind it, or a wait
        packet."""
        ranks, to = self.children[child]
        if is_addressed(data) and not _is_for(data, data[HEADER_BYTES + 1] in ranks):
            data = _without_data(data) if self.is_switch(child) else data[:ADDRESSED_BYTES]
        return Packet(data, packet.job, ranks[0], to)

    def to_all(self, packet: Packet, data: np.ndarray) -> list[tuple[int, Packet]]:
        """A reply to `packet` for each child, as (child, packet)."""
        return [(child, self.to_child(packet, child, data)) for child in range(len(self.children))]


def is_addressed(data: np.ndarray) -> bool:
    """Whether these are the bytes of an addressed packet."""
    first, second = data[:2].tolist()
    return bool(first & SPARSE) and second & COLUMNS == ADDRESSED and first >> 4 != wire_format.WAIT


def _is_for(data: np.ndarray, is_root: bool) -> bool:
    """Whether the data of an addressed packet are for the ranks behind a receiver. `is_root`: whether the root is among
    them."""
    reach: int = data.item(HEADER_BYTES)
    return reach == wire_format.REACH_ALL or (reach == wire_format.REACH_ROOT) == is_root


def _without_data(data: np.ndarray) -> np.ndarray:
    cut = data[:ADDRESSED_BYTES].copy()
    cut[0] = cut[0] & 0xF8 | SPARSE
    return cut


class Aggregator:
    """The aggregation rules of one switch. `down(packet or train)` sends towards the ranks, `up(packet)` to the switch
    above (None: there is none)."""

    def __init__(self, down: Callable[[Packet | Train], object], up: Callable[[Packet], object] | None = None):
        self._down, self._up = down, up
        self._jobs: dict[int, JobSlots] = {}
        self._reply = np.zeros(wire_format.MAX_SPARSE_BYTES, np.uint8)

    def add(self, job: int, job_slots: JobSlots) -> None:
        """Add a job, before anything arrives for it."""
        self._jobs[job] = job_slots

    def receive(self, item: Packet | Train) -> None:
        """Handle contributions of ranks, or a partial sum, from below. Replies are sent child by child, as by the
        software aggregator."""
        if not isinstance(item, Train):
            for _, answer in self._answers(self._jobs[item.job], item):
                self._down(answer)
            return
        job_slots = self._jobs[item.packets[0].job]
        by_child: dict[int, list[Packet]] = defaultdict(list)
        for packet in item.packets:
            for child, answer in self._answers(job_slots, packet):
                by_child[child].append(answer)
        for child in sorted(by_child):
            for coupling in coupled(by_child[child], job_slots.train_packets, item.framing_bytes):
                self._down(coupling)

    def _answers(self, job_slots: JobSlots, packet: Packet) -> list[tuple[int, Packet]]:
        pool, child, flags = job_slots.pool, job_slots.index[packet.rank], 0
        if job_slots.is_switch(child):
            contribution = _contribution(packet, int(pool.job[0]["payload"]))
            if contribution is None:
                return []
            packet, flags = contribution
        action, row = receive_v2(pool.state, self._reply, child, packet.address, packet.length)
        if flags and action in (CONSUME, MULTICAST):
            self._add_flags(job_slots, row, flags)
        if action == WAITING:
            return [(child, job_slots.to_child(packet, child, self._wait(job_slots)))]
        if self._up is not None and action == MULTICAST:
            self._send_up(job_slots, packet, row, is_retransmission=False)
        elif self._up is not None and action == UNICAST and job_slots.results.get(row) != int(pool.slots[row]["seq"]):
            if packet.data[0] & R_FLAG:
                self._send_up(job_slots, packet, row, is_retransmission=True)
        elif action == MULTICAST:
            return job_slots.to_all(packet, job_slots.result(row))
        elif action == UNICAST:
            _, length = result_of(pool.state, row)
            return [(child, job_slots.to_child(packet, child, self._reply[:length]))]
        return []

    def _add_flags(self, job_slots: JobSlots, row: int, flags: int) -> None:
        """Add a partial sum's flags to the slot, and to its result, if there is one already."""
        job_slots.pool.slots[row]["flags"] |= flags & (FLAG_OVERFLOW | FLAG_MIXED)
        job_slots.result(row)[HEADER_BYTES - 1] = job_slots.pool.slots[row]["flags"]

    def _wait(self, job_slots: JobSlots) -> np.ndarray:
        """The wait packet in the reply buffer, with missing children expanded to their ranks."""
        packet = self._reply[: HEADER_BYTES + BITMAP_BYTES]
        missing = np.flatnonzero(np.unpackbits(packet[HEADER_BYTES:], bitorder="little"))
        bits = np.zeros(8 * BITMAP_BYTES, np.uint8)
        bits[[rank for child in missing for rank in job_slots.children[child][0]]] = 1
        packet[HEADER_BYTES:] = np.packbits(bits, bitorder="little")
        return packet

    # With a switch above

    def _send_up(self, job_slots: JobSlots, packet: Packet, row: int, *, is_retransmission: bool) -> None:
        """Send the partial sum in a row to the switch above, as a contribution."""
        assert self._up is not None
        slot, result = job_slots.pool.slots[row], job_slots.result(row)
        flags = int(slot["flags"]) & (FLAG_OVERFLOW | FLAG_MIXED)
        if not result[0] & SPARSE:
            partial = np.concatenate([result, np.array([flags, 0], np.uint8)])
            partial[0] |= PARTIAL
        else:
            is_cut = is_addressed(result) and not _is_for(result, result[HEADER_BYTES + 1] not in job_slots.index)
            partial = _without_data(result) if is_cut else result.copy()
            partial[1] |= PARTIAL_WORDS | flags << FLAGS_SHIFT
        kind = wire_format.CONTRIBUTION + (int(slot["form"]) & 3)
        partial[0] = kind << 4 | (R_FLAG if is_retransmission else 0) | partial[0] & 7
        partial[HEADER_BYTES - 1] = int(slot["used"]) & 0xFF
        first_rank = job_slots.children[0][0][0]
        self._up(Packet(partial, packet.job, first_rank))

    def receive_result(self, packet: Packet) -> None:
        """Handle a result or a wait packet from above."""
        job_slots = self._jobs[packet.job]
        pool, data = job_slots.pool, packet.data
        seq = int.from_bytes(data[2:6].tobytes(), "big")
        row = seq & (len(pool.slots) - 1)
        slot = pool.slots[row]
        is_whole = slot["count"] == len(job_slots.children)
        is_open = is_whole and int(slot["seq"]) == seq and job_slots.results.get(row) != seq
        if not is_open or not pool.seen[row].any():
            return
        if data[0] >> 4 != wire_format.WAIT:
            data = self._keep(job_slots, row, packet)
            job_slots.results[row] = seq
        for _, answer in job_slots.to_all(packet, data):
            self._down(answer)

    def _keep(self, job_slots: JobSlots, row: int, packet: Packet) -> np.ndarray:
        """Store a result from above in its row; returns the row's content. Data of the row that were not sent up are
        kept, and the result's data are combined with them."""
        slot, data, own = job_slots.pool.slots[row], packet.data, job_slots.result(row)
        payload, mixed = int(job_slots.pool.job[0]["payload"]), data.item(HEADER_BYTES - 1) & FLAG_MIXED
        begin = packet.length - (payload if packet.length > payload else 0)  # offset of the data
        if (data[0] & SPARSE, data[1]) != (own[0] & SPARSE, own[1]) and own[0] & SPARSE | data[0] & SPARSE:
            own[HEADER_BYTES - 1] |= FLAG_MIXED  # the ranks' calls differ; the flag is all that they need
            return own
        keeps = (
            is_addressed(data)
            and data[HEADER_BYTES] != wire_format.REACH_ALL
            and data[HEADER_BYTES + 1] in job_slots.index
            and slot["data"]
            and not mixed
        )
        slot["data"] = payload if keeps or packet.length > begin else 0
        result = job_slots.result(row)
        result[:begin] = data[:begin]
        result[0] = data.item(0) & (0xF0 | SPARSE)
        if slot["data"]:
            result[0] |= wire_format.SIZE_CODE_OF[payload]
        if not keeps:
            result[begin:] = data[begin:]
        elif packet.length > begin:
            op, wire = data.item(HEADER_BYTES + 2), int(slot["form"]) & 3
            if combine(op, wire, result.ctypes.data + begin, packet.address + begin, payload):
                result[HEADER_BYTES - 1] |= FLAG_OVERFLOW
        return result


def _contribution(packet: Packet, payload: int) -> tuple[Packet, int] | None:
    """Convert a partial sum to a contribution and its flags; None if it is not a partial sum."""
    data, flags = packet.data.copy(), 0
    if not data[0] & PARTIAL:
        return None
    if packet.length == HEADER_BYTES + payload + TAIL_BYTES:
        flags, data = data.item(-TAIL_BYTES), data[:-TAIL_BYTES]
        data[0] &= ~PARTIAL & 0xFF
    elif data[1] & PARTIAL_WORDS:
        flags = data.item(1) >> FLAGS_SHIFT & (FLAG_OVERFLOW | FLAG_MIXED)
        data[1] &= COLUMNS
    else:
        return None
    return Packet(data, packet.job, packet.rank), flags


def slots_at(ranks: Sequence[int], hosts: Sequence[int], train_packets: int, pool: partial[Pool]) -> JobSlots:
    """Slots of one job at the switch that the hosts of `ranks` are connected to. `pool`: constructor of its Pool,
    without the workers."""
    children = tuple(((rank,), hosts[rank]) for rank in ranks)
    return JobSlots(pool(workers=len(ranks)), children, train_packets)


def slots_in_tree(
    ranks_of_rack: Sequence[Sequence[int]],
    racks: Sequence[int],
    hosts: Sequence[int],
    train_packets: int,
    pool: partial[Pool],
) -> tuple[list[JobSlots], JobSlots]:
    """Slots of one job in a tree: at each of `racks`, whose ranks are `ranks_of_rack`, and at the switch above."""
    children = tuple((tuple(ranks), rack_address(rack)) for rack, ranks in zip(racks, ranks_of_rack, strict=True))
    below = [slots_at(ranks, hosts, train_packets, pool) for ranks in ranks_of_rack]
    return below, JobSlots(pool(workers=len(racks)), children)
