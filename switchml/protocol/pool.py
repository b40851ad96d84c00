"""The slots of one job at an aggregator: `Pool` (v2) and `PoolV1` own the arrays of pool_state.py, and apply the rules
of pool_v2.py and pool_v1.py to one packet at a time.
"""

from typing import NamedTuple

import numpy as np

from switchml.counters import COUNTERS
from switchml.errors import ConfigError
from switchml.protocol import authentication
from switchml.protocol import packet as wire_format
from switchml.protocol.pool_state import (
    ACTIONS,
    JOB,
    MULTICAST,
    SLOT,
    SLOT_V1,
    UNICAST,
    WAITING,
    State,
    StateV1,
    parts_of,
    result_at,
)
from switchml.protocol.pool_v1 import receive_v1
from switchml.protocol.pool_v2 import gets_result, receive_v2, reset_slots, result_of, size_for
from switchml.runtime.memory import u8_at

_WAIT_SIZE = wire_format.HEADER_BYTES + wire_format.BITMAP_BYTES
_VERDICTS = ("accepted", "answered", "duplicates", "stale", "refused_window", "refused_tag", "refused_format")
"""Counters of which exactly one is incremented by each v2 packet."""


class Outcome(NamedTuple):
    """Outcome of one packet: an action of ACTIONS, the counter that was incremented (v2; "" in v1), the reply to send
    or None. The reply of a multicast is sent to each rank in the form of `packet.for_rank`."""

    action: str
    counter: str
    packet: bytes | None


class Pool:
    """The slots of one v2 job: n `workers` (1-256), `slots` a power of two, `payload_bytes` 256 or 1024, `wire` as in
    packet.py. `large_bytes`: data bytes of a large packet, 0 without large packets. `rows`: rows in shared memory
    (shm.py), else allocated; `with_tags`: reserve room for tags after results; `halves`: sum unconverted half
    precision, if the memory suffices."""

    def __init__(
        self,
        *,
        workers: int,
        slots: int,
        payload_bytes: int = 1024,
        large_bytes: int = 0,
        wire: int = 0,
        job_tag: int = 0,
        isn: int = 0,
        rows: np.ndarray | None = None,
        with_tags: bool = False,
        halves: bool = False,
    ) -> None:
        if not 1 <= workers <= wire_format.V2_MAX_WORKERS:
            raise ConfigError(f"{workers} workers: expected 1 to {wire_format.V2_MAX_WORKERS}")
        wire_format.check_slots(slots)
        if payload_bytes not in wire_format.SIZE_CODE_OF or wire not in wire_format.WIRE_DTYPES:
            raise ConfigError(f"payload of {payload_bytes} bytes, wire {wire}: expected 256 or 1024, and 0 to 2")
        if isn % (2 * slots):
            raise ConfigError(f"initial sequence number {isn}: expected a multiple of {2 * slots}")
        self.job = np.array([(workers, slots, payload_bytes, large_bytes, wire, job_tag, isn, 0)], JOB)
        self.slots = np.zeros(2 * slots, SLOT)
        self.seen = np.zeros((2 * slots, 4), np.uint64)
        most = max(payload_bytes, large_bytes)
        self.rows = self.wide = rows if rows is not None else np.zeros(0, np.uint8)
        if rows is None:
            trailer_bytes = authentication.TAG_BYTES if with_tags else 0
            width = max(wire_format.HEADER_BYTES + payload_bytes, wire_format.MAX_BEFORE_DATA + large_bytes)
            self.rows = authentication.packet_rows(2 * slots, width, trailer_bytes)
            # Sparse packets are longer. Pages that no sparse packet touches are never allocated.
            wide = max(wire_format.MAX_SPARSE_BYTES, wire_format.MAX_BEFORE_DATA + large_bytes)
            self.wide = authentication.packet_rows(2 * slots, wide, trailer_bytes)
        self.counters = np.zeros((workers, len(COUNTERS)), np.int64)
        parts = parts_of(workers, slots, most) if halves else 0
        self.parts = np.zeros((parts, most), np.uint8)
        self.state = State(self.job, self.slots, self.seen, self.rows, self.wide, self.counters, self.parts)
        self._reply = np.zeros(max(wire_format.MAX_SPARSE_BYTES, wire_format.MAX_BEFORE_DATA + large_bytes), np.uint8)
        reset_slots(self.state)

    @property
    def first_result(self) -> int:
        """Address of row 0's result packet; the others follow at intervals of one row."""
        return int(result_at(self.rows, 0, int(self.job[0]["payload"])))

    def result(self, row: int, length: int) -> bytes:
        """The result packet in a row; `length` is that of the packet that it answers."""
        address, size = result_of(self.state, row)
        return u8_at(address, size).tobytes()

    def gets_result(self, row: int, rank: int) -> bool:
        """Whether the multicast of the result in a row includes a rank."""
        return bool(gets_result(self.state, row, rank))

    def receive(self, rank: int, data: bytes) -> Outcome:
        """Apply one packet of `rank`."""
        before = self.counters[rank].copy()
        buffer = np.frombuffer(data or b"\0", np.uint8)
        action, row = receive_v2(self.state, self._reply, rank, buffer.ctypes.data, len(data))
        moved = np.flatnonzero(self.counters[rank] != before)
        verdict = next(COUNTERS[i] for i in moved if COUNTERS[i] in _VERDICTS)
        address, size = result_of(self.state, row)
        if action == WAITING:
            size = _WAIT_SIZE
        elif action == UNICAST:
            size = size_for(self.state, row, rank)
        return Outcome(ACTIONS[action], verdict, _reply_bytes(action, u8_at(address, size), self._reply, size))


class PoolV1:
    """The 8192 slots x 2 sets of one v1 session with n `workers` (1-32)."""

    def __init__(self, *, workers: int, payload_bytes: int = 1024) -> None:
        if not 1 <= workers <= wire_format.V1_MAX_WORKERS:
            raise ConfigError(f"{workers} workers: expected 1 to {wire_format.V1_MAX_WORKERS} in protocol v1")
        rows = 2 * wire_format.V1_SLOTS
        self.job = np.array([(workers, wire_format.V1_SLOTS, payload_bytes, 0, 0, 0, 0, 0)], JOB)
        self.slots = np.zeros(rows, SLOT_V1)
        self.rows = self.wide = np.zeros((rows, wire_format.MAX_PACKET_BYTES), np.uint8)
        self.parts = np.zeros((0, payload_bytes), np.uint8)
        self.counters = np.zeros((workers, len(COUNTERS)), np.int64)
        self.state = StateV1(self.job, self.slots, self.rows, self.counters)
        self._reply = np.zeros(wire_format.MAX_PACKET_BYTES, np.uint8)

    @property
    def first_result(self) -> int:
        """Address of row 0's result packet; the others follow at intervals of one row."""
        return self.rows.ctypes.data

    def result(self, row: int, length: int) -> bytes:
        """The result packet in a row; `length` is that of the packet that it answers."""
        return self.rows[row, :length].tobytes()

    def receive(self, rank: int, data: bytes) -> Outcome:
        """Apply one packet of `rank`."""
        buffer = np.frombuffer(data or b"\0", np.uint8)
        action, row = receive_v1(self.state, self._reply, rank, buffer.ctypes.data, len(data))
        return Outcome(ACTIONS[action], "", _reply_bytes(action, self.rows[row], self._reply, len(data)))


def _reply_bytes(action: int, row: np.ndarray, reply: np.ndarray, size: int) -> bytes | None:
    if action == MULTICAST:
        return row[:size].tobytes()
    if action in (UNICAST, WAITING):
        return reply[:size].tobytes()
    return None
