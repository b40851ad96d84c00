"""A worker of protocol v1 (docs/protocol.md, section 1): the rules of p4app-switchML's DPDK client with one worker
thread (client_lib/src: dpdk_worker_thread.cc, cpu_exponent_quantizer_ppp.cc), so that its switch gives the same bits to
a rank of this project.

A tensor is divided into chunks of 64 or 256 lanes, packet k of it uses slot and set of position k + shift, and `shift`
continues from tensor to tensor, so that each slot's sets alternate. int32: packet k has chunk k. float32: the first
`batch` packets, a window or all chunks, carry exponents only; packet k has the exponent of chunk k and chunk k - batch
in fixed point. The packets k, k + batch, k + 2 batch … use the same row in sequence, each sent when the previous one
has its result, and need one scale at a time.

Results that are undefined in that client are defined here: a block with a value of 2^126 or more, an infinity or a NaN
on any rank becomes NaN on all; one whose scale float32 can't represent (all values below about 2^-97) becomes zeros. A
retransmission carries its own number, also in the first window, whose timeout is no longer than the others'.
"""

from typing import Any, NamedTuple

import numpy as np

from switchml.protocol import packet as wire_format
from switchml.protocol.fixedpoint import exp2
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import bswap32, f32_at, i32_at, put_be16, record, signed8, u8_at, u32_at

FORMATS = {"float32": 0, "int32": 1}
_FLOAT32 = FORMATS["float32"]
ITEM_BYTES = 4

TIMEOUT_S = 0.01
"""`timeout` of client_lib/src/configs/timeouts.cfg."""
_THRESHOLD = 100
"""`timeout_threshold`, and its increment: after this many timeouts, they are doubled for the rest of a tensor."""
_LONGEST = 64
"""Maximum factor of timeouts; that client has no limit."""
_HEADER = wire_format.HEADER_BYTES
_NOT_A_NUMBER = 127
"""Exponent that marks a block as NaN."""
_VECTOR = 16
"""Number of elements that the client's AVX-512 code rounds at a time, half to even; remaining ones are rounded half
away from zero."""
_INT32_MAX = 2147483647.0
_NEVER = 0x7FFFFFFFFFFFFFFF

_ME = record(
    "i8 workers lanes window first_timeout",
    "i8 shift job fmt source target numel divisor chunks batch packets begun done",
    "i8 timeout expired threshold earliest",
    "i8 sent received retransmitted refused",
)
_ROW = record("i8 number deadline", "f4 scale")


class State(NamedTuple):
    """State of a worker. `me` _ME[1]; `rows` _ROW[window]: the packet outstanding in each, number -1 if none; `packets`
    uint8[window, 10 + payload]: its bytes."""

    me: np.ndarray
    rows: np.ndarray
    packets: np.ndarray


