"""Packet links of our own: each takes what arrives at one socket, loses some, holds the rest for a while, and sends it
from another. This is what a kernel without netem lacks.

A link is one direction. Its fate is decided frame by frame, by a generator of its own that is seeded: the n-th frame
of a link meets the same fate in every run. All links of a thread are served by one compiled loop; a frame lies where
it was received until it is sent. Between two interfaces (`python -m emulator.link`, what star.py starts) the sockets
are AF_PACKET; tests use plain datagrams. The rate of a link is not our business but that of a queue in front of it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba.core import types

from switchml.errors import ConfigError
from switchml.io import libc
from switchml.jit import compile_once, kernel

FRAME_BYTES = 2048
"""Room for one frame: 10 bytes of virtio header, 14 of Ethernet, 1500 of payload, a VLAN tag or two."""
BATCH = 64
"""Frames that one system call takes or hands over."""
SOCKET_BUFFER_BYTES = 32 << 20

COUNTS = ("received", "lost", "sent", "failed", "oversize")
"""What is counted for each link, in this order: frames taken, lost on purpose, sent, refused by the kernel when sent,
thrown away because they were larger than FRAME_BYTES."""
RECEIVED, LOST, SENT, FAILED, OVERSIZE = range(len(COUNTS))

_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ETH_P_ALL = 3
_MSG_DONTWAIT, _MSG_TRUNC = 0x40, 0x20
_NEVER = np.int64(0x7FFFFFFFFFFFFFFF)
_POLLIN = 1
_ppoll = types.ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))


class Links(NamedTuple):
    """k links with room for C frames each, C a power of two.

    `fds` int64[k, 2]: receive from, send to. `odds` float64[k]: loss. `delay` int64[k]: ns. `random` uint64[k]:
    generators. `ends` int64[k, 2]: frames sent on or lost, frames taken (so a link holds the difference). `frames`
    uint8[k, C, FRAME_BYTES]; `length` int64[k, C]: -1 for a lost one; `due` int64[k, C]: ns. `counts` int64[k, 5].
    The rest are message headers for recvmmsg and sendmmsg as io/libc.py describes them, and pollfds.
    """

    fds: np.ndarray
    odds: np.ndarray
    delay: np.ndarray
    random: np.ndarray
    ends: np.ndarray
    frames: np.ndarray
    length: np.ndarray
    due: np.ndarray
    counts: np.ndarray
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
    capacity: int = 1024,
) -> Links:
    """Links between file descriptors: (receive from, send to). `capacity`: frames that each can hold. `numbers`: a
    number for each link that tells it from the others with this seed (by default 0, 1, …).

    Raises ConfigError for a loss outside [0, 1), a negative delay or a capacity that is no power of two.
    """
    if not 0 <= loss < 1:
        raise ConfigError(f"loss {loss}: expected a probability, at least 0 and less than 1")
    if delay_s < 0:
        raise ConfigError(f"delay of {delay_s} s: expected 0 or more")
    if capacity < 1 or capacity & (capacity - 1):
        raise ConfigError(f"capacity of {capacity} frames: expected a power of two")
    k = len(pairs)
    links = Links(
        fds=np.array(pairs, np.int64).reshape(k, 2),
        odds=np.full(k, loss),
        delay=np.full(k, round(delay_s * 1e9), np.int64),
        random=np.array([hash((seed, link)) & 0xFFFFFFFFFFFFFFFF for link in numbers or range(k)], np.uint64),
        ends=np.zeros((k, 2), np.int64),
        frames=np.zeros((k, capacity, FRAME_BYTES), np.uint8),
        length=np.zeros((k, capacity), np.int64),
        due=np.zeros((k, capacity), np.int64),
        counts=np.zeros((k, len(COUNTS)), np.int64),
        rx_headers=np.zeros((k, capacity, 8), np.uint64),
        rx_iovecs=np.zeros((k, capacity, 2), np.uint64),
        tx_headers=np.zeros((BATCH, 8), np.uint64),
        tx_iovecs=np.zeros((BATCH, 2), np.uint64),
        polls=np.zeros(k + 1 + 2, np.int64),
    )
    rows = np.arange(k * capacity, dtype=np.uint64).reshape(k, capacity)
    links.rx_iovecs[..., 0] = links.frames.ctypes.data + rows * np.uint64(FRAME_BYTES)
    links.rx_iovecs[..., 1] = FRAME_BYTES
    links.rx_headers[..., 2] = links.rx_iovecs.ctypes.data + rows * np.uint64(16)
    links.rx_headers[..., 3] = 1
    links.tx_headers[:, 2] = links.tx_iovecs.ctypes.data + np.arange(BATCH, dtype=np.uint64) * np.uint64(16)
    links.tx_headers[:, 3] = 1
    return links


@kernel
def _random(state, link):
    """A float64 in [0, 1): splitmix64 (Steele, Lea, Flood 2014)."""
    state[link] = np.uint64(state[link] + np.uint64(0x9E3779B97F4A7C15))
    z = state[link]
    z = np.uint64((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
    z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def _take(links, link, now):
    """Receive what there is and what there is room for; returns how many frames that was."""
    capacity = links.due.shape[1]
    head, tail = links.ends[link]
    first = tail & (capacity - 1)
    room = min(capacity - (tail - head), capacity - first, BATCH)
    if room <= 0:
        return 0
    for i in range(first, first + room):
        links.rx_headers[link, i, 6] = 0
    count = libc.recvmmsg(links.fds[link, 0], links.rx_headers[link, first:], room, _MSG_DONTWAIT)
    if count <= 0:
        return 0
    for i in range(first, first + count):
        links.due[link, i] = now + links.delay[link]
        links.length[link, i] = np.int64(links.rx_headers[link, i, 7] & np.uint64(0xFFFFFFFF))
        if links.rx_headers[link, i, 6] & np.uint64(_MSG_TRUNC):
            links.length[link, i] = -1
            links.counts[link, OVERSIZE] += 1
        elif links.odds[link] > 0 and _random(links.random, link) < links.odds[link]:
            links.length[link, i] = -1
            links.counts[link, LOST] += 1
    links.counts[link, RECEIVED] += count
    links.ends[link, 1] = tail + count
    return count


@kernel
def _hand_over(links, link, now):
    """Send the frames that are due, in their order."""
    capacity = links.due.shape[1]
    while True:
        head, tail = links.ends[link]
        n = 0
        while head < tail and n < BATCH:
            i = head & (capacity - 1)
            if links.due[link, i] > now:
                break
            if links.length[link, i] >= 0:
                links.tx_iovecs[n, 0] = links.rx_iovecs[link, i, 0]
                links.tx_iovecs[n, 1] = links.length[link, i]
                n += 1
            head += 1
        links.ends[link, 0] = head
        done = 0
        while done < n:
            result = libc.sendmmsg(links.fds[link, 1], links.tx_headers, done, n - done, _MSG_DONTWAIT)
            if result > 0:
                links.counts[link, SENT] += result
                done += result
            elif libc.errno() != libc.EINTR:
                links.counts[link, FAILED] += 1  # the queue behind us is full: one frame is lost, as on a real switch
                done += 1
        if n < BATCH:
            return


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
            due = min(due, links.due[link, head & (links.due.shape[1] - 1)])
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
        for link in range(k):  # a full link does not wake us
            free = links.due.shape[1] - (links.ends[link, 1] - links.ends[link, 0])
            fd = links.fds[link, 0] if free > 0 else np.int64(-1)
            links.polls[link] = (fd & 0xFFFFFFFF) | (_POLLIN << 32)
        links.polls[k] = np.int64(stop) | (_POLLIN << 32)
        due = next_due(links)
        pause = max(due - now, 0)
        links.polls[k + 1], links.polls[k + 2] = pause // 1_000_000_000, pause % 1_000_000_000
        address = links.polls.ctypes.data
        limit = np.uint64(0) if due == _NEVER else np.uint64(address + np.uint64(8 * (k + 1)))
        if _ppoll(address, k + 1, limit, 0) > 0 and links.polls[k] >> 48:
            return


def open_interface(name: str) -> socket.socket:
    """Everything that arrives at an interface of this namespace, and a way to send from it. Frames come and go with a
    virtio header, so that checksums which the kernel has put off to the hardware stay put off (packet(7)).
    """
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0: nothing arrives before bind
    sock.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    libc.grow_buffers(sock, SOCKET_BUFFER_BYTES)
    sock.bind((name, _ETH_P_ALL))
    return sock


def main() -> None:
    """`python -m emulator.link JSON`: wires between interfaces of this namespace.

    JSON: {"wires": [[interface, interface], …], "loss", "delay_s", "seed", "capacity", "threads"}. Prints "ready", then
    for every line on stdin a JSON line of counts: a row by COUNTS for each direction, a wire's two together. Ends with
    stdin.
    """
    plan = json.loads(sys.argv[1])
    sockets = [[open_interface(name) for name in wire] for wire in plan["wires"]]
    stop = os.eventfd(0)
    groups = []
    for thread in range(plan["threads"]):
        mine = range(thread, len(sockets), plan["threads"])
        pairs = []
        for a, b in (sockets[wire] for wire in mine):
            pairs += [(a.fileno(), b.fileno()), (b.fileno(), a.fileno())]
        links = new_links(
            pairs,
            loss=plan["loss"],
            delay_s=plan["delay_s"],
            seed=plan["seed"],
            numbers=[2 * wire + direction for wire in mine for direction in (0, 1)],
            capacity=plan["capacity"],
        )
        compile_once(serve, links, stop)
        groups.append(links)
    threads = [threading.Thread(target=serve, args=(links, stop), daemon=True) for links in groups]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for _ in sys.stdin:
        counts = np.zeros((2 * len(sockets), len(COUNTS)), np.int64)
        for i, links in enumerate(groups):
            counts[2 * i :: 2 * len(groups)] = links.counts[0::2]
            counts[2 * i + 1 :: 2 * len(groups)] = links.counts[1::2]
        print(json.dumps(counts.tolist()), flush=True)
    os.eventfd_write(stop, 1)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
