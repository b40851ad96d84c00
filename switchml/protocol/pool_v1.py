"""An aggregator's processing of a packet of protocol v1 (docs/protocol.md, section 1)."""

import numpy as np

from switchml import counters
from switchml.protocol import packet as wire_format
from switchml.protocol.lanes import add_int32, store
from switchml.protocol.pool_state import CONSUME, DROP, MULTICAST, UNICAST, StateV1, result_at
from switchml.runtime.jit import Address, kernel
from switchml.runtime.memory import be16, signed8, u8_at

_HEADER = wire_format.HEADER_BYTES


@kernel
def receive_v1(pool: StateV1, reply: np.ndarray, rank: int, address: Address, length: int) -> tuple[int, int]:
    """Process one datagram of `rank` at `address`, by the rules of section 1: (action, row). `reply`: uint8[>= 1034]
    for UNICAST.

    A packet may have 256 or 1024 bytes of payload whatever the job's is: the size code decides, as in the reference
    switch.
    """
    mine, workers = pool.counters[rank], pool.job[0].workers
    mine[counters.RECEIVED_PACKETS] += 1
    mine[counters.RECEIVED_BYTES] += length
    data = u8_at(address, max(length, 1))
    size = data[0] & 7
    payload = 256 if size == 1 else 1024 if size == 3 else -1
    if payload < 0 or length != _HEADER + payload or data[0] >> 4 != wire_format.V1_TYPE:
        mine[counters.REFUSED_FORMAT] += 1
        return DROP, 0

    pool_index = be16(data, 6)
    version, index = pool_index >> 15, pool_index & wire_format.V1_SLOT_MASK
    if index >= wire_format.V1_SLOTS:
        mine[counters.REFUSED_WINDOW] += 1
        return DROP, 0
    row = version * wire_format.V1_SLOTS + index
    slot, other = pool.slots[row], pool.slots[row ^ wire_format.V1_SLOTS]
    bit = np.uint32(1) << np.uint32(rank)
    first, seen = slot.bitmap == 0, (slot.bitmap & bit) != 0
    slot.bitmap |= bit
    other.bitmap &= ~bit
    result_address = result_at(pool.rows, row, wire_format.MAX_PACKET_BYTES - _HEADER)
    result = u8_at(result_address, _HEADER + payload)

    if seen:
        if slot.count != 0:
            mine[counters.DUPLICATES] += 1
            return DROP, row
        mine[counters.ANSWERED] += 1
        for i in range(_HEADER + payload):
            reply[i] = result[i]
        _label_v1(reply, data, slot.e0, slot.e1)
        return UNICAST, row

    mine[counters.ACCEPTED] += 1
    slot.count = workers - 1 if slot.count == 0 else slot.count - 1
    e0, e1 = signed8(data[8]), signed8(data[9])
    payload_at = result_address + np.uint64(_HEADER)
    if first:
        slot.e0, slot.e1 = e0, e1
        store(payload_at, address + _HEADER, payload)
    else:
        slot.e0, slot.e1 = max(slot.e0, e0), max(slot.e1, e1)
        add_int32(payload_at, address + _HEADER, payload // 4)
    if slot.count != 0:
        return CONSUME, row
    mine[counters.COMPLETED] += 1
    _label_v1(result, data, slot.e0, slot.e1)
    return MULTICAST, row


@kernel
def _label_v1(row: np.ndarray, request: np.ndarray, e0: int, e1: int) -> None:
    """Write the ten-byte header of a v1 reply: job, tsi and size of the packet that triggered it, pool index without
    bit 14."""
    row[0] = (wire_format.V1_TYPE << 4) | (request[0] & 7)
    for i in range(1, 8):
        row[i] = request[i]
    row[6] &= 0xBF
    row[8], row[9] = e0 & 0xFF, e1 & 0xFF
