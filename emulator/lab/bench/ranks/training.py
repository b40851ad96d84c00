"""A rank that trains a small model with DDP, optionally profiled, and reports the duration of each step. With the
backend `switchml-emulated` it is the only real rank, and all others are emulated.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emulator.lab.bench.ranks.process import GROUP_TIMEOUT, RankPlace
from emulator.peers.settings import PREFIX

if TYPE_CHECKING:
    import torch
    from torch import nn

WARMUP_STEPS = 3
"""Steps before a profile: DDP's first step broadcasts and its second rebuilds the buckets; the profiler's first steps
run with cold caches."""
_CLASSES = 10


@dataclass(frozen=True)
class DigitsModel:
    """The convolutional network of `switchml train` on handwritten digits. `file`: a data file of
    host_agent.training.data. `batch_size`: images per rank."""

    file: str
    batch_size: int


@dataclass(frozen=True)
class LayerStack:
    """A stack of `layers` linear layers of `width` by `width`, on `batch` random vectors of `inputs` numbers.

    `device_s`: emulated accelerator time of a layer's forward pass, half of its backward pass; the thread sleeps for
    it, as it would wait for a device, so ranks do not compete for cores. `slowness`: factor on this rank's own compute
    time. `bucket_cap_mb`: 0 for DDP's default.
    """

    layers: int
    width: int
    batch: int
    inputs: int = 64
    momentum: float = 0.9
    device_s: float = 0.0
    bucket_cap_mb: float = 0.0
    slowness: float = 1.0

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a step's all-reduces, in float32."""
        weights = self.inputs * self.width + self.layers * self.width**2 + self.width * _CLASSES
        biases = (1 + self.layers) * self.width + _CLASSES
        return 4 * (weights + biases)


@dataclass(frozen=True)
class TrainingJob:
    """Request to create a process group and a model, replacing the previous ones. `environment`: variables for this job
    alone."""

    backend: str
    rendezvous: str
    model: DigitsModel | LayerStack
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """Request to train for `count` steps. `is_alone`: without all-reduces (DDP's no_sync). `is_first`: from the initial
    parameters, so that runs at all link rates reduce the same gradients. `trace`: a folder for the profile, "" for
    none. Answer: `Times`."""

    count: int
    is_alone: bool = False
    is_first: bool = False
    trace: str = ""


@dataclass(frozen=True)
class AllReduces:
    """Request to run `count` rounds of concurrent float32 all-reduces of these sizes, as DDP reduces its buckets.
    Answer: `Times`."""

    sizes_bytes: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Times:
    """`seconds`: of each step or all-reduce. The other fields are totals: CPU seconds of the process and of the
    training thread, packets that the agent sent, and the emulated world's report. `gradient_bytes`: of one step;
    `bucket_bytes`: of its all-reduces, in their order."""

    seconds: list[float]
    process_cpu_s: float = 0.0
    thread_cpu_s: float = 0.0
    gradient_bytes: int = 0
    bucket_bytes: tuple[int, ...] = ()
    packets_sent: int = 0
    report: dict[str, Any] = field(default_factory=dict)


class TrainingRank:
    """A training rank. Answers TrainingJob first, then Steps and AllReduces."""

    def __init__(self, place: RankPlace):
        import torch

        torch.set_num_threads(1)
        self._place = place
        self._environment: dict[str, str] = {}
        self._training: _Training | None = None

    def answer(self, request: Any) -> Any:
        match request:
            case TrainingJob():
                self.leave()
                return self._join(request)
            case Steps():
                assert self._training is not None  # a TrainingJob comes first
                return self._training.run(request)
            case AllReduces():
                return Times(_reduce(request))

    def leave(self) -> None:
        import torch.distributed as dist

        if self._training is not None:
            self._training = None
            dist.destroy_process_group()

    def _join(self, job: TrainingJob) -> None:
        import torch.distributed as dist

        for name in [*self._environment, *(name for name in os.environ if name.startswith(PREFIX))]:
            os.environ.pop(name, None)
        self._environment = job.environment
        os.environ.update(job.environment)
        dist.init_process_group(
            job.backend,
            init_method=job.rendezvous,
            rank=self._place.rank,
            world_size=self._place.world_size,
            timeout=GROUP_TIMEOUT,
        )
        if isinstance(job.model, DigitsModel):
            self._training = _DigitsTraining(job.model, self._place)
        else:
            self._training = _StackTraining(job.model, self._place)


