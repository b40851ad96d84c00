"""One rank of a measurement: all-reduces when its parent says so, times each repeat and checks every result.

The parent speaks first. To `Prepare` it gets the message back; to `Run` too, once the tensors hold their input again,
so that it knows when all ranks are ready; to `GO` the `Run` once more when the sums are there, and to `CHECK` a
`Sample`. So no rank compares sums, which keeps a core busy, while another still waits for the last of its own. A
`Failure` may come in place of any answer.

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

from emulator.bench.sizes import Case
from emulator.bench.sparsity import Sparsity
from host_agent.agent import WIRES, HostAgent
from host_agent.density import Choice
from host_agent.reach import TRANSPORTS
from switchml.errors import ConfigError, JobError
from switchml.runtime.jit import compile_once, kernel

SWITCHML, DENSE, GLOO = "switchml", "dense", "gloo"
"""DENSE: switchml too, with the blocks of zeros that SWITCHML skips."""
STRIDE = 4099
"""Elements between the inputs of neighbouring ranks; a prime, so that they meet the blocks of a packet differently."""
GO, CHECK = "go", "check"
GROUP_TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True)
class Target:
    """An aggregator: its control port's HOST:PORT, how to reach it, and the payload of its packets."""

    address: str
    transport: str = "auto"
    payload_bytes: int = 1024


@dataclass(frozen=True)
class Settings:
    """What all ranks know. `targets`: the aggregators, by the names that they have among `backends`. `inputs`, `sums`:
    files of float32 and of float64 with the exact sums of all ranks."""

    workers: int
    wire: str
    targets: dict[str, Target]
    job: str
    backends: tuple[str, ...]
    inputs: str
    sums: str
    store: str
    """A file that Gloo's ranks find each other through."""
    sparsity: Sparsity | None = None
    """Which blocks of a rank's tensor are zeros."""

    @property
    def sparse(self) -> Choice:
        """How the agents send tensors for SWITCHML."""
        return self.sparsity.choice if self.sparsity else Choice()


def zeros_of(settings: Settings, rank: int, elements: int) -> np.ndarray | None:
    """bool[elements]: where this rank's tensor is zero whatever its input says; None if nowhere."""
    if settings.sparsity is None:
        return None
    owned = settings.sparsity.owned(settings.workers, _input_elements(settings))[rank]
    return ~settings.sparsity.elements_of(owned, elements)


def _input_elements(settings: Settings) -> int:
    """Of the longest tensor, which all others are beginnings of."""
    return os.stat(settings.sums).st_size // 8


def fill(values: np.ndarray, inputs: np.ndarray, zeros: np.ndarray | None) -> None:
    """A rank's tensor before an all-reduce."""
    values[:] = inputs[: len(values)]
    if zeros is not None:
        values[zeros] = 0


@dataclass(frozen=True)
class Prepare:
    case: Case


@dataclass(frozen=True)
class Run:
    backend: str


@dataclass(frozen=True)
class Joined:
    """`transports`: what the agents have chosen, by backend."""

    transports: dict[str, str]


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
    agents: dict[str, HostAgent] = {}
    reducers: dict[str, Callable[[list[np.ndarray], bool], None]] = {}
    for backend in settings.backends:
        if backend == GLOO:
            reducers[backend] = _gloo(rank, settings)
            continue
        if backend == DENSE:  # the same agent
            reducers[backend] = _switchml(agents[SWITCHML], Choice())
            continue
        target = settings.targets[backend]
        agents[backend] = HostAgent.join(
            target.address,
            job=settings.job,
            rank=rank,
            world_size=settings.workers,
            transport=target.transport,
            payload_bytes=target.payload_bytes,
            wire=settings.wire,
        )
        reducers[backend] = _switchml(agents[backend], settings.sparse)
    pipe.send(Joined({backend: agent.transport for backend, agent in agents.items()}))
    case, values, zeros = Case((), False, 0, 0), np.empty(0, np.float32), None
    while (message := pipe.recv()) is not None:
        if isinstance(message, Prepare):
            case = message.case
            values = np.empty(case.elements, np.float32)
            zeros = zeros_of(settings, rank, case.elements)
            edges = np.cumsum((0, *case.parts))
            parts = [values[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]
            pipe.send(message)
        else:
            fill(values, inputs, zeros)
            pipe.send(message)
            assert pipe.recv() == GO
            agent = agents.get(SWITCHML if message.backend == DENSE else message.backend)
            usage, counted = _usage(), agent.stats() if agent is not None else {}
            started = time.perf_counter()
            reducers[message.backend](parts, case.overlapped)
            seconds = time.perf_counter() - started
            spent, counts = _growth(usage, _usage()), _growth(counted, agent.stats() if agent is not None else {})
            pipe.send(message)
            assert pipe.recv() == CHECK
            error, largest, checksum = compare(values, sums[: len(values)])
            pipe.send(Sample(seconds, float(error), float(largest), int(checksum), spent, counts))
    for agent in agents.values():
        agent.leave()


def _switchml(agent: HostAgent, sparse: Choice) -> Callable[[list[np.ndarray], bool], None]:
    def reduce(parts: list[np.ndarray], overlapped: bool) -> None:
        if overlapped:
            for handle in [agent.allreduce(part, out=part, async_op=True, sparse=sparse) for part in parts]:
                handle.wait()
        else:
            for part in parts:
                agent.allreduce(part, out=part, sparse=sparse)

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
