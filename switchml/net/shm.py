"""Packet exchange between ranks and an aggregator on one machine, without the network: rings of addresses in shared
memory.

A job's segment is one memfd of the aggregator; ranks open it as /proc/PID/fd/N, so that it is freed with its last user,
however that process ends. Only the aggregator's user can open it, and its size is sealed: access to truncated memory
would kill a process. It holds all ranks' packets, the pool's result rows, and two rings per rank: `up` names packets
written by the rank, `down` names results. Nothing is copied: the aggregator adds directly from a rank's packet, and all
ranks decode the same result row. This is safe without locks because of the protocol: a rank reuses a packet only after
its result, the aggregator a row only after all ranks have answered the next version.

A sleeping reader sets a flag, and is woken by an empty datagram to its UDP socket, so that one poll covers both
transports. Each ring has one writer and one reader (release on the head, acquire before the entries).
"""

import fcntl
import mmap
import os
import secrets
from typing import Any, NamedTuple

import numpy as np

from switchml.errors import ConfigError
from switchml.runtime.jit import Address, int64, kernel
from switchml.runtime.memory import fence, load_acquire, prefetch, store_release, u64_at

DATA_BYTES = 1024
"""Data bytes per packet of a job without large packets."""
_SLACK = 64
"""Bytes of a row for headers, in addition to the data."""
REPLIES = 256
"""Rows for wait packets. One may be overwritten before a late reader reads it; only a hint is then lost."""

_HEADER = 4096
_AGGREGATOR_SLEEPS = 64
_LINE = 64
_UP_HEAD, _UP_TAIL, _DOWN_HEAD, _DOWN_TAIL, _RANK_SLEEPS, _ENTRIES = (k * _LINE for k in range(6))
_LENGTH_BITS = 16


class Segment(NamedTuple):
    """A mapped segment. `at` int64[FIELDS]: base address (0: none), bytes, ranks, slots, ring capacity, bytes of a
    rank's block, offsets of the ranks' packets and of the pool's rows, bytes of a row. `memory` uint8[bytes] keeps it
    mapped."""

    at: np.ndarray
    memory: np.ndarray

    @property
    def data_bytes(self) -> int:
        """Data bytes of the largest packet that fits in a row."""
        return int(self.at[ROW]) - _SLACK


Ring = tuple[Address, Address, Address]
"""Addresses of a ring's head, tail and entries."""
FIELDS = 9
BASE, SIZE, RANKS, SLOTS, CAPACITY, STRIDE, PACKETS, ROWS, ROW = range(FIELDS)


def _layout(ranks: int, slots: int, data_bytes: int) -> np.ndarray:
    capacity = max(1024, 4 * slots)
    stride = _ENTRIES + 2 * 8 * capacity
    packets = -(-(_HEADER + ranks * stride) // 4096) * 4096
    row = _SLACK + data_bytes
    rows = packets + 2 * ranks * slots * row
    size = rows + (2 * slots + REPLIES) * row
    return np.array([0, size, ranks, slots, capacity, stride, packets, rows, row], np.int64)


def no_segment() -> Segment:
    """Return the placeholder for packets on another transport."""
    return Segment(np.zeros(FIELDS, np.int64), np.zeros(1, np.uint8))


def new_memory(name: str, size_bytes: int) -> int:
    """Return the file descriptor of a new memfd with mode 600 and a sealed size. Raises OSError."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def create(
    ranks: int, slots: int, data_bytes: int = DATA_BYTES, memory: str = "switchml-job"
) -> tuple[Segment, int, str]:
    """Create a segment for packets with `data_bytes` of data; return (segment, file descriptor, name for `attach`). The
    creator keeps the descriptor open while ranks may attach. `memory`: its name in /proc/PID/fd.

    Raises OSError where the kernel has no memfd or no memory.
    """
    layout = _layout(ranks, slots, data_bytes)
    fd = new_memory(memory, int(layout[SIZE]))
    try:
        segment = _map(fd, layout)
    except OSError:
        os.close(fd)
        raise
    mark = secrets.randbits(63)
    segment.memory[:8].view(np.uint64)[0] = mark
    return segment, fd, f"/proc/{os.getpid()}/fd/{fd}:{mark:x}:{ranks}:{slots}:{data_bytes}"


def attach(name: str) -> Segment:
    """Map a segment by its name. Raises ConfigError if it isn't accessible (another machine, container or user)."""
    try:
        path, mark, *sizes = name.rsplit(":", 4)
        ranks, slots, data_bytes = map(int, sizes)
        expected, layout = int(mark, 16), _layout(ranks, slots, data_bytes)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"shared memory {name!r}: {error}; ranks and aggregator must be on one machine and of one user"
        ) from None
    try:
        if os.fstat(fd).st_size != layout[SIZE]:
            raise ConfigError(f"shared memory {name!r}: {os.fstat(fd).st_size} bytes, expected {layout[SIZE]}")
        segment = _map(fd, layout)
    except OSError as error:
        raise ConfigError(f"shared memory {name!r}: {error}") from None
    finally:
        os.close(fd)
    if int(segment.memory[:8].view(np.uint64)[0]) != expected:
        raise ConfigError(f"shared memory {name!r}: not the job's")
    return segment


