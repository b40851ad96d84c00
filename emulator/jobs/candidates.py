"""Candidate jobs where a description leaves options unspecified: precision, implementation, parallelism, ZeRO stage,
micro-batch, recomputation. Specified options are fixed. `choice.py` costs the candidates and picks one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from emulator.cluster.accelerator import QUANTIZED_BYTES, Accelerator
from emulator.cluster.cluster import Cluster
from emulator.jobs.workload.implementations import implementations
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import LayerTable, Model, Transformer
from switchml.errors import ConfigError

SAMPLES = 256
"""Largest micro-batch in samples where no batch is given: NVIDIA's ResNet-50 on an A100 (NVIDIA/DeepLearningExamples,
PyTorch/Classification/ConvNets/resnet50v1.5, mixed precision)."""
TOKENS = 8192
"""Largest micro-batch of language models in tokens: enough for large GEMMs. Also the batch per accelerator where the
split is chosen."""
MAX_TOKENS = 16 * 2**20
"""Largest chosen batch in tokens: Llama 3 405B's (Dubey et al. 2024, section 3.4.1)."""
PER_STAGE = 4
"""Micro-batches per pipeline stage, so that the bubble is a fifth or less."""
MAX_STAGES = 64
RECOMPUTED = (8, 4, 2, 1)
"""Of how many layers one is fully recomputed, the cheapest first, where a given split doesn't fit otherwise."""
SPLIT = ("tp", "pp", "ep", "cp", "zero")
"""Options of the split: if any is given, the others keep their defaults unless the job does not fit."""
CHOSEN = (
    "precision",
    "implementation",
    "tp",
    "pp",
    "ep",
    "virtual_stages",
    "counts_embedding",
    "counts_loss",
    "zero",
    "sequence_parallel",
    "batch",
    "micro_batch",
    "recompute",
    "recompute_every",
    "gradient_bytes",
)
"""Job fields that may be chosen."""
MEGATRON, CORE, TORCH, COMPILED = "megatron", "megatron-core", "torch", "compiled"


