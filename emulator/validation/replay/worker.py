"""One rank of `switchml validate replay`: trains a stack of equal layers with DDP in its host's namespace, when told,
with and without being profiled, and reports how long each step took.

The parent speaks first. `Job` makes the process group and the model anew, `Steps` runs so many steps; each is answered
by itself or by `Times`. A `Failure` may come in place of any answer.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from multiprocessing import connection

from emulator.bench import rank_process
from emulator.bench.rank import GROUP_TIMEOUT

INPUTS, CLASSES = 64, 10
WARMUP_STEPS = 3
"""DDP's first step broadcasts and its second builds its buckets anew; the profiler's first ones find cold caches."""


@dataclass(frozen=True)
class Home:
    """Where a rank lives. `store`: rank 0's address."""

    rank: int
    workers: int
    namespace: str
    interface: str
    store: str
    aggregator: str


@dataclass(frozen=True)
class Job:
    """What it trains: `layers` of `width` by `width`, on `batch` samples. `device_s`: what an accelerator would take
    for a layer's forward pass, and half of its backward pass; the thread sleeps for it, as it would wait for a device,
    so that ranks do not fight for cores. `slowness`: how many times as long a rank's own computing takes.
    `bucket_cap_mb`: 0 for DDP's default. `port`: of the rendezvous, another one each time."""

    backend: str
    port: int
    layers: int
    width: int
    batch: int
    device_s: float = 0.0
    bucket_cap_mb: float = 0.0
    slowness: float = 1.0


@dataclass(frozen=True)
class Steps:
    """`trace`: a folder for the profile, "" to run without it."""

    count: int
    trace: str = ""


@dataclass(frozen=True)
class Times:
    """Seconds of each step."""

    seconds: list[float]


def main(home: Home, pipe: connection.Connection) -> None:
    """Entry point of a rank's process."""
    rank_process.run(home.rank, home.namespace, pipe, lambda: _serve(home, pipe))


def _serve(home: Home, pipe: connection.Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = home.interface
    os.environ["SWITCHML_AGGREGATOR"], os.environ["SWITCHML_TRANSPORT"] = home.aggregator, "udp"
    import torch

    torch.set_num_threads(1)
    training = None
    while (message := pipe.recv()) is not None:
        if isinstance(message, Job):
            if training is not None:
                training = None
                torch.distributed.destroy_process_group()
            torch.distributed.init_process_group(
                message.backend,
                init_method=f"tcp://{home.store}:{message.port}",
                rank=home.rank,
                world_size=home.workers,
                timeout=GROUP_TIMEOUT,
            )
            training = _Training(message)
            pipe.send(message)
        else:
            pipe.send(training.run(message))
    if training is not None:
        torch.distributed.destroy_process_group()


class _Training:
    def __init__(self, job: Job) -> None:
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(1)
        layers: list[nn.Module] = [nn.Linear(INPUTS, job.width), nn.ReLU()]
        for _ in range(job.layers):
            layers += [nn.Linear(job.width, job.width), nn.ReLU()] + ([_device(job.device_s)] if job.device_s else [])
        model = nn.Sequential(*layers, nn.Linear(job.width, CLASSES))
        self._slowness = _Slowness(job.slowness, model)
        cap = {"bucket_cap_mb": job.bucket_cap_mb} if job.bucket_cap_mb else {}
        self._model = DistributedDataParallel(model, **cap)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._inputs = torch.randn(job.batch, INPUTS)
        self._labels = torch.randint(0, CLASSES, (job.batch,))

    def run(self, steps: Steps) -> Times:
        from host_agent.profile import switchml_profile

        if not steps.trace:
            return Times([self._timed() for _ in range(steps.count)])
        with switchml_profile(steps.trace, skip=WARMUP_STEPS, steps=steps.count, execution_trace=False):
            seconds = [self._timed() for _ in range(WARMUP_STEPS + steps.count)]
        return Times(seconds[WARMUP_STEPS:])

    def _timed(self) -> float:
        before = time.perf_counter()
        self._train()
        return time.perf_counter() - before

    def _train(self) -> None:
        from torch.nn import functional

        slowness = self._slowness
        slowness.mark()
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._model(self._inputs), self._labels)
        slowness.pay()
        loss.backward()
        slowness.mark()  # what came last was waiting for the all-reduces
        self._optimizer.step()
        slowness.pay()


def _device(seconds: float):
    """A layer that changes nothing and takes `seconds` forward, twice as long backward."""
    import torch

    class Device(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            time.sleep(seconds)
            return inputs.view_as(inputs)

        @staticmethod
        def backward(context, gradient):
            time.sleep(2 * seconds)
            return gradient

    class Layer(torch.nn.Module):
        def forward(self, inputs):
            return Device.apply(inputs)

    return Layer()


class _Slowness:
    """Makes a rank slow without taking a core from the others: after each layer and each gradient it sleeps for its
    share of what passed since."""

    def __init__(self, factor: float, model) -> None:
        self._more = factor - 1.0
        self._since = time.perf_counter()
        if self._more <= 0:
            return
        for layer in model:
            layer.register_forward_hook(lambda *_: self.pay())
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.pay())

    def mark(self) -> None:
        """Count from now."""
        self._since = time.perf_counter()

    def pay(self) -> None:
        """Sleep for what passed since."""
        if self._more > 0:
            time.sleep(self._more * (time.perf_counter() - self._since))
            self.mark()