def _reduce(request: AllReduces) -> list[float]:
    import torch
    import torch.distributed as dist

    tensors = [torch.ones(size // 4) for size in request.sizes_bytes]
    seconds = []
    for _ in range(request.count):
        dist.barrier()
        started = time.perf_counter()
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        seconds.append(time.perf_counter() - started)
    return seconds


class _Training:
    """A DDP model and its optimizer; subclasses supply the batches."""

    def __init__(
        self, model: nn.Module, *, lr: float, momentum: float, slowness: float = 1.0, bucket_cap_mb: float = 0.0
    ):
        from torch.nn.parallel import DistributedDataParallel

        self._slowness = _Slowness(slowness, model)
        options: dict[str, Any] = {"bucket_cap_mb": bucket_cap_mb} if bucket_cap_mb else {}
        self._model = DistributedDataParallel(model, **options)
        self._start = [parameter.detach().clone() for parameter in model.parameters()]
        self._lr, self._momentum = lr, momentum
        self._gradient_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
        self._begin()

    def _batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of a step."""
        raise NotImplementedError

    def _begin(self) -> None:
        import torch

        with torch.no_grad():
            for parameter, value in zip(self._model.parameters(), self._start, strict=True):
                parameter.copy_(value)
        self._optimizer = torch.optim.SGD(self._model.parameters(), self._lr, self._momentum)
        self._step = 0

    def run(self, request: Steps) -> Times:
        """Train and time each step."""
        if request.is_first:
            self._begin()
        process_s, thread_s, sent = time.process_time(), time.thread_time(), _packets_sent()
        if request.trace:
            from host_agent.profile import switchml_profile

            with switchml_profile(request.trace, skip=WARMUP_STEPS, steps=request.count, execution_trace=False):
                seconds = [self._timed_step(request.is_alone) for _ in range(WARMUP_STEPS + request.count)]
        else:
            seconds = [self._timed_step(request.is_alone) for _ in range(request.count)]
        return Times(
            seconds[-request.count :],
            time.process_time() - process_s,
            time.thread_time() - thread_s,
            self._gradient_bytes,
            self._bucket_bytes(),
            _packets_sent() - sent,
            _world_report(request.count),
        )

    def _bucket_bytes(self) -> tuple[int, ...]:
        """Sizes of DDP's buckets as rebuilt after the first step; before that, the initially planned sizes."""
        known = self._model._get_ddp_logging_data()
        return tuple(map(int, (known.get("rebuilt_bucket_sizes") or known["bucket_sizes"]).split(",")))

    def _timed_step(self, is_alone: bool) -> float:
        from torch.nn import functional

        started = time.perf_counter()
        inputs, labels = self._batch(self._step)
        self._step += 1
        self._slowness.mark()
        self._optimizer.zero_grad()
        with self._model.no_sync() if is_alone else contextlib.nullcontext():
            loss = functional.cross_entropy(self._model(inputs), labels)
            self._slowness.pay()
            loss.backward()
        self._slowness.mark()  # the time before this was spent waiting for the all-reduces
        self._optimizer.step()
        self._slowness.pay()
        return time.perf_counter() - started


class _DigitsTraining(_Training):
    def __init__(self, model: DigitsModel, place: RankPlace):
        import torch

        from host_agent.training.data import BatchOrder, Digits
        from host_agent.training.model import DigitsNet

        digits = Digits.restore(Path(model.file))
        self._images, self._labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
        self._order = BatchOrder(rank=place.rank, workers=place.world_size, batch_size=model.batch_size, seed=1)
        torch.manual_seed(1)
        super().__init__(DigitsNet(), lr=0.05, momentum=0.9)

    def _batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        chosen = torch.from_numpy(self._order.indices(step))
        return self._images[chosen], self._labels[chosen]


class _StackTraining(_Training):
    def __init__(self, stack: LayerStack, place: RankPlace):
        import torch
        from torch import nn

        from emulator.lab.bench.ranks.pause import Device

        torch.manual_seed(1)
        layers: list[nn.Module] = [nn.Linear(stack.inputs, stack.width), nn.ReLU()]
        for _ in range(stack.layers):
            layers += [nn.Linear(stack.width, stack.width), nn.ReLU()]
            layers += [Device(stack.device_s)] if stack.device_s else []
        super().__init__(
            nn.Sequential(*layers, nn.Linear(stack.width, _CLASSES)),
            lr=0.01,
            momentum=stack.momentum,
            slowness=stack.slowness,
            bucket_cap_mb=stack.bucket_cap_mb,
        )
        torch.manual_seed(2 + place.rank)
        self._samples = torch.randn(stack.batch, stack.inputs), torch.randint(0, _CLASSES, (stack.batch,))

    def _batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._samples


def _packets_sent() -> int:
    """Packets that this rank's agent has sent since it joined; 0 with Gloo."""
    import torch.distributed as dist

    agent = getattr(dist.group.WORLD, "agent", None)
    return agent.stats()["sent"] if agent is not None else 0


def _world_report(steps: int) -> dict[str, Any]:
    """Report of the emulated world about the latest steps; empty where all ranks are real."""
    import torch.distributed as dist

    world = getattr(dist.group.WORLD, "world", None)
    if world is None:
        return {}
    from emulator.peers.report import as_json

    report = as_json(world)
    return report | {"iteration_seconds": report["iteration_seconds"][-steps:]}


class _Slowness:
    """Slows a rank down without using CPU: after each layer and each gradient it sleeps for a multiple of the elapsed
    compute time."""

    def __init__(self, factor: float, model: nn.Module):
        self._more = factor - 1.0
        self._since = time.perf_counter()
        if self._more <= 0:
            return
        for layer in model.children():
            layer.register_forward_hook(lambda *_: self.pay())
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.pay())

    def mark(self) -> None:
        """Restart the measured interval now."""
        self._since = time.perf_counter()

    def pay(self) -> None:
        """Sleep in proportion to the time since the last mark or payment."""
        if self._more > 0:
            time.sleep(self._more * (time.perf_counter() - self._since))
            self.mark()
