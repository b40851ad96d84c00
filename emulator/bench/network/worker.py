"""One rank of `switchml bench network`: enters its host's namespace, joins over its link, and all-reduces when told.

The conversation with the parent, the inputs and the check of the sums are rank.py's; what differs is where it runs, how
the ranks of Gloo meet, and that every repeat is one call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import numpy as np

from emulator.bench import rank as ranks
from emulator.bench import rank_process
from emulator.bench.rank import CHECK, GLOO, GO, GROUP_TIMEOUT, SWITCHML, Joined, Prepare, Sample, Settings
from host_agent.agent import HostAgent
from host_agent.density import Choice

STORE_PORT = 29500
"""Where rank 0 keeps Gloo's rendezvous; the namespace has no other user."""
GAUGES = ("rtt_s", "rto_s", "window")
"""What `HostAgent.stats()` tells of the present; all else there are counters."""


@dataclass(frozen=True)
class Place:
    """Where a rank lives. `store`: rank 0's address in the experiment's network."""

    namespace: str
    interface: str
    store: str
    payload_bytes: int
    slots: int


def main(rank: int, settings: Settings, place: Place, pipe: connection.Connection) -> None:
    """Entry point of a rank's process."""
    rank_process.run(rank, place.namespace, pipe, lambda: _serve(rank, settings, place, pipe))


def _serve(rank: int, settings: Settings, place: Place, pipe: connection.Connection) -> None:
    sums = np.memmap(settings.sums, np.float64, "r")
    inputs = np.memmap(settings.inputs, np.float32, "r")[rank * ranks.STRIDE :]
    agent = _join(rank, settings, place) if SWITCHML in settings.targets else None
    reducers: dict[str, Callable[[np.ndarray], object]] = {}
    for backend in settings.backends:
        if backend == GLOO:
            reducers[backend] = _gloo(rank, settings, place)
        elif agent is not None:
            sparse = settings.sparse if backend == SWITCHML else Choice()
            reducers[backend] = lambda values, sparse=sparse: agent.allreduce(values, out=values, sparse=sparse)
    pipe.send(Joined({SWITCHML: agent.transport} if agent else {}))
    values, zeros = np.empty(0, np.float32), None
    while (message := pipe.recv()) is not None:
        if isinstance(message, Prepare):
            values = np.empty(message.case.elements, np.float32)
            zeros = ranks.zeros_of(settings, rank, len(values))
            pipe.send(message)
            continue
        ranks.fill(values, inputs, zeros)
        pipe.send(message)
        assert pipe.recv() == GO
        before, spent = agent.stats() if agent else {}, time.process_time()
        started = time.perf_counter()
        reducers[message.backend](values)
        seconds = time.perf_counter() - started
        usage = {"cpu_s": time.process_time() - spent}
        counts = _since(before, agent.stats() if agent else {})
        pipe.send(message)
        assert pipe.recv() == CHECK
        error, largest, checksum = ranks.compare(values, sums[: len(values)])
        pipe.send(Sample(seconds, float(error), float(largest), int(checksum), usage, counts))
    if agent is not None:
        agent.leave()


def _join(rank: int, settings: Settings, place: Place) -> HostAgent:
    target = settings.targets[SWITCHML]
    return HostAgent.join(
        target.address,
        job=settings.job,
        rank=rank,
        world_size=settings.workers,
        payload_bytes=place.payload_bytes,
        slots=place.slots,
        transport=target.transport,
        wire=settings.wire,
    )


def _gloo(rank: int, settings: Settings, place: Place) -> Callable[[np.ndarray], object]:
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # it warns of hosts without a name, and all of ours are
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{place.store}:{STORE_PORT}",
        rank=rank,
        world_size=settings.workers,
        timeout=GROUP_TIMEOUT,
    )
    return lambda values: dist.all_reduce(torch.from_numpy(values))


def _since(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in after.items() if isinstance(value, (int, float))}
    return {name: value if name in GAUGES else value - before.get(name, 0) for name, value in numbers.items()}
