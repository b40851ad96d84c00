"""One rank of a measurement: all-reduces when its parent says so, times each repeat and checks every result.

The parent speaks first. To `Prepare` it gets the message back; to `Run` too, once the tensors hold their input again,
so that it knows when all ranks are ready; to `GO` a `Sample`. A `Failure` may come in place of any answer.

Rank r's element i is `inputs[i + r * STRIDE]`: any number of ranks share one array, no two send the same block, and
the exact sums (float64) are known before.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection, parent_process
from typing import Any

import numpy as np

from host_agent.agent import WIRES, HostAgent
from host_agent.reach import TRANSPORTS
from host_agent.bench.sizes import Case
from switchml.errors import ConfigError, JobError
from switchml.jit import compile_once, kernel

SWITCHML, GLOO = "switchml", "gloo"
STRIDE = 4099
"""Elements between the inputs of neighbouring ranks; a prime, so that they meet the blocks of a packet differently."""
GO = "go"
GROUP_TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True)
class Settings:
    """What all ranks know. `inputs`, `sums`: files of float32 and of float64 with the exact sums of all ranks."""

    workers: int
    transport: str
    wire: str
    address: str
    job: str
    backends: tuple[str, ...]
    inputs: str
    sums: str
    store: str
    """A file that Gloo's ranks find each other through."""


@dataclass(frozen=True)
class Prepare:
    case: Case


@dataclass(frozen=True)
class Run:
    backend: str


@dataclass(frozen=True)
class Joined:
    """`transport`: what the agent has chosen."""

    transport: str


@dataclass(frozen=True)
class Sample:
    """One repeat on one rank."""

    seconds: float
    """Of the whole repeat."""
    error: float
    """The largest absolute difference to an exact sum."""
    largest: float
    """The largest magnitude of an exact sum."""
    checksum: int
    """Equal on two ranks whose results have the same bits."""
    usage: dict[str, float] = field(default_factory=dict)
    """user_s, system_s, voluntary and involuntary context switches of the process in this repeat."""
    agent: dict[str, float] = field(default_factory=dict)
    """By how much `HostAgent.stats()` grew."""


@dataclass(frozen=True)
class Failure:
    """A rank can't go on. `is_consequence`: it only suffers from what happened to another one."""

    rank: int
    kind: str
    message: str
    is_consequence: bool


@kernel
def compare(result, sums):
    """(largest |result - sum|, largest |sum|, checksum of result's bits). float32[k] and float64[k]."""
    error, largest, checksum = 0.0, 0.0, np.uint64(0)
    bits = result.view(np.uint32)
    for i in range(result.size):
        difference = abs(np.float64(result[i]) - sums[i])
        if not difference <= error:  # NaN too
            error = difference
        largest = max(largest, abs(sums[i]))
        checksum = checksum * np.uint64(0x100000001B3) + np.uint64(bits[i])
    return error, largest, checksum


def warm_up() -> None:
    """Have `compare` compiled."""
    compile_once(compare, np.zeros(1, np.float32), np.zeros(1))


def check_choice(transport: str, wire: str) -> None:
    """Raises ConfigError if the agent does not offer this transport or this wire."""
    for name, value, offered in (("transport", transport, TRANSPORTS), ("wire", wire, WIRES)):
        if value not in offered:
            raise ConfigError(f"--{name} {value}: the agent offers {', '.join(offered)}")


def main(rank: int, settings: Settings, pipe: connection.Connection) -> None:
    """Entry point of a rank's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides what ends when
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    try:
        _serve(rank, settings, pipe)
    except (EOFError, ConnectionError):
        os._exit(1)  # the parent is gone or does not want us any more
    except Exception as error:
        message = (str(error).strip() or type(error).__name__).split("\n")[0]
        consequence = (
            isinstance(error, JobError) or "onnection closed by peer" in message or "onnection reset" in message
        )
        pipe.send(Failure(rank, type(error).__name__, message, consequence))
        os._exit(1)  # leaving in good order would wait for ranks that wait for us


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _serve(rank: int, settings: Settings, pipe: connection.Connection) -> None:
    sums = np.memmap(settings.sums, np.float64, "r")
    inputs = np.memmap(settings.inputs, np.float32, "r")[rank * STRIDE :]
    agent = HostAgent.join(
        settings.address,
        job=settings.job,
        rank=rank,
        world_size=settings.workers,
        transport=settings.transport,
        wire=settings.wire,
    )
    reducers: dict[str, Callable[[list[np.ndarray], bool], None]] = {}
    for backend in settings.backends:
        reducers[backend] = _switchml(agent) if backend == SWITCHML else _gloo(rank, settings)
    pipe.send(Joined(agent.transport))
    case, values = Case((), False, 0, 0), np.empty(0, np.float32)
    while (message := pipe.recv()) is not None:
        if isinstance(message, Prepare):
            case = message.case
            values = np.empty(case.elements, np.float32)
            edges = np.cumsum((0, *case.parts))
            parts = [values[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]
            pipe.send(message)
        else:
            values[:] = inputs[: len(values)]
            pipe.send(message)
            assert pipe.recv() == GO
            usage, counted = _usage(), agent.stats()
            started = time.perf_counter()
            reducers[message.backend](parts, case.overlapped)
            seconds = time.perf_counter() - started
            spent, counts = _growth(usage, _usage()), _growth(counted, agent.stats())
            error, largest, checksum = compare(values, sums[: len(values)])
            pipe.send(Sample(seconds, float(error), float(largest), int(checksum), spent, counts))
    agent.leave()


def _switchml(agent: HostAgent) -> Callable[[list[np.ndarray], bool], None]:
    def reduce(parts: list[np.ndarray], overlapped: bool) -> None:
        if overlapped:
            for handle in [agent.allreduce(part, out=part, async_op=True) for part in parts]:
                handle.wait()
        else:
            for part in parts:
                agent.allreduce(part, out=part)

    return reduce


def _gloo(rank: int, settings: Settings) -> Callable[[list[np.ndarray], bool], None]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{settings.store}", rank=rank, world_size=settings.workers, timeout=GROUP_TIMEOUT
    )

    def reduce(parts: list[np.ndarray], overlapped: bool) -> None:
        tensors = [torch.from_numpy(part) for part in parts]
        if overlapped:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()
        else:
            for tensor in tensors:
                dist.all_reduce(tensor)

    return reduce


def _usage() -> dict[str, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {"user_s": own.ru_utime, "system_s": own.ru_stime, "voluntary": own.ru_nvcsw, "involuntary": own.ru_nivcsw}


def _growth(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items() if isinstance(value, (int, float))}
