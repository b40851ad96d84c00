"""The shared memory of the ranks of one host, and the computation in it.

A tensor passes through it in blocks, numbered from 0 over all calls. Block b uses slot b mod DEPTH, which has an input
per rank and one result. Each rank publishes how many blocks it has completed at each step, and all ranks read these
counts:

    ARRIVED   blocks that it has copied to its inputs
    SUMMED    blocks whose share it has summed, over all ranks' inputs in rank order
    DONE      blocks whose sum over all hosts is in the result (counted by the leader only)
    TAKEN     blocks that it has copied from the result

A slot is free for block b when every rank has taken block b - DEPTH. Each count has a single writer, which has written
the data before it publishes the count (release and acquire), so no lock is needed. A rank that waits for the others'
counts sleeps on its doorbell.
"""

import json
import mmap
from typing import Any

import numpy as np

from switchml import errors
from switchml.errors import CollectiveTimeout, ConfigError, JobError, JoinError, PeerLost
from switchml.net import doorbell
from switchml.net.shm import new_memory
from switchml.protocol.packet import OP_MAX32, OP_MAX64, OP_OR, OP_XOR, V2_MAX_WORKERS
from switchml.runtime.jit import compile_once, kernel
from switchml.runtime.memory import copy_bytes, f32_at, f64_at, i32_at, i64_at, load_acquire, store_release, u8_at

DEPTH = 8
"""Maximum number of blocks in progress: being copied in, summed, on the network, copied out."""
BLOCK_BYTES = 1 << 20
FLOAT32, FLOAT64, INT32, INT64 = range(4)
_COMBINATIONS: dict[int, tuple[str, np.ufunc]] = {
    OP_MAX32: (">u4", np.maximum),
    OP_MAX64: (">u8", np.maximum),
    OP_OR: ("u1", np.bitwise_or),
    OP_XOR: ("u1", np.bitwise_xor),
}
KINDS = {"float32": FLOAT32, "float64": FLOAT64, "int32": INT32, "int64": INT64}
STARTING, READY, FAILED = range(3)
"""States of the leader, in the header."""

ARRIVED, SUMMED, DONE, TAKEN = 64, 128, 192, 256
"""Offsets of a rank's counts in its block, each in a cache line of its own; its doorbell is at 0."""
_RECORDS, _RECORD_WORDS = 512, 8
DIGEST, NUMEL, KIND, OVERFLOWED, MISFITS = range(5)
"""Columns of a rank's record of a slot, int64[8]: a digest of its call, the call's elements and kind (KINDS), whether
its share of an integer sum overflowed; in the leader's record, the number of final sums that do not fit."""
_HEADER_BYTES = _RANK_BYTES = 4096
_STATE, _TEXT_LENGTH, _TEXT, _WAITS_FOR = 0, 64, 72, 4096 - V2_MAX_WORKERS
_MAX_TEXT = 500
"""Maximum number of characters of a text in the header; a character takes at most six bytes, and there are two texts.
"""
_RESULT_BYTES = BLOCK_BYTES + 64
"""Size of a result, with room for one more element, in which the hosts count overflowed sums."""
_STRIP = 4096
"""Number of elements summed at a time, so that they stay in the cache."""
_MIN_SHARED = 1 << 14
"""Minimum number of elements of a block that the ranks sum in shares; the leader sums a smaller one alone."""


def bytes_of(ranks: int) -> int:
    """Size of the memory for a host with this many ranks. Untouched pages take no memory."""
    return _HEADER_BYTES + ranks * _RANK_BYTES + DEPTH * (ranks * BLOCK_BYTES + _RESULT_BYTES)


