"""One rank of `switchml validate peers`: trains with DDP, when told, and reports how long each step took. It is the
same script whether all ranks are real, each in its host's namespace, or this is the only one and the others are
emulated.

The parent speaks first. `Join` makes the process group and the model anew; `Steps` runs so many steps, `Reduce`
all-reduces vectors; each is answered by itself or by its result. A `Failure` may come in place of any answer.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

from emulator.bench import rank_process
from emulator.bench.rank import GROUP_TIMEOUT
from emulator.peers.settings import PREFIX

INPUTS, HIDDEN, CLASSES = 512, 512, 10
BUCKETS = 4
"""How many DDP makes of the gradients, about."""


@dataclass(frozen=True)
class Place:
    """Where a rank lives. `namespace`: "" where it needs no network."""

    rank: int
    workers: int
    namespace: str = ""
    interface: str = ""
    store: str = ""
    aggregator: str = ""


@dataclass(frozen=True)
class Join:
    """`port`: of the rendezvous, another one each time. `variables`: of the environment, besides."""

    backend: str
    port: int
    layers: int
    batch: int
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """`is_alone`: without all-reduces (DDP's no_sync)."""

    count: int
    is_alone: bool


@dataclass(frozen=True)
class Reduce:
    """`count` times `size_bytes` in `pieces` all-reduces at once, as DDP has its buckets reduced."""

    size_bytes: int
    pieces: int
    count: int


@dataclass(frozen=True)
class Times:
    """Seconds of each step or all-reduce; `cpu_s`: of the training thread, for all of them. `report`: of the emulated
    world, where there is one."""

    seconds: list[float]
    cpu_s: float = 0.0
    gradient_bytes: int = 0
    report: dict[str, Any] = field(default_factory=dict)


def main(place: Place, pipe: connection.Connection) -> None:
    """Entry point of a rank's process."""
    rank_process.run(place.rank, place.namespace, pipe, lambda: _serve(place, pipe))


def _serve(place: Place, pipe: connection.Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface or "lo"
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    os.environ["SWITCHML_AGGREGATOR"], os.environ["SWITCHML_TRANSPORT"] = place.aggregator, "udp"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    training = None
    while (message := pipe.recv()) is not None:
        if isinstance(message, Join):
            if training is not None:
                dist.destroy_process_group()
            for name in [name for name in os.environ if name.startswith(PREFIX)]:
                del os.environ[name]
            os.environ.update(message.variables)
            dist.init_process_group(
                message.backend,
                init_method=f"tcp://{place.store or '127.0.0.1'}:{message.port}",
                rank=place.rank,
                world_size=place.workers,
                timeout=GROUP_TIMEOUT,
            )
            training = Training(message.layers, message.batch)
            pipe.send(message)
        elif isinstance(message, Reduce):
            pipe.send(Times(_reduce(message)))
        else:
            pipe.send(training.run(message))
    if training is not None:
        dist.destroy_process_group()


def _reduce(message: Reduce) -> list[float]:
    import torch
    import torch.distributed as dist

    tensors = torch.ones(message.size_bytes // 4).chunk(message.pieces)
    seconds = []
    for _ in range(message.count):
        dist.barrier()
        before = time.perf_counter()
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        seconds.append(time.perf_counter() - before)
    return seconds


class Training:
    """A perceptron of so many equal layers on random vectors, with DDP."""

    def __init__(self, layers: int, batch: int):
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(1)
        body = [part for _ in range(layers) for part in (nn.Linear(HIDDEN, HIDDEN), nn.ReLU())]
        model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), *body, nn.Linear(HIDDEN, CLASSES))
        self._gradient_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
        self._model = DistributedDataParallel(model, bucket_cap_mb=self._gradient_bytes / BUCKETS / 2**20)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        torch.manual_seed(2 + dist.get_rank())
        self._inputs, self._labels = torch.randn(batch, INPUTS), torch.randint(0, CLASSES, (batch,))

    def run(self, steps: Steps) -> Times:
        """Train, and take the time of each step."""
        import torch.distributed as dist

        seconds, spent_s = [], time.thread_time()
        for _ in range(steps.count):
            before = time.perf_counter()
            self._step(steps.is_alone)
            seconds.append(time.perf_counter() - before)
        world = getattr(dist.group.WORLD, "world", None)
        report = {}
        if world is not None:
            from emulator.peers.report import as_json

            report = as_json(world)
            report["iteration_seconds"] = report["iteration_seconds"][-steps.count :]
        return Times(seconds, time.thread_time() - spent_s, self._gradient_bytes, report)

    def _step(self, is_alone: bool) -> None:
        from torch.nn import functional

        self._optimizer.zero_grad()
        with self._model.no_sync() if is_alone else contextlib.nullcontext():
            functional.cross_entropy(self._model(self._inputs), self._labels).backward()
        self._optimizer.step()