def _map(fd: int, layout: np.ndarray) -> Segment:
    memory = np.frombuffer(mmap.mmap(fd, int(layout[SIZE])), np.uint8)
    layout[BASE] = memory.ctypes.data
    return Segment(layout, memory)


def _rows(segment: Segment, offset: int, count: int) -> np.ndarray:
    row = int(segment.at[ROW])
    return segment.memory[offset : offset + count * row].reshape(-1, row)


def packets_of(segment: Segment, rank: int) -> np.ndarray:
    """Return a rank's packets, those of even rounds followed by those of odd ones: uint8[2 * slots, bytes of a row]."""
    rows = 2 * int(segment.at[SLOTS])
    return _rows(segment, int(segment.at[PACKETS]) + rank * rows * int(segment.at[ROW]), rows)


def pool_rows(segment: Segment) -> np.ndarray:
    """Return the pool's result rows: uint8[2 * slots, bytes of a row]."""
    return _rows(segment, int(segment.at[ROWS]), 2 * int(segment.at[SLOTS]))


@kernel(inline=True)
def _block(at: np.ndarray, rank: int) -> np.uint64:
    return np.uint64(at[BASE] + _HEADER + rank * at[STRIDE])


@kernel
def _up(at: np.ndarray, rank: int) -> Ring:
    """Return the ring from a rank to the aggregator."""
    block = _block(at, rank)
    return block + np.uint64(_UP_HEAD), block + np.uint64(_UP_TAIL), block + np.uint64(_ENTRIES)


@kernel
def _down(at: np.ndarray, rank: int) -> Ring:
    """Return the ring from the aggregator to a rank."""
    block = _block(at, rank)
    return block + np.uint64(_DOWN_HEAD), block + np.uint64(_DOWN_TAIL), block + np.uint64(_ENTRIES + 8 * at[CAPACITY])


@kernel(forceinline=True)
def _open(at: np.ndarray, ring: Ring) -> tuple[Ring, np.uint64, np.uint64]:
    """Begin to append to a ring, as its writer; return (ring, head, upper limit of the head). `add` appends, and
    `publish` makes the additions visible to the reader."""
    return ring, u64_at(ring[0], 1)[0], load_acquire(ring[1]) + np.uint64(at[CAPACITY])


@kernel(forceinline=True)
def open_up(at: np.ndarray, rank: int) -> tuple[Ring, np.uint64, np.uint64]:
    """Begin to append packets for the aggregator, on the rank's side (`_open`)."""
    return _open(at, _up(at, rank))


@kernel(forceinline=True)
def open_down(at: np.ndarray, rank: int) -> tuple[Ring, np.uint64, np.uint64]:
    """Begin to append results for a rank, on the aggregator's side (`_open`)."""
    return _open(at, _down(at, rank))


@kernel(forceinline=True)
def add(at: np.ndarray, ring: Ring, head: np.uint64, end: np.uint64, address: Address, length: int) -> np.uint64:
    """Append one packet or result; return the new head, unchanged if the ring is full (a packet is then lost, and the
    retransmission timer appends it again; results always fit)."""
    head = np.uint64(head)
    if head == np.uint64(end):
        return head
    offset = np.uint64(address) - np.uint64(at[BASE])
    entry = (offset << np.uint64(_LENGTH_BITS)) | np.uint64(length)
    u64_at(ring[2], at[CAPACITY])[int64(head) & (at[CAPACITY] - 1)] = entry
    return head + np.uint64(1)


@kernel(forceinline=True)
def publish(ring: Ring, head: np.uint64) -> None:
    """Make all entries up to `head` visible to the reader."""
    store_release(ring[0], head)


@kernel
def _push(at: np.ndarray, ring: Ring, address: Address, length: int, reserve: int) -> int:
    """Append one entry unless fewer than `reserve` entries would stay free; return 1 if appended. Only the ring's
    writer may call this."""
    ring, head, end = _open(at, ring)
    after = add(at, ring, head, end, address, length) if end - head > np.uint64(reserve) else head
    publish(ring, after)
    return int64(after - head)


