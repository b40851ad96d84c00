"""A training job: which model, how it is split over how many accelerators, and what an iteration does. Refuses what
makes no sense before any time is spent.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from emulator import datafile
from emulator.cluster.algorithms import ALGORITHMS, HIERARCHIES
from emulator.jobs.workload.implementations import (
    DDP_BUCKET_BYTES,
    UNFUSED,
    attention_names,
    cross_entropies,
    implementations,
)
from emulator.jobs.workload.models import LAYERS, LayerTable, Model, Transformer
from emulator.jobs.workload.sharding import Sharding
from emulator.ranges import Range, Ranged, number
from switchml.errors import ConfigError

SCHEDULES = ("1f1b", "gpipe", "interleaved", "axonn", "zb-h1")
DISPATCHERS = ("", "all-to-all", "flex")
CP_EXCHANGES = ("ring", "all-to-all")
RECOMPUTE = ("none", "selective", "pointwise", "operators", "full")
PRECISIONS = ("fp16", "bf16", "fp32", "tf32", "fp8", "mxfp8", "nvfp4")
OPTIMIZERS = ("adam", "sgd")
LORA_TARGETS = ("qkv", "all")
KEPT = " kept"
"""Ends the name of a part of a layer that is not checkpointed, where others are."""
RANKS = Range(1, 1_000_000)


@dataclass(frozen=True)
class Job(Ranged):
    """One job. Sizes are counts of accelerators, samples or tokens."""

    gpus: int = number(RANKS, 8)
    batch: int = number(Range(0, 100_000_000), 0)
    """Samples of all accelerators in one iteration; 0: `micro_batch` for each data-parallel rank and, in a pipeline,
    four for each stage."""
    micro_batch: int = number(Range(1, 100_000_000), 1)
    sequence: int = number(Range(0, 100_000_000), 0)
    """Tokens of a sample; 0: the model's own."""
    tp: int = number(RANKS, 1)
    """Tensor-parallel ranks."""
    pp: int = number(Range(1, 10_000), 1)
    """Pipeline stages."""
    ep: int = number(RANKS, 1)
    """Expert-parallel ranks, out of those of a stage: its tensor- and data-parallel ones, folded (`etp`)."""
    etp: int = number(Range(0, 1_000_000), 0)
    """Tensor-parallel ranks of an expert (Megatron's expert-tensor-parallel-size), a divisor of `tp`; 0: `tp` where the
    data-parallel ranks can be split over `ep`, else 1."""
    dispatcher: str = ""
    """What brings tokens to their experts: "all-to-all", a copy of a token for each expert, for whose counts the host
    waits in every layer; "flex" (DeepEP, HybridEP), one for each node, counted on the device; empty: as Megatron
    Bridge's recipes, "all-to-all" inside a node of eight, else "flex" (Megatron-Core), and "all-to-all" elsewhere."""
    overlap_experts: bool = False
    """Tokens travel to experts and back while another micro-batch is computed (Megatron's
    --overlap-moe-expert-parallel-comm)."""
    cp: int = number(RANKS, 1)
    """Context-parallel ranks, each with a part of every sequence, out of the data-parallel ones."""
    cp_exchange: str = "ring"
    """How they attend to each other's tokens: "ring" hands keys and values around while attention goes on (Liu et al.,
    Ring Attention, 2023), "all-to-all" gives each rank all tokens of some heads (DeepSpeed-Ulysses, 2023)."""
    sequence_parallel: bool = False
    async_tp: bool = False
    """Tensor-parallel exchanges go in pieces, each behind the product of the one before (PyTorch's async TP,
    Transformer Engine's user buffers); needs sequence_parallel."""
    zero: int = number(Range(0, 3), 0)
    """ZeRO stage: 1 shards optimizer states over data-parallel ranks, 2 gradients too, 3 weights too (FSDP)."""
    schedule: str = "1f1b"
    virtual_stages: int = number(Range(1, 10_000), 1)
    """Pieces of the model on each stage (interleaved)."""
    counts_embedding: bool = False
    """The embedding counts as a layer where layers are split over stages, so that it may have one, or a piece, of its
    own (Megatron's --account-for-embedding-in-pipeline-split)."""
    counts_loss: bool = False
    """The same of the projection onto the vocabulary, with the loss (--account-for-loss-in-pipeline-split)."""
    recompute: str = "none"
    recompute_every: int = number(Range(1, LAYERS.most), 1)
    """Of the layers on a stage, every so many-th is checkpointed with `recompute` full, the others keep what they need
    (torchtitan's selective_ac_option N: torchtitan/distributed/activation_checkpoint.py)."""
    lora: int = number(Range(0, 100_000), 0)
    """Rank of the adapters that are trained in the place of weights (LoRA: Hu et al., 2021); 0: all weights are."""
    lora_targets: str = "qkv"
    """Which linear layers have one: "qkv", the products of queries, keys and values, or "all" of a layer."""
    precision: str = "fp16"
    optimizer: str = "adam"
    gradient_bytes: int = number(Range(1, 8), 2)
    """Of one gradient on the wire and in memory."""
    allreduce: str = "auto"
    hierarchy: str = "auto"
    """Who speaks to the network in all-reduces of gradients: one of `emulator.cluster.algorithms.HIERARCHIES`."""
    bucket_bytes: float | None = number(Range(1, 1e15), None)
    """Gradients are reduced in buckets of about this size (DDP's bucket_cap_mb); None: the implementation's rule."""
    overlap: bool = True
    """Buckets are reduced while the backward pass goes on, as DDP and FSDP do; False: after it, as Megatron-LM did."""
    fuse: bool = False
    """Element-wise kernels between two products are one, as a compiler makes them (XLA, TorchInductor); for tables of
    layers, whose kernels are counted."""
    attention: str = ""
    """"unfused", "flash" or a kernel of `data/attention.toml`; empty: the model's own."""
    implementation: str = ""
    """What runs the model, of `data/implementations.toml`; empty: the model's own."""
    cross_entropy: str = ""
    """Of `data/cross_entropy.toml`; empty: the model's own."""
    fsdp: Sharding = field(default_factory=Sharding)
    """How weights are sharded with `zero` 3."""
    name: str = "job"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, known in (
            ("schedule", SCHEDULES),
            ("recompute", RECOMPUTE),
            ("cp_exchange", CP_EXCHANGES),
            ("dispatcher", DISPATCHERS),
            ("allreduce", ALGORITHMS),
            ("hierarchy", HIERARCHIES),
            ("precision", PRECISIONS),
            ("optimizer", OPTIMIZERS),
            ("lora_targets", LORA_TARGETS),
            ("attention", ("", *attention_names())),
            ("implementation", ("", *implementations())),
            ("cross_entropy", ("", *cross_entropies())),
        ):
            datafile.check_name(key.replace("_", "-"), getattr(self, key), known)
        if self.gpus % (self.tp * self.pp):
            raise ConfigError(f"{self.gpus} accelerators can't be split into {self.tp} x {self.pp} (tp x pp) evenly")
        self._check_experts()
        if self.dp % self.cp:
            raise ConfigError(
                f"the {self.dp} data-parallel ranks can't be split into {self.cp} context-parallel ones evenly"
            )
        if self.cp > 1 and self.pp > 1 and self.schedule == "axonn":
            raise ConfigError("context parallelism is not modelled on message-driven stages; take schedule 1f1b")
        if self.lora and self.zero == 3:
            raise ConfigError("zero 3 shards weights and gradients alike, LoRA trains few of them; take zero 0 to 2")
        if self.lora and self.lora_targets == "all" and self.tp > 1:
            raise ConfigError(
                "what adapters of row-parallel layers exchange is not modelled: take lora-targets qkv, or tp 1"
            )
        if self.recompute_every > 1 and self.recompute != "full":
            raise ConfigError(
                f"recompute-every {self.recompute_every} says which layers are checkpointed: take recompute full, not "
                f"{self.recompute}"
            )
        if self.async_tp and not self.sequence_parallel:
            raise ConfigError("async-tp cuts the exchanges of sequence parallelism: take sequence-parallel")
        if self.batch and self.batch % (self.replicas * self.micro_batch):
            raise ConfigError(
                f"batch {self.batch} is not divisible by {self.replicas * self.micro_batch}: "
                f"{self.replicas} data-parallel ranks, micro-batches of {self.micro_batch}"
            )
        if (self.schedule == "interleaved") != (self.virtual_stages > 1):
            raise ConfigError("schedule interleaved and virtual-stages of at least 2 go together")
        if self.schedule == "interleaved" and self.pp == 1:
            raise ConfigError("an interleaved schedule needs at least 2 pipeline stages, but pp is 1")
        if self.schedule == "interleaved" and self.micro_batches % self.pp:
            raise ConfigError(
                f"an interleaved schedule needs a multiple of {self.pp} micro-batches (pp); "
                f"this job has {self.micro_batches}"
            )
        if self.zero == 3 and self.pp > 1 and self.schedule in ("axonn", "zb-h1"):
            raise ConfigError(f"zero 3 is not modelled with schedule {self.schedule}; take schedule 1f1b")
        if self.fsdp != Sharding() and self.zero < 3:
            raise ConfigError(f"fsdp's settings describe sharded weights: take zero 3, not {self.zero}")
        if self.fsdp.group and self.dp % self.fsdp.group:
            raise ConfigError(
                f"the {self.dp} data-parallel ranks can't be split into groups of {self.fsdp.group} evenly"
            )

    def _check_experts(self) -> None:
        """Experts have groups of their own (Megatron-Core, parallel_state.py: etp x ep x expert-data-parallel ranks of
        a stage)."""
        if self.etp and self.tp % self.etp:
            raise ConfigError(f"etp {self.etp} is no divisor of the {self.tp} tensor-parallel ranks (tp)")
        if self.stage_ranks % (self.ep * self.expert_tp):
            raise ConfigError(
                f"the {self.stage_ranks} ranks of a stage (tp {self.tp} x dp {self.dp}) can't be split into "
                f"{self.ep} expert-parallel ones (ep) of {self.expert_tp} (etp) evenly"
            )
        if self.ep > 1 and self.expert_tp < self.tp and not self.sequence_parallel:
            raise ConfigError(
                f"experts on {self.expert_tp} of {self.tp} tensor-parallel ranks (etp) take tokens that these ranks "
                "have divided among them: take sequence-parallel"
            )
        if self.overlap_experts and (self.ep == 1 or self.recompute == "full"):
            raise ConfigError(
                "overlap-experts hides exchanges of expert-parallel ranks: take ep of at least 2, no full recompute"
            )
        if self.overlap_experts and self.pp > 1 and self.virtual_stages == 1:
            raise ConfigError("overlap-experts in a pipeline needs virtual-stages of at least 2, as in Megatron-Core")

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are made in passes of their own."""
        return self.schedule == "zb-h1" and self.pp > 1

    @property
    def stage_ranks(self) -> int:
        """Tensor- and data-parallel ones together."""
        return self.gpus // self.pp

    @property
    def expert_tp(self) -> int:
        """Ranks that share an expert."""
        return self.etp or (self.tp if self.dp % self.ep == 0 else 1)

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same part of the same experts."""
        return self.stage_ranks // (self.ep * self.expert_tp)

    @property
    def expert_span(self) -> int:
        """Data-parallel ranks that an expert-parallel group lies across."""
        return -(-self.ep * self.expert_tp // self.tp)

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.gpus // (self.tp * self.pp)

    @property
    def replicas(self) -> int:
        """Data-parallel ranks that have samples of their own."""
        return self.dp // self.cp

    @property
    def global_batch(self) -> int:
        """Samples an iteration."""
        return self.batch or self.micro_batch * self.replicas * (4 * self.pp if self.pp > 1 else 1)

    @property
    def micro_batches(self) -> int:
        """For each data-parallel rank."""
        return self.global_batch // (self.replicas * self.micro_batch)

    def sample_tokens(self, model: Model) -> int:
        """Of a whole sample; 1 where a sample has no length."""
        return (self.sequence or model.sequence) if isinstance(model, Transformer) else 1

    def tokens(self, model: Model) -> int:
        """Of a sample on one rank: context-parallel ranks share them."""
        return self.sample_tokens(model) // self.cp

    def pieces(self, model: Transformer, stage: int) -> list[range]:
        """Layers of each piece of `stage`, from 0: where they don't divide evenly, the first pieces of the model have
        one more, as the last one has the loss. Where embedding or loss count as layers, they do here, too."""
        places = model.layers + self.counts_embedding + self.counts_loss
        each, more = divmod(places, self.pp * self.virtual_stages)

        def start(piece: int) -> int:
            place = each * piece + min(piece, more)
            return min(max(place - self.counts_embedding, 0), model.layers)

        return [range(start(piece), start(piece + 1)) for piece in range(stage, self.pp * self.virtual_stages, self.pp)]

    def piece_layers(self, model: Transformer, stage: int) -> list[int]:
        """How many those are."""
        return [len(layers) for layers in self.pieces(model, stage)]

    def layers(self, model: Transformer, stage: int) -> int:
        """Of `stage`, all its pieces."""
        return sum(self.piece_layers(model, stage))

    def parts(self, model: Transformer, stage: int) -> list[str]:
        """What `stage` consists of, in the order of forward. "window": attention in a sliding window."""
        first = ["embedding"] if stage == 0 else []
        last = ["loss"] if stage == self.pp - 1 else []
        numbers = [layer for piece in self.pieces(model, stage) for layer in piece]
        layers = [
            part + ("" if self.checkpoints(number) else KEPT)
            for number, layer in enumerate(numbers)
            for part in ("window" if model.is_windowed(layer) else "attention", "mlp")
        ]
        return [*first, *layers, *last]

    def checkpoints(self, number: int) -> bool:
        """Whether the layer `number` of a stage, from 0, is treated as `recompute` says; else it keeps all it needs."""
        return (number + 1) % self.recompute_every == 0

    def part_parameters(self, model: Transformer) -> dict[str, float]:
        """Of one rank, by name of a part. A last stage of its own holds a copy of a tied embedding."""
        holds_copy = model.tied_embedding and self.pp > 1
        return {
            "attention": model.attention_parameters / self.tp,
            "window": model.attention_parameters / self.tp,
            "mlp": (model.mlp_parameters - model.routed_parameters) / self.tp + self.expert_parameters(model),
            "embedding": model.embedding_parameters / self.tp,
            "loss": (model.vocabulary * model.hidden if holds_copy else model.head_parameters) / self.tp,
        }

    def adapter_parameters(self, model: Transformer) -> dict[str, float]:
        """Of one rank's adapters in a layer, by name of a part: two matrices of `lora` columns for each linear layer
        that has one."""
        qkv = model.hidden + model.query_width + 2 * model.key_width
        others = {"attention": 0, "mlp": 0}
        if self.lora_targets == "all":
            up = (2 if model.gated else 1) * model.width
            others = {"attention": model.query_width + model.hidden, "mlp": 2 * model.hidden + up + model.width}
        attention = self.lora * (qkv / self.tp + others["attention"])
        return {"attention": attention, "window": attention, "mlp": float(self.lora * others["mlp"])}

    def trained_parameters(self, model: Transformer) -> dict[str, float]:
        """Of one rank, by name of a part: those that have gradients."""
        whole = self.part_parameters(model)
        return {**dict.fromkeys(whole, 0.0), **self.adapter_parameters(model)} if self.lora else whole

    def expert_parameters(self, model: Transformer) -> float:
        """Of one rank, in a layer: those of the experts that tokens choose from."""
        return model.routed_parameters / (self.ep * self.expert_tp)

    def stage_expert_parameters(self, model: Transformer, stage: int) -> float:
        """Of one rank of `stage`, those of experts; 0 without any."""
        return self.layers(model, stage) * self.expert_parameters(model) if model.experts > 1 else 0.0

    def sharded(self, dense: float, experts: float) -> float:
        """What one rank has of so many parameters, or their gradients or optimizer states, where ZeRO shards them: each
        over the ranks that hold the same."""
        return dense / (self.fsdp.group or self.dp) + experts / self.expert_dp

    def stage_parameters(self, model: Transformer, stage: int, *, trained: bool = False) -> float:
        """Of one rank of `stage`, without adapters, or those that are `trained`."""
        of = self.trained_parameters(model) if trained else self.part_parameters(model)
        return sum(of[part.removesuffix(KEPT)] for part in self.parts(model, stage))

    @property
    def element_bytes(self) -> int:
        """Of one activation or weight."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    def attention_kernel(self, model: Transformer) -> str:
        """By name: "unfused", or one of `data/attention.toml`."""
        return self.attention or model.attention

    def flash(self, model: Transformer) -> bool:
        """Whether scores stay on chip: where a kernel is named that does so, and takes the model's heads."""
        return self.attention_kernel(model) != UNFUSED and self.fuses_heads(model)

    def fuses_heads(self, model: Transformer) -> bool:
        """Whether fused attention of the implementation takes heads of this size."""
        return model.head % implementations()[self.implemented_by(model)].head_multiple == 0

    def implemented_by(self, model: Model) -> str:
        """What runs `model`, by name."""
        named = self.implementation or (model.implementation if isinstance(model, Transformer) else "")
        return named or ("torch" if self.zero == 3 else "megatron")

    def bucket_parameters(self, model: Model) -> float:
        """In a bucket of gradients. Tables of layers are DDP's, unless the job names what runs them."""
        least, each_rank = (0.0, 0.0)
        if isinstance(model, Transformer) or self.implementation:
            least, each_rank = implementations()[self.implemented_by(model)].bucket_parameters
        if self.bucket_bytes or not least:
            return (self.bucket_bytes or DDP_BUCKET_BYTES) / self.gradient_bytes
        return max(least, each_rank * self.dp)

    def fit(self, model: Model) -> None:
        """Raise ConfigError unless `model` can be split as this job asks."""
        if isinstance(model, LayerTable):
            for key in ("tp", "ep", "cp"):
                if getattr(self, key) > 1:
                    raise ConfigError(
                        f"{model.name} is a table of layers: it can be data-parallel only, "
                        f"but {key} is {getattr(self, key)}"
                    )
            if self.pp != model.stages or self.virtual_stages > 1:
                raise ConfigError(
                    f"{model.name} is a table of layers with {model.stages} stages in its column `stage`, each in one "
                    f"piece, but pp is {self.pp}"
                    + (f" in {self.virtual_stages} pieces" if self.virtual_stages > 1 else "")
                )
            if self.splits_backward:
                raise ConfigError(
                    f"{model.name} is a table of layers, which doesn't say what of backward makes gradients of "
                    f"weights; schedule {self.schedule} needs a transformer"
                )
            if self.counts_embedding or self.counts_loss:
                raise ConfigError(f"{model.name} is no transformer: it has no embedding or loss to count as a layer")
            if self.lora:
                raise ConfigError(f"{model.name} is no transformer: LoRA's adapters are of its linear layers")
            if self.recompute_every > 1:
                raise ConfigError(f"{model.name} is no transformer: recompute-every chooses among equal layers")
            if self.recompute in ("selective", "pointwise", "operators") or self.sequence_parallel:
                raise ConfigError(
                    f"{model.name} is no transformer: selective recomputation and sequence parallelism need one"
                )
            return
        pieces = self.pp * self.virtual_stages
        if pieces > model.layers + self.counts_embedding + self.counts_loss:
            what = "stages" if self.virtual_stages == 1 else "pieces (pp x virtual stages)"
            counted = {"the embedding": self.counts_embedding, "the loss": self.counts_loss}
            besides = "".join(f" and {name}" for name, is_counted in counted.items() if is_counted)
            raise ConfigError(f"{model.name}'s {model.layers} layers{besides} can't be split into {pieces} {what}")
        if self.sample_tokens(model) % self.cp:
            raise ConfigError(f"{self.sample_tokens(model)} tokens can't be split over cp {self.cp}")
        if self.cp_exchange == "all-to-all" and (model.heads // self.tp) % self.cp:
            raise ConfigError(f"{model.name}'s {model.heads} heads can't be split over tp {self.tp} and cp {self.cp}")
        if model.heads % self.tp or (model.key_heads % self.tp and self.tp % model.key_heads):
            raise ConfigError(
                f"{model.name}'s {model.heads} heads ({model.key_heads} of keys) can't be split over tp {self.tp}"
            )
        if self.lora and (model.experts > 1 or model.kv_rank):
            raise ConfigError(f"{model.name} has experts or latent attention, whose adapters (lora) are not modelled")
        if self.etp and model.experts == 1:
            raise ConfigError(f"etp {self.etp} splits experts, and {model.name} has none")
        if model.experts % self.ep:
            raise ConfigError(f"{model.name}'s {model.experts} experts can't be split over ep {self.ep}")
        if self.sequence_parallel and self.tp == 1:
            raise ConfigError("sequence parallelism splits over tensor-parallel ranks, but tp is 1")
        if self.sequence_parallel and self.tokens(model) % self.tp:
            raise ConfigError(f"{self.tokens(model)} tokens can't be split over tp {self.tp}")

    @property
    def recomputation(self) -> str:
        """In words."""
        return self.recompute + (f", 1 layer in {self.recompute_every}" if self.recompute_every > 1 else "")

    def replace(self, **changes: Any) -> Job:
        """A copy with other values, checked again."""
        return dataclasses.replace(self, **changes)