class HostMemory:
    """The shared memory as accessed by local rank `index` of `ranks`; local rank 0 is the leader. `fd` is left open."""

    def __init__(self, fd: int, index: int, ranks: int):
        self.index, self.ranks = index, ranks
        self._map = np.frombuffer(mmap.mmap(fd, bytes_of(ranks)), np.uint8)
        self._base = self._map.ctypes.data
        self._scratch = np.zeros(2, np.int64)
        self.waits_for = self._map[_WAITS_FOR:_HEADER_BYTES]
        """uint8[256]: flags of the hosts that a round of the leader waits for."""
        blocks = self._map[_HEADER_BYTES : _HEADER_BYTES + ranks * _RANK_BYTES].view(np.int64).reshape(ranks, -1)
        words = blocks[:, _RECORDS // 8 : _RECORDS // 8 + DEPTH * _RECORD_WORDS]
        self.records = np.lib.stride_tricks.as_strided(
            words, (ranks, DEPTH, _RECORD_WORDS), (_RANK_BYTES, 8 * _RECORD_WORDS, 8)
        )
        """Records of the slots: int64[ranks, DEPTH, 8]."""

    # The leader's announcements

    @property
    def state(self) -> int:
        return int(load_count(self._base + _STATE))

    def announce(self, state: int, **facts: Any) -> None:
        """On the leader: publish READY or FAILED with facts for the other ranks, and wake them."""
        short = {name: fact[:_MAX_TEXT] if isinstance(fact, str) else fact for name, fact in facts.items()}
        text = json.dumps(short).encode()
        self._map[_TEXT : _TEXT + len(text)] = np.frombuffer(text, np.uint8)
        store_count(self._base + _TEXT_LENGTH, len(text))
        store_count(self._base + _STATE, state)
        self.ring_others()

    def announce_failure(self, error: BaseException) -> None:
        """On the leader: publish the error that ended the job of the hosts."""
        ranks = list(getattr(error, "ranks", ()))
        self.announce(FAILED, error=type(error).__name__, message=str(error), ranks=ranks)

    def failure(self) -> BaseException:
        """The error that the leader announced."""
        facts = self.facts()
        kind, message = getattr(errors, facts["error"], JoinError), facts["message"]
        if issubclass(kind, (PeerLost, CollectiveTimeout)):
            return kind(message, tuple(facts["ranks"]))
        return (kind if issubclass(kind, (JobError, JoinError, ConfigError)) else JobError)(message)

    def facts(self) -> dict[str, Any]:
        """Facts of the leader's last announcement."""
        length = int(load_count(self._base + _TEXT_LENGTH))
        return json.loads(self._map[_TEXT : _TEXT + length].tobytes())

    # Counts and doorbells

    def count(self, index: int, what: int) -> int:
        """A rank's ARRIVED, SUMMED, DONE or TAKEN count."""
        return int(load_count(self._rank_at(index) + what))

    def least(self, what: int) -> int:
        """Minimum of all ranks' counts."""
        return int(least_count(self._rank_at(0) + what, self.ranks))

    def publish(self, what: int, count: int) -> None:
        """Set this rank's count, and wake ranks that may wait for it."""
        store_count(self._rank_at(self.index) + what, count)
        self.ring_others()

    def ring_others(self) -> None:
        ring_all(self._rank_at(0), self.ranks, self.index)

    def ring_own(self) -> None:
        doorbell.ring(self._rank_at(self.index))

    def rings(self) -> int:
        """Number of rings of this rank's doorbell. Read it before looking for work, and pass it to `wait`."""
        return int(doorbell.rings(self._rank_at(self.index)))

    def wait(self, heard: int, timeout_s: float) -> None:
        """Sleep until the doorbell has rung more often than `heard`, or for `timeout_s`."""
        doorbell.wait(self._rank_at(self.index), heard, int(timeout_s * 1e9), self._scratch)

    # Blocks

    def copy_in(self, slot: int, source: int, nbytes: int, at: int = 0) -> None:
        """Copy `nbytes` at address `source` to this rank's input, from byte `at` on."""
        copy_bytes(self._input(self.index, slot) + at, source, nbytes)

    def put(self, slot: int, at: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` at address `source` to the slot's result, from byte `at` on."""
        copy_bytes(self.result(slot) + at, source, nbytes)

    def get(self, slot: int, at: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` from the slot's result, from byte `at` on, to address `target`."""
        copy_bytes(target, self.result(slot) + at, nbytes)

    def sum_share(self, slot: int, kind: int, count: int) -> bool:
        """Sum this rank's share of the slot's `count` elements; returns whether integers overflowed."""
        first, last = self._share(count)
        if first == last:
            return False
        return bool(add_up(kind, self._input(0, slot), self._stride, self.ranks, self.result(slot), first, last))

    def combine_share(self, slot: int, op: int, nbytes: int) -> None:
        """Combine this rank's share of unsigned integers by an op of the protocol (docs/protocol.md, section 11)."""
        first, last = self._share(nbytes)
        dtype, combine = _COMBINATIONS[op]
        inputs = [u8_at(self._input(rank, slot) + first, last - first).view(dtype) for rank in range(self.ranks)]
        total = u8_at(self.result(slot) + first, last - first).view(dtype)
        total[:] = inputs[0]
        for each in inputs[1:]:
            combine(total, each, out=total)

    def result(self, slot: int) -> int:
        """Address of the slot's result."""
        inputs = self._rank_at(self.ranks) + self.ranks * self._stride
        return inputs + slot * _RESULT_BYTES

    def wide_sum(self, slot: int, kind: int, count: int) -> np.ndarray:
        """Sum the slot's integer inputs exactly: int64[2, count], the sums of the upper halves and of the lower 32
        bits."""
        wide = np.empty((2, count), np.int64)
        add_up_wide(kind, self._input(0, slot), self._stride, self.ranks, wide)
        return wide

    def narrow(self, slot: int, kind: int, wide: np.ndarray) -> int:
        """Write sums in the format of `wide_sum` to the result, with wraparound; returns the number of those that do
        not fit."""
        return int(fit(kind, wide, self.result(slot)))

    def copy_out(self, slot: int, kind: int, target: int, count: int, divisor: int, at: int = 0) -> None:
        """Copy `count` elements of the slot's result, from byte `at` on, divided by `divisor`, to address `target`;
        integers truncate toward zero."""
        deliver(kind, self.result(slot) + at, target, count, divisor)

    def _share(self, count: int) -> tuple[int, int]:
        """(first, last) element of this rank's share of a block."""
        if count < _MIN_SHARED:
            return (0, count) if self.index == 0 else (0, 0)
        step = -(-count // (self.ranks * 64)) * 64
        return min(self.index * step, count), min((self.index + 1) * step, count)

    @property
    def _stride(self) -> int:
        """Bytes of a rank's inputs."""
        return DEPTH * BLOCK_BYTES

    def _rank_at(self, index: int) -> int:
        return self._base + _HEADER_BYTES + index * _RANK_BYTES

    def _input(self, index: int, slot: int) -> int:
        return self._rank_at(self.ranks) + index * self._stride + slot * BLOCK_BYTES


def create(ranks: int) -> int:
    """Create memory for this many ranks; returns its file descriptor. Raises OSError if the kernel has no memory."""
    return new_memory("switchml-host", bytes_of(ranks))


@kernel
def load_count(address):
    """Load the count at an address with acquire semantics."""
    return np.int64(load_acquire(np.uint64(address)))


@kernel
def store_count(address, count):
    """Publish a count with release semantics: a rank that reads it sees all earlier writes."""
    store_release(np.uint64(address), np.uint64(count))


@kernel
def least_count(address, ranks):
    """Minimum of all ranks' counts; the first rank's is at `address`."""
    least = np.int64(0x7FFFFFFFFFFFFFFF)
    for rank in range(ranks):
        least = min(least, np.int64(load_acquire(np.uint64(address + rank * _RANK_BYTES))))
    return least


@kernel
def ring_all(bells, ranks, but):
    """Ring the doorbells of all ranks except `but`; the first is at `bells`."""
    for rank in range(ranks):
        if rank != but:
            doorbell.ring(bells + rank * _RANK_BYTES)


@kernel
def _add(total, x, y):
    for i in range(total.size):
        total[i] = x[i] + y[i]


@kernel
def _add_checked(total, x, y):
    """Add int64 with wraparound; returns whether any sum wrapped."""
    wrapped = np.int64(0)
    for i in range(total.size):
        whole = x[i] + y[i]
        wrapped |= (x[i] ^ whole) & (y[i] ^ whole)
        total[i] = whole
    return wrapped < 0


@kernel
def _sum_int32(inputs, stride, ranks, out, first, count):
    """Add int32 with wraparound; returns whether any sum wrapped."""
    whole = np.zeros(count, np.int64)
    for rank in range(ranks):
        x = i32_at(np.uint64(inputs + rank * stride + 4 * first), count)
        for i in range(count):
            whole[i] += x[i]
    total = i32_at(np.uint64(out + 4 * first), count)
    overflowed = False
    for i in range(count):
        overflowed |= whole[i] < -0x80000000 or whole[i] > 0x7FFFFFFF
        total[i] = np.int32(whole[i])
    return overflowed


@kernel
def add_up(kind, inputs, stride, ranks, out, first, last):
    """Sum elements [first, last) of all ranks' inputs, in rank order, to `out`. `inputs` is the address of the first
    rank's input; the others follow at intervals of `stride` bytes. Returns whether integers overflowed (the sum then
    wraps)."""
    overflowed = False
    for at in range(first, last, _STRIP):
        count = min(_STRIP, last - at)
        if kind == INT32:
            overflowed |= _sum_int32(inputs, stride, ranks, out, at, count)
            continue
        if ranks == 1:
            size = 4 if kind == FLOAT32 else 8
            copy_bytes(np.uint64(out + size * at), np.uint64(inputs + size * at), size * count)
            continue
        for rank in range(1, ranks):
            so_far = inputs if rank == 1 else out
            y = inputs + rank * stride
            if kind == FLOAT32:
                total = f32_at(np.uint64(out + 4 * at), count)
                _add(total, f32_at(np.uint64(so_far + 4 * at), count), f32_at(np.uint64(y + 4 * at), count))
            elif kind == FLOAT64:
                wide = f64_at(np.uint64(out + 8 * at), count)
                _add(wide, f64_at(np.uint64(so_far + 8 * at), count), f64_at(np.uint64(y + 8 * at), count))
            else:
                longs = i64_at(np.uint64(out + 8 * at), count)
                x, z = i64_at(np.uint64(so_far + 8 * at), count), i64_at(np.uint64(y + 8 * at), count)
                overflowed |= _add_checked(longs, x, z)
    return overflowed


@kernel
def add_up_wide(kind, inputs, stride, ranks, wide):
    """Sum integer inputs without overflow: the upper halves into wide[0], the lower 32 bits into wide[1]."""
    wide[:] = 0
    count = wide.shape[1]
    for rank in range(ranks):
        at = np.uint64(inputs + rank * stride)
        for i in range(count):
            value = np.int64(i32_at(at, count)[i]) if kind == INT32 else i64_at(at, count)[i]
            wide[0, i] += value >> 32
            wide[1, i] += value & 0xFFFFFFFF


@kernel
def fit(kind, wide, out):
    """Convert sums of `add_up_wide` to integers at address `out`, with wraparound; returns the number that do
    not fit."""
    count = wide.shape[1]
    misfits = 0
    for i in range(count):
        upper, lower = wide[0, i] + (wide[1, i] >> 32), wide[1, i] & 0xFFFFFFFF
        value = (upper << 32) | lower
        if kind == INT32:
            misfits += upper != -(lower >> 31)
            i32_at(np.uint64(out), count)[i] = np.int32(value)
        else:
            misfits += upper < -0x80000000 or upper > 0x7FFFFFFF
            i64_at(np.uint64(out), count)[i] = value
    return misfits


@kernel
def _divide(target, values, divisor):
    for i in range(target.size):
        target[i] = values[i] / divisor


@kernel
def _divide_truncating(target, values, divisor):
    for i in range(target.size):
        quotient = np.int64(values[i]) // divisor
        target[i] = quotient + (quotient < 0 and quotient * divisor != values[i])


@kernel
def deliver(kind, result, target, count, divisor):
    """Write `count` elements from address `result`, divided by `divisor`, to address `target`."""
    result, target = np.uint64(result), np.uint64(target)
    if divisor == 1:
        copy_bytes(target, result, count * (4 if kind in (FLOAT32, INT32) else 8))
    elif kind == FLOAT32:
        _divide(f32_at(target, count), f32_at(result, count), np.float32(divisor))
    elif kind == FLOAT64:
        _divide(f64_at(target, count), f64_at(result, count), np.float64(divisor))
    elif kind == INT32:
        _divide_truncating(i32_at(target, count), i32_at(result, count), np.int64(divisor))
    else:
        _divide_truncating(i64_at(target, count), i64_at(result, count), np.int64(divisor))


def warm_up() -> None:
    """Compile the kernels of this module, or load them from the cache."""
    bell, wide, scratch = np.zeros(4096, np.uint8), np.zeros((2, 0), np.int64), np.zeros(2, np.int64)
    at = bell.ctypes.data
    compile_once(load_count, at)
    compile_once(store_count, at, 0)
    compile_once(least_count, at, 1)
    compile_once(ring_all, at, 1, 0)
    compile_once(doorbell.ring, at)
    compile_once(doorbell.rings, at)
    compile_once(doorbell.wait, at, 0, 0, scratch)
    compile_once(copy_bytes, at, at, 0)
    compile_once(add_up, 0, at, 0, 1, at, 0, 0)
    compile_once(add_up_wide, 0, at, 0, 1, wide)
    compile_once(fit, 0, wide, at)
    compile_once(deliver, 0, at, at, 0, 1)
