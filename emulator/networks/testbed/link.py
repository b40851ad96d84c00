"""Emulated links, for kernels without netem: each receives what arrives at one socket, delays it, loses some of it,
and sends the rest from another.

A link is one direction. Each has a seeded generator that decides which packets are lost: the n-th packet of a link
fares the same in every run, whether it came alone or in a train (switchml/net/trains.py). All links of a thread are
served by one compiled loop. Between two interfaces (wires.py) the sockets are packet sockets; tests use plain
datagrams. The rate of a link is that of the queue in front of it.
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
"""The largest frame: a virtio header, Ethernet with a VLAN tag, and the longest IPv4 packet."""
BATCH = 64
"""Frames that one system call takes or hands over."""
CAPACITY_FRAMES, LEAST_CAPACITY_BYTES = 1 << 14, 1 << 20
"""What a link holds at most: so many frames; so many bytes, if its delay does not call for more."""

COUNTS = ("received", "lost", "sent", "failed")
"""What is counted for each link, in packets: those that came, were lost on purpose, were sent, were refused by the
kernel when sent."""
RECEIVED, LOST, SENT, FAILED = range(len(COUNTS))

_CUT_BYTES = FRAME_BYTES + MAX_PACKETS * MAX_HEADER_BYTES
_NEVER = np.int64(0x7FFFFFFFFFFFFFFF)


class Links(NamedTuple):
    """k links of one thread.

    `fds` int64[k, 2]: receive from, send to. `odds` float64[k]: loss. `delay` int64[k]: ns. `random` uint64[k]:
    generators. `counts` int64[k, 4] by COUNTS. Frames on their way: `bytes` uint8[k, B] is a ring of which frames take
    consecutive parts; `frames` int64[k, F, 3]: a frame's offset, its length, when it is due (ns); `ends` int64[k, 2]:
    frames sent and frames received so far, modulo F rows of `frames`.
    For one call at a time: `staging` uint8[BATCH, FRAME_BYTES], `cut` uint8[_CUT_BYTES] what is left of trains,
    `cut_lengths` int64[MAX_PACKETS], `surviving` bool[MAX_PACKETS], `packets` int64[BATCH] those in each message to be
    sent. The rest are message headers and entries for poll.
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
    capacity_bytes: int = LEAST_CAPACITY_BYTES,
) -> Links:
    """Links between file descriptors: (receive from, send to). `capacity_bytes`: what each can hold. `numbers`: a
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
def _room(links, link):
    """(where the next frame goes in the ring of bytes, how many frames of any size fit from there on)."""
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
    """Receive what there is and what there is room for; returns how many frames that was."""
    start, room = _room(links, link)
    room = min(room, BATCH)
    if room == 0:
        return 0
    count = receive_messages(links.fds[link, 0], links.incoming, 0, room)
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
    for i in range(messages):  # one that failed found the next queue full, as on a real switch
        links.counts[link, FAILED if links.outgoing.errors[i] else SENT] += links.packets[i]


@kernel
def _add(links, link, messages, at, length, packets):
    """One more frame to be sent; how many there are then."""
    if messages == BATCH:
        _flush(links, link, messages)
        messages = 0
    links.outgoing.iovecs[messages, 0], links.outgoing.iovecs[messages, 1] = at, length
    links.packets[messages] = packets
    return messages + 1


@kernel
def _lose(links, link, packets):
    """Decide which packets of a frame survive (`links.surviving`); returns how many."""
    remaining = packets
    for i in range(packets):
        links.surviving[i] = not random(links.random, link) < links.odds[link]
        remaining -= not links.surviving[i]
    links.counts[link, LOST] += packets - remaining
    return remaining


@kernel
def _hand_over(links, link, now):
    """Send the frames that are due, in their order."""
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
    # The bytes of a frame are free from here on, and nothing is received before they are sent.
    _flush(links, link, messages)


@kernel
def move(links, now):
    """One round over all links at `now` (ns); returns how many frames were received."""
    frames = 0
    for link in range(len(links.fds)):
        frames += _take(links, link, now)
        _hand_over(links, link, now)
    return frames


@kernel
def next_due(links):
    """When the next frame is to be sent (ns), or the largest int64."""
    due = _NEVER
    for link in range(len(links.fds)):
        head, tail = links.ends[link]
        if head < tail:
            due = min(due, links.frames[link, head % CAPACITY_FRAMES, 2])
    return due


@kernel
def serve(links, stop):
    """Move frames until the descriptor `stop` is readable; sleeps when there is nothing to do."""
    clock = np.zeros(2, np.int64)
    k = len(links.fds)
    while True:
        now = libc.now_ns(clock)
        if move(links, now):
            continue
        for link in range(k):
            fd = links.fds[link, 0] if _room(links, link)[1] > 0 else np.int64(-1)  # a full link wakes nobody
            links.polls[link] = libc.poll_entry(fd)
        links.polls[k] = libc.poll_entry(stop)
        due = next_due(links)
        libc.poll(links.polls, k + 1, np.int64(-1) if due == _NEVER else max(due - now, 0))
        if libc.is_ready(links.polls[k]):
            return
