"""One worker: trains over Gloo, then over the aggregator from the same seeds, and reports both."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from host_agent.ranks import Report
from host_agent.training.batches import plain_batches, planned_batches
from host_agent.training.data import BatchOrder, Digits

BACKENDS = ("gloo", "switchml")
"""The phases, in order."""
EVALUATIONS = 10
"""Number of evaluations on the test images by rank 0 during a phase."""
GROUP_TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True)
class TrainingSettings:
    """Options of the training."""

    workers: int
    steps: int
    batch_size: int
    learning_rate: float
    seed: int
    momentum: float = 0.9
    transport: str = "auto"
    wire: str = "int32"
    interface: str = "lo"
    """Gloo's network interface."""
    model: str = "cnn"
    """One of model.MODELS."""
    parallel: str = "ddp"
    """Parallelism of the model: one of parallel.KINDS."""
    pipeline: int = 1
    """Number of stages of the model, each with the same number of ranks."""
    codec: str | None = None
    memory: str | None = None
    file: str | None = None
    """A settings file (host_agent/pytorch/settings.py): DDP's arguments in both phases, codecs in the aggregator's."""
    backends: tuple[str, ...] = BACKENDS
    reorder_rate: float = 0.0
    """Share of packets that the agents reorder; the aggregator has its own option."""
    sparse: str = "off"
    """Sparse mode of the agents (density.choice)."""
    hierarchy: str = "none"
    """"node": the workers sum in shared memory first, and one of them uses the aggregator."""
    authenticate: bool = False
    """Whether packets carry authentication tags (docs/protocol.md, section 10)."""
    deadline_s: float = 0.0
    """Seconds that sums of gradients wait for a late rank (section 13); 0: no limit."""
    loader: str = "plain"
    """"planned": the images come from files, by a PlannedLoader with the same global batches (host_agent/loading)."""
    activations: str = "none"
    """Codec of saved activations (host_agent/memory)."""
    offload: bool = False
    """Whether to train with Adam with its states on the host (host_agent/memory)."""
    prune: float = 0.0
    """The share of weights that is pruned; above 0, the remaining ones are trained with Adam."""
    trace: Path | None = None
    """Folder for the phases' profiles, each in its own subfolder (host_agent/profile)."""


@dataclass(frozen=True)
class Step:
    """A step (counted from 1) completed by rank 0. `accuracy`: the latest on the test images."""

    backend: str
    step: int
    loss: float
    accuracy: float
    images_per_s: float
    """Rate over all workers."""
    choices: tuple[str, ...] = ()
    """With the codec `auto`: the buckets' codecs, in order."""


@dataclass(frozen=True)
class Phase:
    """Request to train over a backend. `aggregator`: its control port's HOST:PORT, "" for Gloo. Answer:
    `PhaseResult`."""

    backend: str
    aggregator: str


