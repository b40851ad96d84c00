"""Packet links of our own: each takes what arrives at one socket, holds it for a while, loses some, and sends the rest
from another. This is what a kernel without netem lacks.

A link is one direction. The fate of every packet is decided by a generator of the link's own that is seeded: the n-th
packet of a link meets the same fate in every run, whether it came alone or in a train (trains.py). All links of a
thread are served by one compiled loop. Between two interfaces (wires.py) the sockets are AF_PACKET; tests use plain
datagrams. The rate of a link is not our business but that of the queue in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba.core import types

from emulator.testbed.trains import FRAME_BYTES, MOST_PACKETS, layout, without
from switchml.errors import ConfigError
from switchml.net import libc
from switchml.net.impair import random
from switchml.runtime.jit import kernel
from switchml.runtime.memory import copy_bytes

BATCH = 64
"""Frames that one system call takes or hands over."""
CAPACITY_FRAMES, LEAST_CAPACITY_BYTES = 1 << 14, 1 << 20
"""What a link holds at most: so many frames; so many bytes, if its delay does not call for more."""

COUNTS = ("received", "lost", "sent", "failed")
"""What is counted for each link, in packets: those that came, were lost on purpose, were sent, were refused by the
kernel when sent."""
RECEIVED, LOST, SENT, FAILED = range(len(COUNTS))

_CUT_BYTES = 8 * FRAME_BYTES
_MSG_DONTWAIT = 0x40
_NEVER = np.int64(0x7FFFFFFFFFFFFFFF)
_POLLIN = 1
_ppoll = types.ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))


class Links(NamedTuple):
    """k links of one thread.

    `fds` int64[k, 2]: receive from, send to. `odds` float64[k]: loss. `delay` int64[k]: ns. `random` uint64[k]:
    generators. `counts` int64[k, 4] by COUNTS. Frames on their way: `bytes` uint8[k, B] is a ring of which frames take
    consecutive parts; `frames` int64[k, F, 3]: a frame's offset, its length, when it is due (ns); `ends` int64[k, 2]:
    frames sent on and frames taken so far, modulo F rows of `frames`.
    For one call at a time: `staging` uint8[BATCH, FRAME_BYTES], `cut` uint8[_CUT_BYTES] what is left of trains,
    `cut_lengths` int64[MOST_PACKETS], `kept` bool[MOST_PACKETS], `tx_packets` int64[BATCH] packets in each message.
    The rest are message headers for recvmmsg and sendmmsg as io/libc.py describes them, and pollfds.
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
    kept: np.ndarray
    tx_packets: np.ndarray
    rx_headers: np.ndarray
    rx_iovecs: np.ndarray
    tx_headers: np.ndarray
    tx_iovecs: np.ndarray
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
    number for each link that tells it from the others with this seed (by default 0, 1, …).

    Raises ConfigError for a loss outside [0, 1), a negative delay or a capacity of less than two frames.
    """
    if not 0 <= loss < 1:
        raise ConfigError(f"loss {loss}: expected a probability, at least 0 and less than 1")
    if delay_s < 0:
        raise ConfigError(f"delay of {delay_s} s: expected 0 or more")
    if capacity_bytes < 2 * FRAME_BYTES:
        raise ConfigError(f"capacity of {capacity_bytes} bytes: expected at least {2 * FRAME_BYTES}")
    k = len(pairs)
    links = Links(
        fds=np.array(pairs, np.int64).reshape(k, 2),
        odds=np.full(k, loss),
        delay=np.full(k, round(delay_s * 1e9), np.int64),
        random=np.array([hash((seed, link)) & 0xFFFFFFFFFFFFFFFF for link in numbers or range(k)], np.uint64),
        counts=np.zeros((k, len(COUNTS)), np.int64),
        bytes=np.zeros((k, capacity_bytes), np.uint8),
        frames=np.zeros((k, CAPACITY_FRAMES, 3), np.int64),
        ends=np.zeros((k, 2), np.int64),
        staging=np.zeros((BATCH, FRAME_BYTES), np.uint8),
        cut=np.zeros(_CUT_BYTES, np.uint8),
        cut_lengths=np.zeros(MOST_PACKETS, np.int64),
        kept=np.zeros(MOST_PACKETS, np.bool_),
        tx_packets=np.zeros(BATCH, np.int64),
        rx_headers=np.zeros((BATCH, 8), np.uint64),
        rx_iovecs=np.zeros((BATCH, 2), np.uint64),
        tx_headers=np.zeros((BATCH, 8), np.uint64),
        tx_iovecs=np.zeros((BATCH, 2), np.uint64),
        polls=np.zeros(k + 1 + 2, np.int64),
    )
    row = np.arange(BATCH, dtype=np.uint64)
    links.rx_iovecs[:, 0] = links.staging.ctypes.data + row * np.uint64(FRAME_BYTES)
    links.rx_iovecs[:, 1] = FRAME_BYTES
    for headers, iovecs in ((links.rx_headers, links.rx_iovecs), (links.tx_headers, links.tx_iovecs)):
        headers[:, 2] = iovecs.ctypes.data + row * np.uint64(16)
        headers[:, 3] = 1
    return links


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
    count = libc.recvmmsg(links.fds[link, 0], links.rx_headers, room, _MSG_DONTWAIT)
    if count <= 0:
        return 0
    for i in range(count):
        length = np.int64(links.rx_headers[i, 7] & np.uint64(0xFFFFFFFF))
        copy_bytes(links.bytes[link, start:].ctypes.data, links.staging[i].ctypes.data, length)
        frame = links.frames[link, links.ends[link, 1] % CAPACITY_FRAMES]
        frame[0], frame[1], frame[2] = start, length, now + links.delay[link]
        links.ends[link, 1] += 1
        start += length
    return count


@kernel
def _flush(links, link, messages):
    done = 0
    while done < messages:
        result = libc.sendmmsg(links.fds[link, 1], links.tx_headers, done, messages - done, _MSG_DONTWAIT)
        if result > 0:
            for i in range(done, done + result):
                links.counts[link, SENT] += links.tx_packets[i]
            done += result
        elif libc.errno() != libc.EINTR:
            links.counts[link, FAILED] += links.tx_packets[done]  # the queue behind us is full, as on a real switch
            done += 1


@kernel
def _lose(links, link, packets):
    """Decide which packets of a frame go on (`links.kept`); returns how many."""
    remaining = packets
    for i in range(packets):
        links.kept[i] = not random(links.random, link) < links.odds[link]
        remaining -= not links.kept[i]
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
        at = np.uint64(links.bytes[link, offset:].ctypes.data)
        header, size, packets = layout(at, length)
        if messages == BATCH or links.cut.size - cut_used < length + packets * header:
            _flush(links, link, messages)
            messages = cut_used = 0
        links.counts[link, RECEIVED] += packets
        remaining = _lose(links, link, packets) if links.odds[link] > 0 else packets
        if remaining == packets:
            links.tx_iovecs[messages, 0], links.tx_iovecs[messages, 1] = at, length
            links.tx_packets[messages] = packets
            messages += 1
        elif remaining:
            out = np.uint64(links.cut[cut_used:].ctypes.data)
            pieces = without(at, length, header, size, links.kept[:packets], out, links.cut_lengths)
            for i in range(pieces):
                if messages == BATCH:
                    _flush(links, link, messages)
                    messages = 0
                piece = links.cut_lengths[i]
                links.tx_iovecs[messages, 0], links.tx_iovecs[messages, 1] = out, piece
                links.tx_packets[messages] = (piece - header + size - 1) // size
                messages += 1
                out += np.uint64(piece)
                cut_used += piece
        links.ends[link, 0] += 1
    # The bytes of a frame are free from here on, and nothing is received before they are sent.
    _flush(links, link, messages)


@kernel
def move(links, now):
    """One round over all links at `now` (ns); returns how many frames were taken."""
    taken = 0
    for link in range(len(links.fds)):
        taken += _take(links, link, now)
        _hand_over(links, link, now)
    return taken


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
            fd = links.fds[link, 0] if _room(links, link)[1] > 0 else np.int64(-1)  # a full link does not wake us
            links.polls[link] = (fd & 0xFFFFFFFF) | (_POLLIN << 32)
        links.polls[k] = np.int64(stop) | (_POLLIN << 32)
        due = next_due(links)
        pause = max(due - now, 0)
        links.polls[k + 1], links.polls[k + 2] = pause // 1_000_000_000, pause % 1_000_000_000
        address = links.polls.ctypes.data
        limit = np.uint64(0) if due == _NEVER else np.uint64(address + np.uint64(8 * (k + 1)))
        if _ppoll(address, k + 1, limit, 0) > 0 and links.polls[k] >> 48:
            return
