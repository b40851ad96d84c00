"""The result of an emulation: iteration time and its parts, and the cost of the whole training."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emulator.jobs import defaults, training
from emulator.jobs.costed import CostedJob
from emulator.jobs.description import Request
from emulator.jobs.interval import Interval, interval
from emulator.jobs.memory_options import MemoryOptions
from emulator.jobs.replay.engine import Replayed
from emulator.jobs.training import Progress
from emulator.jobs.workload import memory
from emulator.jobs.workload.loading.loading import Loading
from emulator.jobs.workload.models import Transformer


@dataclass(frozen=True)
class Emulation:
    """Result of an emulated job. Seconds, bytes, dollars."""

    request: Request
    plan: CostedJob
    memory: memory.Memory
    played: Replayed
    parts: dict[str, float]
    wall_s: float
    fold: str
    loading: Loading | None = None

    def __repr__(self) -> str:
        job = self.plan.job
        return f"<Emulation of {self.plan.model.name} on {job.gpus} {self.plan.cluster.name}: {self.iteration_s:.4g} s>"

    @property
    def iteration_s(self) -> float:
        return self.played.makespan_s

    @cached_property
    def interval(self) -> Interval:
        """Interval that contains four in five of similar measured jobs; empty where there is none."""
        spec = self.request
        unlike = {
            "stragglers or jitter": spec.noise.differ,
            "a data loader": bool(spec.data.loader),
            "compressed gradients": bool(spec.codec),
            "memory options": spec.memory != MemoryOptions(),
        }
        besides = ", ".join(name for name, is_so in unlike.items() if is_so)
        return interval(self.iteration_s, self.plan.model, self.plan.job, self.plan.cluster, besides)

    @property
    def samples_per_s(self) -> float:
        return self.plan.job.global_batch / self.iteration_s

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: model FLOPs without recomputation, as a share of all accelerators' peak. Causal
        attention counts half where its kernel skips the other half; frozen weights save the third of the FLOPs that
        computes their gradients."""
        job, model = self.plan.job, self.plan.model
        skips = isinstance(model, Transformer) and job.flash(model)
        row = job.document_tokens(model)
        flops = model.flops_per_sample(row, skips) * job.global_batch * job.sample_tokens(model) / row
        flops *= 2 / 3 if job.lora else 1.0
        return flops / self.iteration_s / (job.gpus * self.plan.cluster.device.peak(job.precision))

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all accelerators together; None unless the model is a language model."""
        model = self.plan.model
        return self.samples_per_s * self.plan.job.sample_tokens(model) if isinstance(model, Transformer) else None

    @property
    def flops_per_gpu(self) -> float:
        """Model FLOP/s of one accelerator."""
        return self.mfu * self.plan.cluster.device.peak(self.plan.job.precision)

    @property
    def steps(self) -> float:
        """Iterations of the whole training; 0: not specified."""
        job, run = self.plan.job, self.request.run
        return run.tokens / (job.global_batch * job.sample_tokens(self.plan.model)) if run.tokens else run.steps

    @cached_property
    def progress(self) -> Progress:
        """Progress of the training with failures and checkpoints."""
        run, gpus, seed = self.request.run, self.plan.job.gpus, self.request.noise.seed
        return training.progress(run, self.steps, self.iteration_s, self.checkpoint_s, gpus, seed)

    @property
    def goodput(self) -> float:
        """Average share of time spent on training that is not lost to failures and checkpoints."""
        return self.progress.goodput

    @property
    def checkpoint_s(self) -> float:
        """Seconds to write weights and optimizer states of one replica to shared storage."""
        if self.request.run.checkpoint_s:
            return self.request.run.checkpoint_s
        storage, job = self.plan.cluster.storage, self.plan.job
        size = memory.state_bytes(job) * self.plan.model.parameters
        writers = self.plan.cluster.nodes(job.tp * job.pp)
        return storage.latency_s + size / min(storage.total_bytes_per_s, writers * storage.node_bytes_per_s)

    @property
    def hours(self) -> float:
        """Wall-clock hours of the whole training."""
        return self.steps * self.iteration_s / self.goodput / 3600

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.plan.job.gpus

    @property
    def cost(self) -> float:
        """Rental cost in dollars."""
        return self.gpu_hours * self.plan.cluster.hourly_price

    @property
    def energy_kwh(self) -> float:
        """Energy with accelerators and hosts at design power: an upper bound that ignores idling, and excludes
        cooling."""
        cluster = self.plan.cluster
        watts = self.plan.job.gpus * cluster.device.watts + cluster.nodes(self.plan.job.gpus) * cluster.host_watts
        return self.hours * watts / 1000

    @property
    def assumed(self) -> dict[str, Any]:
        """Values of options that the description omits, by name."""
        return defaults.values_of(self.request.assumed, self.plan)

    def warnings(self) -> list[str]:
        """Return warnings about implausible results."""
        return defaults.warnings(self.plan, self.mfu, self.parts)

    def assumptions(self) -> list[str]:
        """Return all assumptions to report with the result."""
        folded = {"all": "tensor- and data-parallel ranks", "tensor": "tensor-parallel ranks", "none": "nothing"}
        lines = [*self.plan.assumptions, f"folded: {folded[self.fold]}"]
        if self.request.noise.stragglers and self.fold == "all":
            played, dp = len(self.played.graph.ranks) // self.plan.job.pp, self.plan.job.dp
            lines.append(
                f"stragglers: {played:,} data-parallel ranks stand for {dp:,}, by which of their stages are slow"
            )
        if self.request.nccl_tables:
            lines.append(f"all-reduces of the groups in {self.request.nccl_tables}: curves fitted to its tables")
        if self.request.job.schedule == "axonn":
            lines.append("message-driven: a pass computes first, then exchanges with tensor- and expert-parallel ranks")
        if (codec := self.plan.codec) is not None:
            lines.append(f"codec: {codec.title}: {codec.source}; relative error {codec.error:g} a step")
        lines += self.request.memory.assumptions()
        if self.loading:
            data = self.request.data
            lines.append(
                f"data: {data.samples:,} samples of {data.sample_bytes / 1e3:g} kB, loader {data.loader}, "
                f"{data.buffer_bytes / 1e9:g} GB of cache a rank, {data.epochs} epochs played: "
                f"{self.loading.hit_rate:.1%} hits"
            )
        else:
            lines.append("data is always there in time (no loader given)")
        if self.request.ignore_memory:
            lines.append("memory was not checked")
        if self.request.run.mtbf_hours:
            lines.append(self.progress.assumption(self.checkpoint_s))
        if given := ", ".join(f"{name.replace('_', '-')} {value}" for name, value in self.assumed.items()):
            lines.insert(0, f"not given: {given}")
        lines.append(self.interval.basis)
        price = self.plan.cluster.price_source or "no price known: no cost"
        lines.append(f"price: {price}; energy at design power")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the emulation as plain values."""
        job = self.plan.job

        def own(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        figures = {
            "model": self.plan.model.name,
            "cluster": self.plan.cluster.name,
            **{name: getattr(job, name) for name in ("gpus", "tp", "pp", "dp")},
            "batch": job.global_batch,
            **{name: getattr(job, name) for name in ("micro_batch", "schedule", "recompute", "allreduce")},
            **{name: getattr(job, name) for name in ("zero", "virtual_stages", "precision")},
            "implementation": job.implemented_by(self.plan.model),
            "choice": self.request.choice.to_json(job),
            "iteration_s": self.iteration_s,
            "interval": self.interval.to_json(),
            "parts": {name.replace(" ", "_"): seconds for name, seconds in self.parts.items()},
            "memory_bytes": self.memory.total,
            "memory": self.memory.parts(),
            **own("samples_per_s", "mfu"),
            "tflops_per_gpu": self.flops_per_gpu / 1e12,
            **self._of_training(),
            "ops": len(self.played.graph.ops),
            "events": self.played.events,
            "wall_s": self.wall_s,
            "assumed": self.assumed,
            "assumptions": self.assumptions(),
            "warnings": self.warnings(),
        }
        if self.loading:
            figures["loading"] = self.loading.to_json()
        if self.tokens_per_s is not None:
            figures |= {"tokens_per_s": self.tokens_per_s, "tokens_per_s_per_gpu": self.tokens_per_s / job.gpus}
        return figures

    def _of_training(self) -> dict[str, Any]:
        """Figures of the whole training; None for those that were not requested, and for a cost without a price."""
        names = ("steps", "hours", "gpu_hours", "cost", "energy_kwh")
        figures: dict[str, Any] = {name: getattr(self, name) if self.steps else None for name in names}
        figures["cost"] = figures["cost"] or None
        return figures | (self.progress.to_json() if self.request.run.mtbf_hours else {"goodput": None})