@kernel
def query_up(at: np.ndarray, rank: int, seq: int) -> int:
    """Ask which ranks round `seq` is waiting for, on the rank's side; dropped if the ring is more than half full."""
    return _push(at, _up(at, rank), np.uint64(at[BASE] + seq), 0, at[CAPACITY] // 2)


@kernel
def push_down(at: np.ndarray, rank: int, address: Address, length: int, reserve: int) -> int:
    """Append a result for a rank, on the aggregator's side. `reserve`: entries to leave free (0 for results, more for
    hints)."""
    return _push(at, _down(at, rank), address, length, reserve)


@kernel
def _pop(
    at: np.ndarray, ring: Ring, lowest: int, highest: int, sender: np.uint64, packets: Any, count: int, most: int
) -> int:
    """Append up to `most` entries that lie between two offsets to `packets` from `count` on; return the new count. The
    headers of the named packets are prefetched: another process wrote them, so each access would miss the cache.
    """
    head_at, tail_at, entries_at = ring
    head, tail = load_acquire(head_at), u64_at(tail_at, 1)[0]
    entries = u64_at(entries_at, at[CAPACITY])
    looks = min(most, packets.address.size - count)
    while tail != head and looks > 0:  # not "while count < most": refused entries take time too
        looks -= 1
        entry = entries[int64(tail) & (at[CAPACITY] - 1)]
        offset, length = int64(entry >> np.uint64(_LENGTH_BITS)), int64(entry & np.uint64(0xFFFF))
        tail += np.uint64(1)
        if length == 0:  # a query: the offset is a sequence number
            packets.address[count], packets.length[count], packets.endpoint[count] = np.uint64(offset), 0, sender
            count += 1
        elif lowest <= offset and offset + length <= highest:  # a rank is trusted only with its own packets
            packets.address[count] = np.uint64(at[BASE] + offset)
            prefetch(np.uint64(at[BASE] + offset))
            packets.length[count] = length
            packets.endpoint[count] = sender
            count += 1
    store_release(tail_at, tail)
    return count


@kernel
def receive_up(at: np.ndarray, rank: int, sender: np.uint64, packets: Any, count: int, most: int) -> int:
    """Append up to `most` of a rank's entries to `packets` from `count` on, with `sender` as endpoint; return the new
    count (aggregator's side). An entry of length 0 is a query (`query_up`): its address is the sequence number."""
    size = 2 * at[SLOTS] * at[ROW]
    lowest = at[PACKETS] + rank * size
    highest = lowest + size
    return _pop(at, _up(at, rank), lowest, highest, sender, packets, count, most)


@kernel
def receive_down(at: np.ndarray, rank: int, packets: Any) -> int:
    """Fill `packets` with the results from the aggregator; return their number (rank's side)."""
    return _pop(at, _down(at, rank), at[ROWS], at[SIZE], np.uint64(0), packets, 0, at[CAPACITY])


@kernel
def _has_entries(ring: Ring) -> bool:
    return bool(load_acquire(ring[0]) != u64_at(ring[1], 1)[0])


@kernel
def up_waits(at: np.ndarray, rank: int) -> bool:
    """Return whether a rank's ring has packets that the aggregator has not received."""
    return _has_entries(_up(at, rank))


@kernel
def down_waits(at: np.ndarray, rank: int) -> bool:
    """Return whether a rank has results that it has not received."""
    return _has_entries(_down(at, rank))


@kernel
def _sleep_flag(at: np.ndarray, rank: int) -> np.uint64:
    """Return the address of the sleep flag of a rank, or of the aggregator for rank -1."""
    return np.uint64(at[BASE] + _AGGREGATOR_SLEEPS) if rank < 0 else _block(at, rank) + np.uint64(_RANK_SLEEPS)


@kernel
def announce_sleep(at: np.ndarray, rank: int, asleep: int) -> None:
    """Set or clear the sleep flag. After setting it, check the rings again before sleeping."""
    store_release(_sleep_flag(at, rank), np.uint64(asleep))
    fence()


@kernel
def must_wake(at: np.ndarray, rank: int) -> bool:
    """Return whether the reader sleeps and must be woken by the caller, and clear its flag. To be called after a
    push."""
    fence()
    flag = _sleep_flag(at, rank)
    if load_acquire(flag) == 0:
        return False
    store_release(flag, np.uint64(0))
    return True
