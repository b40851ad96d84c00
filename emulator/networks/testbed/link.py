"""Emulated links, for kernels without netem: each receives packets at one socket, delays them, loses some, and sends
the rest from another.

A link is one direction. Each has a seeded generator that decides which packets are lost: the n-th packet of a link has
the same fate in every run, whether it was sent alone or in a train (switchml/net/trains.py). All links of a thread are
served by one compiled loop. Between two interfaces (wires.py) the sockets are packet sockets; tests use plain
datagrams. The rate of a link is limited by the queue in front of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from switchml.errors import ConfigError
from switchml.net import libc
from switchml.net.impair import random
from switchml.net.messages import (
    Messages,
    bytes_of,
    new_messages,
    new_receive_messages,
    receive_messages,
    send_messages,
)
from switchml.net.trains import MAX_HEADER_BYTES, MAX_PACKETS, VIRTIO_BYTES, count_packets, without
from switchml.runtime.jit import kernel
from switchml.runtime.memory import copy_bytes

FRAME_BYTES = VIRTIO_BYTES + 14 + 4 + 65535
"""Size of the largest frame: a virtio header, Ethernet with a VLAN tag, and the longest IPv4 packet."""
BATCH = 64
"""Maximum frames of one system call."""
CAPACITY_FRAMES, MIN_CAPACITY_BYTES = 1 << 14, 1 << 20
"""Capacity of a link: frames, and bytes unless its delay requires more."""

COUNTS = ("received", "lost", "sent", "failed")
"""Counters of each link, in packets: received, lost by configured loss, sent, and rejected by the kernel when sent."""
RECEIVED, LOST, SENT, FAILED = range(len(COUNTS))

_CUT_BYTES = FRAME_BYTES + MAX_PACKETS * MAX_HEADER_BYTES
_NEVER = np.int64(0x7FFFFFFFFFFFFFFF)


class Links(NamedTuple):
    """k links of one thread.

    `fds` int64[k, 2]: receive from, send to. `odds` float64[k]: loss. `delay` int64[k]: ns. `random` uint64[k]:
    generators. `counts` int64[k, 4] by COUNTS. Frames in flight: `bytes` uint8[k, B] is a ring buffer in which frames
    occupy consecutive ranges; `frames` int64[k, F, 3]: a frame's offset, its length, its due time (ns); `ends` int64[k,
    2]: frames sent and frames received so far, modulo F rows of `frames`.

    Scratch buffers of one call: `staging` uint8[BATCH, FRAME_BYTES], `cut` uint8[_CUT_BYTES] remainders of trains,
    `cut_lengths` int64[MAX_PACKETS], `surviving` bool[MAX_PACKETS], `packets` int64[BATCH] packets in each message to
    be sent. The other fields are message headers and entries for poll.
    """

    fds: np.ndarray
    odds: np.ndarray
    delay: np.ndarray
    random: np.ndarray
    counts: np.ndarray
    bytes: np.ndarray
    frames: np.ndarray
    ends: np.ndarray
    staging: np.ndarray
    cut: np.ndarray
    cut_lengths: np.ndarray
    surviving: np.ndarray
    packets: np.ndarray
    incoming: Messages
    outgoing: Messages
    polls: np.ndarray


def new_links(
    pairs: Sequence[tuple[int, int]],
    *,
    loss: float = 0.0,
    delay_s: float = 0.0,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    capacity_bytes: int = MIN_CAPACITY_BYTES,
) -> Links:
    """Create links between file descriptors: (receive from, send to). `capacity_bytes`: buffer of each. `numbers`: a
    number for each link that distinguishes it from the others with this seed (by default 0, 1, …).

    Raises ConfigError for a loss outside [0, 1), a negative delay or a capacity of less than two frames.
    """
    if not 0 <= loss < 1:
        raise ConfigError(f"loss {loss}: expected a probability, at least 0 and less than 1")
    if delay_s < 0:
        raise ConfigError(f"delay of {delay_s} s: expected 0 or more")
    if capacity_bytes < 2 * FRAME_BYTES:
        raise ConfigError(f"capacity of {capacity_bytes} bytes: expected at least {2 * FRAME_BYTES}")
    k = len(pairs)
    staging = np.zeros((BATCH, FRAME_BYTES), np.uint8)
    return Links(
        fds=np.array(pairs, np.int64).reshape(k, 2),
        odds=np.full(k, loss),
        delay=np.full(k, round(delay_s * 1e9), np.int64),
        random=np.array([hash((seed, link)) & 0xFFFFFFFFFFFFFFFF for link in numbers or range(k)], np.uint64),
        counts=np.zeros((k, len(COUNTS)), np.int64),
        bytes=np.zeros((k, capacity_bytes), np.uint8),
        frames=np.zeros((k, CAPACITY_FRAMES, 3), np.int64),
        ends=np.zeros((k, 2), np.int64),
        staging=staging,
        cut=np.zeros(_CUT_BYTES, np.uint8),
        cut_lengths=np.zeros(MAX_PACKETS, np.int64),
        surviving=np.zeros(MAX_PACKETS, np.bool_),
        packets=np.zeros(BATCH, np.int64),
        incoming=new_receive_messages(staging),
        outgoing=new_messages(BATCH),
        polls=np.zeros(k + 1 + 2, np.int64),
    )


@kernel
def _free_frames(links, link):
    """(offset of the next frame in the ring buffer, number of frames of maximum size that fit from there on)."""
    size = links.bytes.shape[1]
    head, tail = links.ends[link]
    if head == tail:
        return 0, size // FRAME_BYTES
    free_frames = CAPACITY_FRAMES - (tail - head)
    oldest = links.frames[link, head % CAPACITY_FRAMES, 0]
    newest = links.frames[link, (tail - 1) % CAPACITY_FRAMES]
    start = newest[0] + newest[1]
    if newest[0] < oldest:  # wrapped
        return start, min(free_frames, (oldest - start) // FRAME_BYTES)
    if size - start < FRAME_BYTES:
        return 0, min(free_frames, oldest // FRAME_BYTES)
    return start, min(free_frames, (size - start) // FRAME_BYTES)


@kernel
def _take(links, link, now):
    """Receive available frames as far as there is room. Returns the number of frames received."""
    start, free = _free_frames(links, link)
    free = min(free, BATCH)
    if free == 0:
        return 0
    count = receive_messages(links.fds[link, 0], links.incoming, 0, free)
    for i in range(count):
        length = bytes_of(links.incoming, i)
        copy_bytes(links.bytes[link, start:].ctypes.data, links.staging[i].ctypes.data, length)
        frame = links.frames[link, links.ends[link, 1] % CAPACITY_FRAMES]
        frame[0], frame[1], frame[2] = start, length, now + links.delay[link]
        links.ends[link, 1] += 1
        start += length
    return count


@kernel
def _flush(links, link, messages):
    send_messages(links.fds[link, 1], links.outgoing, messages, libc.MSG_DONTWAIT)
    for i in range(messages):  # a failed message found the next queue full, as on a real switch
        links.counts[link, FAILED if links.outgoing.errors[i] else SENT] += links.packets[i]


@kernel
def _add(links, link, messages, at, length, packets):
    """Add a frame to be sent. Returns the number of queued messages."""
    if messages == BATCH:
        _flush(links, link, messages)
        messages = 0
    links.outgoing.iovecs[messages, 0], links.outgoing.iovecs[messages, 1] = at, length
    links.packets[messages] = packets
    return messages + 1


@kernel
def _lose(links, link, packets):
    """Decide which packets of a frame survive (`links.surviving`). Returns their number."""
    remaining = packets
    for i in range(packets):
        links.surviving[i] = not random(links.random, link) < links.odds[link]
        remaining -= not links.surviving[i]
    links.counts[link, LOST] += packets - remaining
    return remaining


@kernel
def _hand_over(links, link, now):
    """Send the frames that are due, in order."""
    messages = cut_used = 0
    while links.ends[link, 0] < links.ends[link, 1]:
        offset, length, due = links.frames[link, links.ends[link, 0] % CAPACITY_FRAMES]
        if due > now:
            break
        at = np.int64(links.bytes[link, offset:].ctypes.data)
        packets, header, size = count_packets(at, length)
        if links.cut.size - cut_used < length + packets * header:
            _flush(links, link, messages)
            messages = cut_used = 0
        links.counts[link, RECEIVED] += packets
        remaining = _lose(links, link, packets) if links.odds[link] > 0 else packets
        if remaining == packets:
            messages = _add(links, link, messages, at, length, packets)
        elif remaining:
            out = np.int64(links.cut[cut_used:].ctypes.data)
            for i in range(without(at, length, links.surviving[:packets], out, links.cut_lengths)):
                piece = links.cut_lengths[i]
                messages = _add(links, link, messages, out, piece, (piece - header + size - 1) // size)
                out += piece
                cut_used += piece
        links.ends[link, 0] += 1
    # The frame's bytes are free from here on; they are sent before anything else is received.
    _flush(links, link, messages)


@kernel
def move(links, now):
    """One round over all links at `now` (ns). Returns the number of frames received."""
    frames = 0
    for link in range(len(links.fds)):
        frames += _take(links, link, now)
        _hand_over(links, link, now)
    return frames


@kernel
def next_due(links):
    """Time when the next frame is due (ns), or the largest int64."""
    due = _NEVER
    for link in range(len(links.fds)):
        head, tail = links.ends[link]
        if head < tail:
            due = min(due, links.frames[link, head % CAPACITY_FRAMES, 2])
    return due


@kernel
def serve(links, stop):
    """Forward frames until the descriptor `stop` is readable; sleeps while idle."""
    clock = np.zeros(2, np.int64)
    k = len(links.fds)
    while True:
        now = libc.now_ns(clock)
        if move(links, now):
            continue
        for link in range(k):
            fd = (
                links.fds[link, 0] if _free_frames(links, link)[1] > 0 else np.int64(-1)
            )  # don't wake up for a full link
            links.polls[link] = libc.poll_entry(fd)
        links.polls[k] = libc.poll_entry(stop)
        due = next_due(links)
        libc.poll(links.polls, k + 1, np.int64(-1) if due == _NEVER else max(due - now, 0))
        if libc.is_ready(links.polls[k]):
            return