class WorkerV1:
    """Owns the state of one worker, which processes one tensor at a time. `timeout_s`: timeout of a packet's first
    retransmission."""

    def __init__(self, *, workers: int, window: int, payload_bytes: int, timeout_s: float = TIMEOUT_S):
        self.state = State(
            np.zeros(1, _ME), np.zeros(window, _ROW), np.zeros((window, _HEADER + payload_bytes), np.uint8)
        )
        me = self.state.me[0]
        me["workers"], me["lanes"], me["window"] = workers, payload_bytes // 4, window
        me["first_timeout"], me["threshold"], me["job"] = int(timeout_s * 1e9), _THRESHOLD, -1
        self.state.packets[:, 0] = wire_format.V1_TYPE << 4 | wire_format.SIZE_CODE_OF[payload_bytes]
        self.state.rows["number"] = -1

    def begin(self, source: int, target: int, numel: int, dtype: str, divisor: int) -> None:
        """Set the current tensor: `numel` > 0 elements at address `source`, with results divided by `divisor` at
        `target` (may be equal)."""
        me = self.state.me[0]
        me["shift"] = (me["shift"] + me["packets"]) % (2 * me["window"])
        me["job"] += 1
        chunks = -(-numel // int(me["lanes"]))
        batch = min(int(me["window"]), chunks)
        me["fmt"], me["source"], me["target"], me["numel"], me["divisor"] = (
            FORMATS[dtype], source, target, numel, divisor
        )  # fmt: skip
        me["chunks"], me["batch"], me["packets"] = chunks, batch, chunks + batch * (dtype == "float32")
        me["begun"] = me["done"] = 0
        me["timeout"], me["earliest"] = me["first_timeout"], _NEVER

    @property
    def is_done(self) -> bool:
        """Whether all results have arrived."""
        return bool(self.state.me[0]["done"] == self.state.me[0]["packets"])


@kernel
def start(worker: State, now: int, out: np.ndarray) -> int:
    """List the tensor's first window in `out`, unless it has been sent already; returns the number of rows."""
    me = worker.me[0]
    if me.begun:
        return 0
    me.begun = 1
    for number in range(me.batch):
        _build(worker, number, now)
        out[number] = number
    return int64(me.batch)


@kernel
def receive(worker: State, address: Address, length: int, now: int, out: np.ndarray, n: int) -> int:
    """Process a datagram from the switch, `length` bytes at `address`. If it is a result that a row waits for, it is
    stored, and the row's next packet built and appended to the first `n` in `out`; returns the new number."""
    me = worker.me[0]
    data = u8_at(address, max(length, 8))
    if length != _HEADER + 4 * me.lanes or me.done == me.packets:
        me.refused += 1
        return n
    number = int64(data[2]) | (int64(data[3]) << 8) | (int64(data[4]) << 16) | (int64(data[5]) << 24)
    row = number % me.batch
    slot, packet = worker.rows[row], worker.packets[row]
    awaited = slot.number == number
    for i in range(8):  # type and size, job, number and slot must match the request
        awaited &= data[i] == packet[i]
    if not awaited:
        me.refused += 1
        return n
    me.received += 1
    me.done += 1
    lanes_at = np.uint64(address) + np.uint64(_HEADER)
    if me.fmt != _FLOAT32:
        _decode_int(worker, number, lanes_at)
    else:
        if number >= me.batch:
            _decode_float(worker, number - me.batch, lanes_at, slot.scale)
        if number < me.chunks:
            slot.scale = scale_of(signed8(data[8]), me.workers)
    slot.number = -1
    if number + me.batch < me.packets:
        _build(worker, number + me.batch, now)
        out[n] = row
        n += 1
    return n


@kernel
def timeouts(worker: State, now: int, out: np.ndarray, n: int) -> int:
    """Append the rows whose packets have timed out to the first `n` in `out`; returns the new number. `me.earliest` is
    the time of the next call."""
    me = worker.me[0]
    if now < me.earliest:
        return n
    me.earliest = _NEVER
    for row in range(me.batch):
        slot = worker.rows[row]
        if slot.number < 0:
            continue
        if slot.deadline <= now:
            me.retransmitted += 1
            me.expired += 1
            if me.expired >= me.threshold:
                me.expired = 0
                me.threshold += _THRESHOLD
                me.timeout = min(2 * me.timeout, _LONGEST * me.first_timeout)
            slot.deadline = now + me.timeout
            out[n] = row
            n += 1
        me.earliest = min(me.earliest, slot.deadline)
    return n


@kernel
def packet_at(worker: State, row: int) -> np.uint64:
    """Address of a row's packet."""
    return worker.packets.ctypes.data + np.uint64(row * worker.packets.shape[1])


@kernel
def exponent_of(address: Address, count: int) -> int:
    """The least e, from -126 on, with 2^e above the magnitudes of `count` float32 at `address`; 127 from 2^126 on, and
    for non-finite values."""
    words = u32_at(address, count)
    top = np.uint32(0)
    for i in range(count):
        top = max(top, np.uint32(words[i] & np.uint32(0x7FFFFFFF)))
    return min((int64(top) >> 23) - 126, _NOT_A_NUMBER)


@kernel
def scale_of(exponent: int, workers: int) -> np.float32:
    """Scale of the values of a block; not finite if none of them can be sent."""
    if exponent == _NOT_A_NUMBER:
        return np.float32(np.nan)
    return np.float32(_INT32_MAX / (workers * exp2(exponent)))


@kernel
def _build(worker: State, number: int, now: int) -> None:
    """Write packet `number` of the tensor into its row."""
    me = worker.me[0]
    row = number % me.batch
    slot, packet = worker.rows[row], worker.packets[row]
    position = (number + me.shift) % (2 * me.window)
    packet[1] = me.job & 0xFF
    for i in range(4):
        packet[2 + i] = (number >> (8 * i)) & 0xFF  # in the byte order of the client's x86
    put_be16(packet, 6, position // me.window << 15 | position % me.window)
    packet[8] = packet[9] = 0
    lanes_at = packet_at(worker, row) + np.uint64(_HEADER)
    if me.fmt != _FLOAT32:
        address, count = _chunk(me, me.source, number)
        values, words = u32_at(address, count), u32_at(lanes_at, me.lanes)
        for i in range(count):
            words[i] = bswap32(values[i])
        words[count:] = 0
    else:
        if number < me.chunks:
            address, count = _chunk(me, me.source, number)
            packet[8] = exponent_of(address, count) & 0xFF
        if number >= me.batch:
            address, count = _chunk(me, me.source, number - me.batch)
            _encode_float(address, count, lanes_at, me.lanes, slot.scale)
        else:
            u8_at(lanes_at, 4 * me.lanes)[:] = 0
    slot.number, slot.deadline = number, now + me.timeout
    me.earliest = min(me.earliest, slot.deadline)


@kernel
def _chunk(me: Any, base: int, chunk: int) -> tuple[np.uint64, int]:
    """Address of a chunk of the tensor at `base`, and its length in elements."""
    first = chunk * me.lanes
    return np.uint64(base) + np.uint64(ITEM_BYTES * first), min(me.lanes, me.numel - first)


@kernel
def _encode_float(address: Address, count: int, lanes_at: Address, lanes: int, scale: np.float32) -> None:
    """Convert `count` float32 to `lanes` big-endian int32, of which the remaining ones are set to 0."""
    x, words = f32_at(address, count), u32_at(lanes_at, lanes)
    if not np.isfinite(scale):
        words[:] = 0
        return
    whole = count - count % _VECTOR
    for i in range(whole):
        words[i] = bswap32(np.uint32(np.int32(np.rint(x[i] * scale))))
    for i in range(whole, count):
        value = np.float64(x[i] * scale)
        magnitude = np.floor(abs(value) + 0.5)
        words[i] = bswap32(np.uint32(np.int32(magnitude if value >= 0 else -magnitude)))
    words[count:] = 0


@kernel
def _decode_float(worker: State, chunk: int, lanes_at: Address, scale: np.float32) -> None:
    me = worker.me[0]
    address, count = _chunk(me, me.target, chunk)
    sums, x = u32_at(lanes_at, count), f32_at(address, count)
    for i in range(count):
        x[i] = np.float32(np.int32(bswap32(sums[i]))) / scale
    if me.divisor != 1:
        divisor = np.float32(me.divisor)
        for i in range(count):
            x[i] = x[i] / divisor


@kernel
def _decode_int(worker: State, chunk: int, lanes_at: Address) -> None:
    """Convert the lanes of an integer chunk; means are truncated toward zero."""
    me = worker.me[0]
    address, count = _chunk(me, me.target, chunk)
    sums, z = u32_at(lanes_at, count), i32_at(address, count)
    for i in range(count):
        value = int64(np.int32(bswap32(sums[i])))
        if me.divisor != 1:
            value = value // me.divisor if value >= 0 else -(-value // me.divisor)
        z[i] = np.int32(value)