@dataclass(frozen=True)
class PhaseResult:
    """Results of a phase on one rank. `losses` are of its own batches; only rank 0 sends `parameters` and
    `accuracy`."""

    losses: list[float]
    seconds: float
    step_seconds: list[float]
    params_sha256: str
    accuracy: float | None = None
    parameters: np.ndarray | None = field(default=None, repr=False)
    agent: dict[str, float] = field(default_factory=dict)
    """`HostAgent.stats()`, with an agent."""
    codec: dict[str, float] = field(default_factory=dict)
    """Bytes and seconds of the codec, with a codec."""
    loading: dict[str, float] = field(default_factory=dict)
    """Counters of the planned loader, with one."""
    activations: dict[str, float] = field(default_factory=dict)
    """Bytes and seconds of activation compression, if used."""
    states: dict[str, float] = field(default_factory=dict)
    """Statistics of an optimizer whose states are on the host or pruned."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """With the codec `auto`: its changes, the same on all ranks."""


class DigitsRank:
    """Answers each `Phase`. `folder`: has the digits, and the workers' rendezvous files. `report`: called with each
    `Step`."""

    def __init__(self, rank: int, settings: TrainingSettings, folder: Path, report: Report):
        import torch

        self._rank, self._settings, self._folder, self._report = rank, settings, folder, report
        self._digits = Digits.restore(folder / "digits.npz")
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)

    def answer(self, phase: Phase) -> PhaseResult:
        import torch

        settings = self._settings
        os.environ["GLOO_SOCKET_IFNAME"] = settings.interface  # the host's own name may not resolve
        if phase.aggregator:
            os.environ |= {
                "SWITCHML_AGGREGATOR": phase.aggregator,
                "SWITCHML_TRANSPORT": settings.transport,
                "SWITCHML_WIRE": settings.wire,
                "SWITCHML_AUTHENTICATE": str(int(settings.authenticate)),
                "SWITCHML_DEADLINE": f"{settings.deadline_s:g}s" if settings.deadline_s else "",
                "SWITCHML_REORDER_RATE": str(settings.reorder_rate),
                "SWITCHML_SEED": str(settings.seed),
                "SWITCHML_SPARSE": settings.sparse,
                "SWITCHML_HIERARCHY": settings.hierarchy,
            }
        torch.distributed.init_process_group(
            phase.backend,
            init_method=f"file://{self._folder}/{phase.backend}",
            rank=self._rank,
            world_size=settings.workers,
            timeout=GROUP_TIMEOUT,
        )
        result = _train(phase.backend, self._rank, settings, self._digits, self._folder, self._report)
        torch.distributed.destroy_process_group()
        return result

    def leave(self) -> None:
        """Does nothing, since each phase has left its own job."""


def _train(
    backend: str, rank: int, settings: TrainingSettings, digits: Digits, folder: Path, report: Report
) -> PhaseResult:
    import torch

    from host_agent.pytorch.settings import apply, ddp_arguments, load
    from host_agent.training.parallel import PipelinedModel, SharedModel

    torch.manual_seed(settings.seed)
    file = load(settings.file) if settings.file else None
    stages, batch_size = settings.pipeline, settings.batch_size
    shared: SharedModel | PipelinedModel
    if stages > 1:
        shared = PipelinedModel(stages, batch_size, settings.model)
    else:
        shared = SharedModel(settings.parallel, ddp_arguments(file) if file else {}, settings.model)
    model: Any = shared.trained
    hook = None
    if backend == "switchml" and file is not None and file.codec:
        hook = apply(model, file)
    elif backend == "switchml" and settings.codec is not None:
        from host_agent.pytorch.comm_hooks import CodecState, codec_hook

        hook = CodecState(settings.codec, settings.memory, seed=settings.seed)
        hook.compressor.lr = settings.learning_rate
        model.register_comm_hook(hook, codec_hook)
    stragglers = None
    if backend == "switchml" and settings.deadline_s:
        from host_agent.pytorch.stragglers import StragglerState, straggler_hook

        stragglers = StragglerState()
        model.register_comm_hook(stragglers, straggler_hook)
    optimizer, states = _optimizer(model, shared.parameters, settings)
    activations = None
    if settings.activations != "none":
        from host_agent.memory import compressed_activations

        activations = compressed_activations(model, settings.activations, optimizer=optimizer)
    replicas = settings.workers // stages  # a pipeline's ranks share its batch
    order = BatchOrder(rank=rank % replicas, workers=replicas, batch_size=batch_size * stages, seed=settings.seed)
    if settings.loader == "planned":
        batches = planned_batches(order, settings.steps, folder, equal=stages > 1)
    else:
        batches = plain_batches(order, settings.steps, digits)
    evaluate_every = max(1, settings.steps // EVALUATIONS)
    losses, step_seconds, accuracy = [], [], 0.0
    torch.distributed.barrier()
    start = before = time.perf_counter()
    with _profiled(backend, settings):
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            losses.append(shared.backward(batch))
            optimizer.step()
            if stragglers is not None:
                for _ in stragglers.catch_up(settings.steps - stragglers.steps):
                    optimizer.step()
                    losses.append(losses[-1])  # a step of the other ranks' batches
                if stragglers.steps == settings.steps:
                    break
            if (step + 1) % evaluate_every == 0:
                whole = shared.whole()
                accuracy = _accuracy(whole, digits) if rank == 0 else 0.0
            now = time.perf_counter()
            step_seconds.append(now - before)
            before = now
            if rank == 0:
                rate = (step + 1) * settings.workers * settings.batch_size / (now - start)
                choices = tuple(hook.choices) if hook is not None else ()
                report(Step(backend, step + 1, losses[-1], accuracy, rate, choices))
    if stragglers is not None:
        torch.distributed.barrier()
    whole = shared.whole()
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in whole.parameters()]).numpy()
    agent = getattr(shared.group, "agent", None)
    return PhaseResult(
        losses,
        before - start,
        step_seconds,
        hashlib.sha256(parameters.tobytes()).hexdigest(),
        accuracy=_accuracy(whole, digits) if rank == 0 else None,
        parameters=parameters if rank == 0 else None,
        agent=agent.stats() if agent is not None else {},
        codec=hook.stats() if hook is not None else {},
        loading=batch.counters,
        activations=activations.stats() if activations is not None else {},
        states=states(),
        decisions=hook.decisions if hook is not None else [],
    )


def _optimizer(
    model: Any, parameters: list[Any], settings: TrainingSettings
) -> tuple[Any, Callable[[], dict[str, float]]]:
    """The optimizer, and a function that returns statistics of its states."""
    import torch

    if not (settings.offload or settings.prune):
        return torch.optim.SGD(parameters, lr=settings.learning_rate, momentum=settings.momentum), dict
    from host_agent.memory import OffloadedAdam, PrunedAdam, pruned

    options: dict[str, Any] = {"lr": settings.learning_rate, "betas": (settings.momentum, 0.999)}
    if settings.prune:
        left = pruned(model, settings.prune)
        return PrunedAdam(left, **options), left.stats
    offloaded = OffloadedAdam(parameters, **options)
    return offloaded, offloaded.stats


def _profiled(backend: str, settings: TrainingSettings) -> contextlib.AbstractContextManager[object]:
    """A context that profiles some steps of the training loop, if a trace is requested."""
    if settings.trace is None:
        return contextlib.nullcontext()
    from host_agent.profile import switchml_profile

    skip = min(3, settings.steps - 1)
    return switchml_profile(settings.trace / backend, skip=skip, steps=min(10, settings.steps - skip))


def _accuracy(model: Any, digits: Digits) -> float:
    """The share of test images that the model classifies correctly."""
    import torch

    model.eval()  # batch norms by their running means
    with torch.no_grad():
        guesses = model(torch.from_numpy(digits.test_images)).argmax(dim=1)
    model.train()
    return float((guesses == torch.from_numpy(digits.test_labels)).float().mean())
