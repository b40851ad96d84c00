"""Sparse streams over links of a limited rate, in virtual time: how near they come to the bound that the union of the
blocks sets. Packets queue in front of links; nobody's processor takes time."""

import heapq

import numpy as np
import pytest

from switchml.control.allocation import default_slots
from switchml.protocol.pool import Pool
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker

RATE_BPS, DELAY_NS, LOOK_NS = 200e6, 50_000, 500_000
FRAME_BYTES = 14 + 20 + 8
NEVER = np.iinfo(np.int64).max


def seconds_of(tensors: list[np.ndarray], blocks: Sparse) -> tuple[float, float]:
    """Virtual time of one all-reduce, and the share of packets sent again: each host has a link up and a link down,
    all at RATE_BPS."""
    n, slots = len(tensors), default_slots(len(tensors))
    pool = Pool(workers=n, slots=slots, job_tag=1)
    workers = [Worker(rank=rank, workers=n, slots=slots, job_tag=1, isn=0) for rank in range(n)]
    for worker, x in zip(workers, tensors, strict=True):
        worker.start(x.ctypes.data, x.ctypes.data, x.size, "float32", blocks=blocks)
    free = {"up": [0] * n, "down": [0] * n}
    looks = [-1] * n
    events = [(0, rank, "look", rank, b"") for rank in range(n)]
    number = n

    def at(time: int, kind: str, rank: int, data: bytes = b"") -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (time, number, kind, rank, data))

    def travel(kind: str, rank: int, data: bytes, now: int) -> None:
        took = int((len(data) + FRAME_BYTES) * 8 / RATE_BPS * 1e9)
        free[kind][rank] = max(free[kind][rank], now) + took
        at(free[kind][rank] + DELAY_NS, kind, rank, data)

    while not all(worker.counters["completed"] for worker in workers):
        now, _, kind, rank, data = heapq.heappop(events)
        if kind == "up":
            outcome = pool.receive(rank, data)
            if outcome.packet:
                for receiver in range(n) if outcome.action == "multicast" else [rank]:
                    travel("down", receiver, outcome.packet, now)
            continue
        for packet in workers[rank].receive([data] if data else [], now):
            travel("up", rank, packet, now)
        if workers[rank].deadline != NEVER and looks[rank] <= now:
            looks[rank] = max(workers[rank].deadline, now + LOOK_NS)
            at(looks[rank], "look", rank)
    resent, sent = (sum(int(worker.counters[name]) for worker in workers) for name in ("retransmitted", "sent"))
    return now / 1e9, resent / (sent - resent)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("overlap", ["random", "full"])
@pytest.mark.parametrize(("density", "positions"), [(0.1, 4096), (0.01, 32768)])
@pytest.mark.parametrize("workers", [4, 8])
def test_most_of_the_union_bound_is_reached(workers, density, positions, overlap):
    generator = np.random.default_rng(workers)
    owned = generator.random((workers, positions)) < density
    if overlap == "full":
        owned[:] = owned[0]
    tensors = [np.repeat(row, 256).astype(np.float32) for row in owned]
    seconds, resent = seconds_of(tensors, Sparse(256))
    assert all((x == np.repeat(owned.sum(0), 256)).all() for x in tensors)
    bound_s = int(owned.any(0).sum()) * (1024 + 10 + FRAME_BYTES) * 8 / RATE_BPS
    assert 0.93 < bound_s / seconds < 1
    assert resent < 0.01
