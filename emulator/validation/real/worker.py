"""One rank of `switchml validate real`: trains the digits model with DDP in its host's namespace, when told, and
reports how long each step took.

The parent speaks first. `Backend` makes the process group and the model anew; `Steps` runs so many steps; each is
answered by itself or by `Times`. A `Failure` may come in place of any answer.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from multiprocessing import connection

from emulator.bench import rank_process
from emulator.bench.rank import GROUP_TIMEOUT
from host_agent.training.data import BatchOrder, Digits

STORE_PORT = 29500


@dataclass(frozen=True)
class Place:
    """Where a rank lives, and what it trains. `store`: rank 0's address. `digits`: the file of training.data."""

    rank: int
    workers: int
    namespace: str
    interface: str
    store: str
    aggregator: str
    digits: str
    batch_size: int


@dataclass(frozen=True)
class Backend:
    """`port`: of the rendezvous, another one each time."""

    name: str
    port: int


@dataclass(frozen=True)
class Steps:
    """`is_alone`: without all-reduces (DDP's no_sync). `is_first`: training begins anew, so that runs at all rates
    reduce the same gradients."""

    count: int
    is_alone: bool
    is_first: bool = False


@dataclass(frozen=True)
class Times:
    """Seconds of each step, and of the process's CPU for all of them. `gradient_bytes`: what a step all-reduces.
    `sent`: packets that this rank's agent sent for them, 0 with Gloo."""

    seconds: list[float]
    cpu_s: float
    gradient_bytes: int
    sent: int


def main(place: Place, pipe: connection.Connection) -> None:
    """Entry point of a rank's process."""
    rank_process.run(place.rank, place.namespace, pipe, lambda: _serve(place, pipe))


def _serve(place: Place, pipe: connection.Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    os.environ["SWITCHML_AGGREGATOR"], os.environ["SWITCHML_TRANSPORT"] = place.aggregator, "udp"
    import torch

    torch.set_num_threads(1)
    training = None
    while (message := pipe.recv()) is not None:
        if isinstance(message, Backend):
            if training is not None:
                torch.distributed.destroy_process_group()
            torch.distributed.init_process_group(
                message.name,
                init_method=f"tcp://{place.store}:{message.port}",
                rank=place.rank,
                world_size=place.workers,
                timeout=GROUP_TIMEOUT,
            )
            training = _Training(place)
            pipe.send(message)
        else:
            pipe.send(training.run(message))
    if training is not None:
        torch.distributed.destroy_process_group()


class _Training:
    def __init__(self, place: Place):
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from host_agent.training.model import DigitsNet

        digits = Digits.restore(place.digits)
        self._images, self._labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
        torch.manual_seed(1)
        self._model = DistributedDataParallel(DigitsNet())
        self._start = [parameter.detach().clone() for parameter in self._model.parameters()]
        self._order = BatchOrder(rank=place.rank, workers=place.workers, batch_size=place.batch_size, seed=1)
        self._begin()
        self._gradient_bytes = sum(4 * parameter.numel() for parameter in self._model.parameters())

    def _begin(self) -> None:
        import torch

        with torch.no_grad():
            for parameter, value in zip(self._model.parameters(), self._start, strict=True):
                parameter.copy_(value)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        self._step = 0

    def run(self, steps: Steps) -> Times:
        if steps.is_first:
            self._begin()
        seconds, spent, sent = [], time.process_time(), self._sent()
        for _ in range(steps.count):
            before = time.perf_counter()
            self._train(steps.is_alone)
            seconds.append(time.perf_counter() - before)
        return Times(seconds, time.process_time() - spent, self._gradient_bytes, self._sent() - sent)

    @staticmethod
    def _sent() -> int:
        import torch

        agent = getattr(torch.distributed.group.WORLD, "agent", None)
        return agent.stats()["sent"] if agent is not None else 0

    def _train(self, is_alone: bool) -> None:
        import torch
        from torch.nn import functional

        chosen = torch.from_numpy(self._order.indices(self._step))
        self._step += 1
        self._optimizer.zero_grad()
        with self._model.no_sync() if is_alone else contextlib.nullcontext():
            loss = functional.cross_entropy(self._model(self._images[chosen]), self._labels[chosen])
            loss.backward()
        self._optimizer.step()
        loss.item()