@dataclass(frozen=True)
class OpenJob:
    """A job with unspecified fields."""

    job: Job
    """The job, with defaults for unspecified fields."""
    batch: int
    """Global batch in samples; 0: not given. `job.batch` is unset, as the split may not be known yet."""
    given: frozenset[str]
    """Names of the specified fields."""
    model: Model
    cluster: Cluster
    all_reduces: bool = False
    """Whether the description requires all-reduced, not sharded gradients: with a codec or in-network aggregation."""

    def settled(self) -> OpenJob:
        """Return the job with the preferred precision of its accelerators, and fp32 gradients where all else is
        fp32."""
        job = self.job
        if "precision" not in self.given:
            job = job.replace(precision=precision(self.cluster.device))
        if "gradient_bytes" not in self.given and job.element_bytes == 4:
            job = job.replace(gradient_bytes=4)
        if self._is_even_with_ends(job):
            job = job.replace(counts_embedding=True, counts_loss=True)
        return replace(self, job=job)

    def _is_even_with_ends(self, job: Job) -> bool:
        """Return whether the layers can be divided evenly over the given stages only if embedding and loss count as
        one each, without which Megatron-LM refuses the job (megatron/core/transformer/transformer_block.py)."""
        if not isinstance(self.model, Transformer) or job.pp == 1 or self.given & {"counts_embedding", "counts_loss"}:
            return False
        pieces = job.pp * job.virtual_stages
        return bool(self.model.layers % pieces) and not (self.model.layers + 2) % pieces

    @property
    def has_split(self) -> bool:
        """Whether any split option is given; a layer table has only one split."""
        return isinstance(self.model, LayerTable) or bool(self.given & set(SPLIT))

    def default(self) -> Job:
        """Return the job as given, with the most likely values of the rest. Raises ConfigError."""
        return self._named(self.job.replace(batch=self.batch))

    def as_given(self) -> Iterator[Shape]:
        """Yield the given split for each candidate ZeRO stage."""
        for zero in self._zeros(self.job):
            yield from self._shape(zero=zero, batch=self.batch)

    def splits(self, wide: bool) -> Iterator[Iterator[list[Shape]]]:
        """Yield other splits: for each tensor-parallel size, those with 1, 2, … pipeline stages. `wide`: all splits,
        not only the most likely ones."""
        if isinstance(self.model, LayerTable):
            return
        gpus = self.job.gpus
        widths = [self.job.tp] if "tp" in self.given else _powers(min(self.cluster.accelerators_per_node, gpus))
        for tp in widths:
            if not gpus % tp:
                yield self._deeper(tp, wide)

    def _deeper(self, tp: int, wide: bool) -> Iterator[list[Shape]]:
        assert isinstance(self.model, Transformer)
        most = min(self.model.layers, MAX_STAGES)
        for pp in [self.job.pp] if "pp" in self.given else _divisors(self.job.gpus // tp, most):
            if not self.job.gpus // tp % pp:
                yield list(self._deep(tp, pp, wide))

    def _deep(self, tp: int, pp: int, wide: bool) -> Iterator[Shape]:
        """Yield shapes with `tp` tensor-parallel ranks and `pp` stages."""
        assert isinstance(self.model, Transformer)
        ranks = self.job.gpus // (tp * pp)
        experts = [self.job.ep] if "ep" in self.given else _powers(math.gcd(ranks, self.model.experts))
        for ep in experts if wide else {experts[0], experts[-1]}:
            for pieces in self._pieces(pp, wide):
                split: dict[str, Any] = {"tp": tp, "pp": pp, "ep": ep, **pieces}
                try:
                    job = self.job.replace(**split)
                except ConfigError:
                    continue
                for zero in self._zeros(job, wide):
                    yield from self._shape(zero=zero, batch=self.batch or self._batch(), **split)

    def _pieces(self, pp: int, wide: bool) -> Iterator[dict[str, Any]]:
        """Yield the job fields of ways to divide the layers over `pp` stages: as they are, or in several equal pieces a
        stage. Where the layers can't be divided into equal ones, embedding and loss count as a layer each, if they can
        then (Llama 3's 126: Dubey et al. 2024, section 3.3.2)."""
        assert isinstance(self.model, Transformer)
        yield {"virtual_stages": self.job.virtual_stages}
        if pp == 1 or self.given & {"schedule", "virtual_stages"}:
            return
        counted: dict[str, Any] = {}
        whole = self.model.layers
        if whole % pp and not self.given & {"counts_embedding", "counts_loss"}:
            counted, whole = {"counts_embedding": True, "counts_loss": True}, whole + 2
        if whole % pp:
            return
        each = whole // pp
        for count in dict.fromkeys((2, 4, each) if wide else (2, each)):
            if count > 1 and each % count == 0:
                yield {"virtual_stages": count, "schedule": "interleaved", **counted}

    def _zeros(self, job: Job, wide: bool = False) -> list[int]:
        """ZeRO stages to try: DDP or FSDP for pure data parallelism, otherwise Megatron's sharded optimizer. `wide`:
        FSDP as well."""
        if "zero" in self.given:
            return [job.zero]
        if self.all_reduces or job.dp == 1:
            return [0]
        if isinstance(self.model, LayerTable):
            return [0, 1, 3] if job.pp == 1 else [0, 1]
        own = self._own_implementation(job)
        if own.startswith(MEGATRON) or not job.overlap:
            return [1]
        if own:
            return [0, 3] if job.pp == 1 else [0]
        if _is_data_parallel(job):
            return [0, 3] if self.has_split else [0, 3, 1]
        return [1, 3] if wide and job.pp == 1 and job.ep == 1 else [1]

    def _shape(self, **split: Any) -> Iterator[Shape]:
        try:
            yield Shape(self, self._named(self.job.replace(**split)))
        except ConfigError:
            return

    def _named(self, job: Job) -> Job:
        """Return the job with an implementation and the options that it implies."""
        if isinstance(self.model, LayerTable):
            return job
        name = self._own_implementation(job) or implementation(job, self.model, self.cluster.device)
        job = job.replace(implementation=name)
        if (
            name == CORE
            and job.tp > 1
            and "sequence_parallel" not in self.given
            and not job.tokens(self.model) % job.tp
        ):
            job = job.replace(sequence_parallel=True)
        if "gradient_bytes" not in self.given and job.zero < 3:
            added_up = implementations()[name].gradient_bytes.get(job.precision, job.gradient_bytes)
            job = job.replace(gradient_bytes=added_up)
        return job

    def _own_implementation(self, job: Job) -> str:
        """Return the given implementation, or the model's own where it supports the job's split."""
        assert isinstance(self.model, Transformer)
        own, is_torch = self.model.implementation, _is_data_parallel(job) and job.zero in (0, 3)
        return job.implementation or (own if is_torch or own.startswith(MEGATRON) else "")

    def _batch(self) -> int:
        """Return the global batch of a job whose split is chosen: the given micro-batch or TOKENS per accelerator, at
        most MAX_TOKENS in total."""
        micro, tokens = self.job.micro_batch, self.job.sample_tokens(self.model)
        each = micro if "micro_batch" in self.given else max(1, TOKENS // tokens)
        whole = self.job.gpus * each
        few = [size for size in _divisors(whole, max(1, MAX_TOKENS // tokens)) if size % micro == 0]
        return few[-1] if few else micro


@dataclass(frozen=True)
class Shape:
    """A split whose micro-batch and recomputation are unspecified."""

    of: OpenJob
    job: Job

    def loads(self) -> Iterator[Iterator[Job]]:
        """Yield, for each micro-batch in increasing order, jobs with increasing recomputation. If no job of a
        micro-batch fits, none of a larger one does."""
        for micro in self._micro_batches():
            yield self._recomputing(micro)

    def _micro_batches(self) -> Iterable[int]:
        job, model, given = self.job, self.of.model, self.of.given
        if "micro_batch" in given or (isinstance(model, LayerTable) and model.forward_s is not None):
            return [job.micro_batch]
        if not job.batch:
            tokens = job.sample_tokens(model)
            most = SAMPLES if not isinstance(model, Transformer) else max(1, TOKENS // tokens) if job.pp == 1 else 1
            return _powers(most)
        each = job.batch // job.replicas
        sizes = _divisors(each, each)
        return [size for size in sizes if job.pp == 1 or each // size >= PER_STAGE * job.pp] or [1]

    def _recomputing(self, micro: int) -> Iterator[Job]:
        for recompute, every in self._recomputes():
            for size in self._gradients():
                changes = {"recompute": recompute, "recompute_every": every, "gradient_bytes": size}
                try:
                    yield self.job.replace(micro_batch=micro, **changes)
                except ConfigError:
                    continue

    def _gradients(self) -> Iterable[int]:
        """Return gradient sizes in bytes: the implementation's, then that of weights in case the former does not fit
        (--grad-reduce-in-bf16)."""
        job = self.job
        sizes = [job.gradient_bytes, min(job.gradient_bytes, job.element_bytes)]
        return [sizes[0]] if "gradient_bytes" in self.of.given else dict.fromkeys(sizes)

    def _recomputes(self) -> list[tuple[str, int]]:
        """Return recompute modes, the cheapest first, as named by Megatron or torchtitan, and of how many layers one is
        recomputed (Megatron's --recompute-num-layers), where no other split may save that."""
        if "recompute" in self.of.given:
            return [(self.job.recompute, self.job.recompute_every)]
        if isinstance(self.of.model, LayerTable) or self.job.implementation.startswith("composer"):
            return [("none", 1), ("full", 1)]
        if not self.job.implementation.startswith(MEGATRON):
            return [("none", 1), ("operators", 1), ("full", 1)]
        shares = RECOMPUTED if self.of.has_split else RECOMPUTED[-1:]
        return [("none", 1), ("selective", 1), *(("full", every) for every in shares)]


def precision(device: Accelerator) -> str:
    """Return bf16 where the accelerator supports it (NVIDIA: since Ampere), else fp16, else fp32."""
    return next((name for name in ("bf16", "fp16") if name in device.flops), "fp32")


def implementation(job: Job, model: Transformer, device: Accelerator) -> str:
    """Return the implementation for this split: torch for FSDP and plain data parallelism, with torch.compile where
    float8 or asynchronous tensor parallelism needs it; otherwise Megatron, or Megatron-Core on Hopper and later and
    where attention is fused."""
    is_ddp = _is_data_parallel(job) and job.cp == 1 and job.zero == 0 and job.overlap
    if job.zero == 3 or is_ddp:
        return COMPILED if job.precision in QUANTIZED_BYTES or job.async_tp else TORCH
    is_recent = "fp8" in device.flops or job.precision in QUANTIZED_BYTES or job.flash(model) or job.async_tp
    return CORE if is_recent else MEGATRON


def _is_data_parallel(job: Job) -> bool:
    """Return whether every rank has the whole model, except for sharded states or sequences."""
    return job.tp == job.pp == job.ep == 1


def _powers(most: int) -> list[int]:
    """Return the powers of two up to `most`."""
    return [1 << power for power in range(most.bit_length())]


def _divisors(number: int, most: int) -> list[int]:
    """Return the divisors of `number` up to `most`, in increasing order."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted(size for size in {*small, *(number // size for size in small)} if size <= most)
