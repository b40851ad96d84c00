"""A training job: the model's parallelism over accelerators, and the work of an iteration. Validates its options on
construction.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from emulator import datafile
from emulator.cluster.algorithms import ALGORITHMS, HIERARCHIES
from emulator.jobs.workload.implementations import (
    DDP_BUCKET_BYTES,
    FULL_PRECISIONS,
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
OPTIMIZER_KERNELS = ("fused", "foreach")
LORA_TARGETS = ("qkv", "all")
KEPT = " kept"
"""Suffix of names of layer parts that are not checkpointed, where others are."""
RANKS = Range(1, 1_000_000)


@dataclass(frozen=True)
class Job(Ranged):
    """A job. Sizes are counts of accelerators, samples or tokens."""

    gpus: int = number(RANKS, 8)
    batch: int = number(Range(0, 100_000_000), 0)
    """Global batch in samples; 0: `micro_batch` for each data-parallel rank and, in a pipeline, four for each stage."""
    micro_batch: int = number(Range(1, 100_000_000), 1)
    sequence: int = number(Range(0, 100_000_000), 0)
    """Tokens per sample; 0: the model's default."""
    tp: int = number(RANKS, 1)
    """Tensor-parallel ranks."""
    pp: int = number(Range(1, 10_000), 1)
    """Pipeline stages."""
    ep: int = number(RANKS, 1)
    """Expert-parallel ranks within a stage's tensor- and data-parallel ranks (see `etp`)."""
    etp: int = number(Range(0, 1_000_000), 0)
    """Tensor-parallel ranks per expert (Megatron's expert-tensor-parallel-size), a divisor of `tp`; 0: `tp` where the
    data-parallel ranks can be split over `ep`, else 1."""
    dispatcher: str = ""
    """Expert dispatch: "all-to-all", a copy of a token for each expert, where the host waits for the counts in every
    layer; "flex" (DeepEP, HybridEP), one copy for each node, counted on the device; empty: with Megatron-Core as in
    Megatron Bridge's recipes, "all-to-all" inside a node of eight, else "flex"; otherwise "all-to-all"."""
    overlap_experts: bool = False
    """Whether expert dispatch overlaps with the compute of another micro-batch (Megatron's
    --overlap-moe-expert-parallel-comm)."""
    cuda_graphs: bool = False
    """Whether each layer is launched as a CUDA graph (Megatron-Core's --cuda-graph-impl, NeMo's enable_cuda_graph), but
    for experts and their dispatch."""
    cp: int = number(RANKS, 1)
    """Context-parallel ranks, each with a part of every sequence, taken from the data-parallel ranks."""
    cp_exchange: str = "ring"
    """Context-parallel communication: "ring" circulates keys and values during attention (Liu et al., Ring Attention,
    2023), "all-to-all" gives each rank all tokens of some heads (DeepSpeed-Ulysses, 2023)."""
    sequence_parallel: bool = False
    async_tp: bool = False
    """Whether tensor-parallel communication is split into pieces, each overlapped with the preceding piece's GEMM
    (PyTorch's async TP, Transformer Engine's user buffers); needs sequence_parallel."""
    zero: int = number(Range(0, 3), 0)
    """ZeRO stage: 1 shards optimizer states over data-parallel ranks, 2 also gradients, 3 also weights (FSDP)."""
    schedule: str = "1f1b"
    virtual_stages: int = number(Range(1, 10_000), 1)
    """Pieces of the model on each stage (interleaved)."""
    counts_embedding: bool = False
    """Whether the embedding counts as a layer when layers are split over stages, so that it may be a stage, or a piece,
    by itself (Megatron's --account-for-embedding-in-pipeline-split)."""
    counts_loss: bool = False
    """Whether the vocabulary projection and loss count as a layer, likewise (--account-for-loss-in-pipeline-split)."""
    recompute: str = "none"
    recompute_every: int = number(Range(1, LAYERS.most), 1)
    """With `recompute` full, every n-th layer of a stage is checkpointed, the others save their activations
    (torchtitan's selective_ac_option N: torchtitan/distributed/activation_checkpoint.py)."""
    document: int = number(Range(0, 100_000_000), 0)
    """Tokens of a document, of which several are packed into a sample; attention sees its own document only. 0: a
    sample is one document."""
    lora: int = number(Range(0, 100_000), 0)
    """Rank of LoRA adapters that are trained instead of the weights (Hu et al., 2021); 0: all weights are trained."""
    lora_targets: str = "qkv"
    """Linear layers with adapters: "qkv", the query, key and value projections, or "all" of a layer."""
    precision: str = "fp16"
    optimizer: str = "adam"
    optimizer_kernels: str = ""
    """Kernels of the optimizer step: "fused", one that updates all weights, or "foreach", one per arithmetic operation,
    as torch.optim's arguments of these names; empty: the implementation's."""
    master_weights: bool = True
    """Whether half-precision weights have fp32 ones beside them (with `zero` 3: are fp32 and cast when gathered), and
    the optimizer states are fp32; False: weights, gradients and states are all half precision, as torch.optim makes
    them for a model in bf16."""
    gradient_bytes: int = number(Range(1, 8), 2)
    """Bytes per gradient on the wire and in memory."""
    allreduce: str = "auto"
    hierarchy: str = "auto"
    """Hierarchy of gradient all-reduces: one of `emulator.cluster.algorithms.HIERARCHIES`."""
    bucket_bytes: float | None = number(Range(1, 1e15), None)
    """Bucket size of gradient reduction (DDP's bucket_cap_mb); None: the implementation's default."""
    overlap: bool = True
    """Whether buckets are reduced during the backward pass, as in DDP and FSDP; False: after it, as Megatron-LM did."""
    fuse: bool = False
    """Whether element-wise kernels between two GEMMs are fused, as compilers do (XLA, TorchInductor); for layer tables,
    whose kernels are counted."""
    attention: str = ""
    """Attention: "unfused", "flash" (what the implementation chooses on the accelerator) or a kernel of
    `data/attention.toml`; empty: the model's default."""
    implementation: str = ""
    """Implementation, from `data/implementations.toml`; empty: the model's default."""
    cross_entropy: str = ""
    """Cross entropy, from `data/cross_entropy.toml`; empty: the model's default."""
    fsdp: Sharding = field(default_factory=Sharding)
    """Sharding of weights with `zero` 3."""
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
            ("optimizer_kernels", ("", *OPTIMIZER_KERNELS)),
            ("lora_targets", LORA_TARGETS),
            ("attention", ("", *attention_names())),
            ("implementation", ("", *implementations())),
            ("cross_entropy", ("", *cross_entropies())),
        ):
            datafile.check_name(key.replace("_", "-"), getattr(self, key), known)
        if self.gpus % (self.tp * self.pp):
            raise ConfigError(f"{self.gpus} accelerators can't be divided evenly by tp {self.tp} x pp {self.pp}")
        self._check_experts()
        if self.dp % self.cp:
            raise ConfigError(
                f"the {self.dp} data-parallel ranks can't be split into {self.cp} context-parallel ones evenly"
            )
        if self.cp > 1 and self.pp > 1 and self.schedule == "axonn":
            raise ConfigError("context parallelism is not modelled on message-driven stages; use schedule 1f1b")
        if self.lora and self.lora_targets == "all" and self.tp > 1:
            raise ConfigError(
                "what adapters of row-parallel layers exchange is not modelled: take lora-targets qkv, or tp 1"
            )
        if self.lora and self.zero == 3 and self.pp > 1:
            raise ConfigError(
                "LoRA's frozen weights, sharded in a pipeline (zero 3), are not modelled; use zero 0 to 2"
            )
        if self.cuda_graphs and self.recompute != "none":
            raise ConfigError(f"cuda-graphs captures layers that are not recomputed; recompute is {self.recompute}")
        if self.recompute_every > 1 and self.recompute != "full":
            raise ConfigError(
                f"recompute-every {self.recompute_every} says which layers are checkpointed: take recompute full, not "
                f"{self.recompute}"
            )
        if self.async_tp and not self.sequence_parallel:
            raise ConfigError("async-tp cuts the exchanges of sequence parallelism: use sequence-parallel")
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
            raise ConfigError(f"zero 3 is not modelled with schedule {self.schedule}; use schedule 1f1b")
        if self.fsdp != Sharding() and self.zero < 3:
            raise ConfigError(f"fsdp's settings describe sharded weights: use zero 3, not {self.zero}")
        if self.fsdp.group and self.dp % self.fsdp.group:
            raise ConfigError(
                f"the {self.dp} data-parallel ranks can't be split into groups of {self.fsdp.group} evenly"
            )

    def _check_experts(self) -> None:
        """Validate the options of experts, which have separate groups (Megatron-Core, parallel_state.py: etp x ep x
        expert-data-parallel ranks of a stage)."""
        if self.etp and self.tp % self.etp:
            raise ConfigError(f"etp {self.etp} is not a divisor of the {self.tp} tensor-parallel ranks (tp)")
        if self.stage_ranks % (self.ep * self.expert_tp):
            raise ConfigError(
                f"the {self.stage_ranks} ranks of a stage (tp {self.tp} x dp {self.dp}) can't be split into "
                f"{self.ep} expert-parallel ones (ep) of {self.expert_tp} (etp) evenly"
            )
        if self.ep > 1 and self.expert_tp < self.tp and not self.sequence_parallel:
            raise ConfigError(
                f"experts on {self.expert_tp} of {self.tp} tensor-parallel ranks (etp) take tokens that these ranks "
                "have divided among them: use sequence-parallel"
            )
        if self.overlap_experts and (self.ep == 1 or self.recompute == "full"):
            raise ConfigError(
                "overlap-experts hides exchanges of expert-parallel ranks: take ep of at least 2, no full recompute"
            )
        if self.overlap_experts and self.pp > 1 and self.virtual_stages == 1:
            raise ConfigError("overlap-experts in a pipeline needs virtual-stages of at least 2, as in Megatron-Core")

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are computed in separate passes."""
        return self.schedule == "zb-h1" and self.pp > 1

    @property
    def stage_ranks(self) -> int:
        """Tensor- and data-parallel ranks of a stage together."""
        return self.gpus // self.pp

    @property
    def expert_tp(self) -> int:
        """Number of ranks that share an expert."""
        return self.etp or (self.tp if self.dp % self.ep == 0 else 1)

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same part of the same experts."""
        return self.stage_ranks // (self.ep * self.expert_tp)

    @property
    def expert_span(self) -> int:
        """Number of data-parallel ranks that an expert-parallel group spans."""
        return -(-self.ep * self.expert_tp // self.tp)

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.gpus // (self.tp * self.pp)

    @property
    def replicas(self) -> int:
        """Number of data-parallel ranks with different samples."""
        return self.dp // self.cp

    @property
    def global_batch(self) -> int:
        """Samples per iteration."""
        return self.batch or self.micro_batch * self.replicas * (4 * self.pp if self.pp > 1 else 1)

    @property
    def micro_batches(self) -> int:
        """Micro-batches per data-parallel rank and iteration."""
        return self.global_batch // (self.replicas * self.micro_batch)

    def sample_tokens(self, model: Model) -> int:
        """Return the tokens of a whole sample; 1 for models without a sequence length."""
        return (self.sequence or model.sequence) if isinstance(model, Transformer) else 1

    def document_tokens(self, model: Model) -> int:
        """Return the tokens that attention can see: those of a document, or of the sample."""
        whole = self.sample_tokens(model)
        return min(self.document or whole, whole)

    def tokens(self, model: Model) -> int:
        """Return the tokens of a sample on one rank: context-parallel ranks divide them."""
        return self.sample_tokens(model) // self.cp

    def pieces(self, model: Transformer, stage: int) -> list[range]:
        """Return the layers of each piece of `stage`, numbered from 0. If they don't divide evenly, the first pieces of
        the model have one more, as the last one has the loss. Embedding and loss count as layers if so configured."""
        places = model.layers + self.counts_embedding + self.counts_loss
        each, more = divmod(places, self.pp * self.virtual_stages)

        def start(piece: int) -> int:
            place = each * piece + min(piece, more)
            return min(max(place - self.counts_embedding, 0), model.layers)

        return [range(start(piece), start(piece + 1)) for piece in range(stage, self.pp * self.virtual_stages, self.pp)]

    def piece_layers(self, model: Transformer, stage: int) -> list[int]:
        """Return the number of layers of each piece of `stage`."""
        return [len(layers) for layers in self.pieces(model, stage)]

    def layers(self, model: Transformer, stage: int) -> int:
        """Return the number of layers of `stage`, all pieces together."""
        return sum(self.piece_layers(model, stage))

    def parts(self, model: Transformer, stage: int) -> list[str]:
        """Return the names of the parts of `stage` in forward order. "window": sliding-window attention; "dense": the
        MLP of a layer without experts, in a model that has some."""
        first = ["embedding"] if stage == 0 else []
        last = ["loss"] if stage == self.pp - 1 else []
        numbers = [layer for piece in self.pieces(model, stage) for layer in piece]
        layers = [
            part + ("" if self.checkpoints(number) else KEPT)
            for number, layer in enumerate(numbers)
            for part in (
                "window" if model.is_windowed(layer) else "attention",
                "dense" if model.is_dense(layer) else "mlp",
            )
        ]
        return [*first, *layers, *last]

    def checkpoints(self, number: int) -> bool:
        """Return whether layer `number` of a stage, from 0, is checkpointed as `recompute` specifies; otherwise it
        saves all activations."""
        return (number + 1) % self.recompute_every == 0

    def part_parameters(self, model: Transformer) -> dict[str, float]:
        """Return the parameters of one rank by part. A separate last stage holds a copy of a tied embedding."""
        holds_copy = model.tied_embedding and self.pp > 1
        return {
            "attention": model.attention_parameters / self.tp,
            "window": model.attention_parameters / self.tp,
            "mlp": (model.mlp_parameters - model.routed_parameters) / self.tp + self.expert_parameters(model),
            "dense": model.dense_parameters / self.tp,
            "embedding": model.embedding_parameters / self.tp,
            "loss": (model.vocabulary * model.hidden if holds_copy else model.head_parameters) / self.tp,
        }

    def adapter_parameters(self, model: Transformer) -> dict[str, float]:
        """Return the adapter parameters of one rank in a layer by part: two matrices of rank `lora` for each linear
        layer with an adapter."""
        qkv = model.hidden + model.query_width + 2 * model.key_width
        others = {"attention": 0, "mlp": 0}
        if self.lora_targets == "all":
            up = (2 if model.gated else 1) * model.width
            others = {"attention": model.query_width + model.hidden, "mlp": 2 * model.hidden + up + model.width}
        attention = self.lora * (qkv / self.tp + others["attention"])
        return {"attention": attention, "window": attention, "mlp": float(self.lora * others["mlp"])}

    def trained_parameters(self, model: Transformer) -> dict[str, float]:
        """Return the trained parameters of one rank by part: those with gradients."""
        whole = self.part_parameters(model)
        return {**dict.fromkeys(whole, 0.0), **self.adapter_parameters(model)} if self.lora else whole

    def expert_parameters(self, model: Transformer) -> float:
        """Return the routed expert parameters of one rank in a layer that is not dense."""
        return model.routed_parameters / (self.ep * self.expert_tp)

    def stage_expert_parameters(self, model: Transformer, stage: int) -> float:
        """Return the expert parameters of one rank of `stage`; 0 without experts."""
        if model.experts == 1:
            return 0.0
        layers = sum(not model.is_dense(layer) for piece in self.pieces(model, stage) for layer in piece)
        return layers * self.expert_parameters(model)

    def sharded(self, dense: float, experts: float) -> float:
        """Return one rank's share of these parameters (or their gradients or optimizer states) when sharded by ZeRO:
        each over the ranks that hold the same."""
        return dense / (self.fsdp.group or self.dp) + experts / self.expert_dp

    def stage_parameters(self, model: Transformer, stage: int, *, trained: bool = False) -> float:
        """Return the parameters of one rank of `stage`: all without adapters, or the `trained` ones."""
        of = self.trained_parameters(model) if trained else self.part_parameters(model)
        return sum(of[part.removesuffix(KEPT)] for part in self.parts(model, stage))

    @property
    def element_bytes(self) -> int:
        """Bytes per element of activations, and of weights as kernels read them."""
        return 4 if self.precision in FULL_PRECISIONS else 2

    @property
    def weight_bytes(self) -> int:
        """Bytes per weight in memory: FSDP keeps those in fp32 that it gathers in half precision."""
        return 4 if self.zero == 3 and self.master_weights else self.element_bytes

    @property
    def master_bytes(self) -> int:
        """Bytes per master weight beside a half-precision weight; 0: there is none."""
        return 4 if self.master_weights and self.weight_bytes < 4 else 0

    @property
    def updated_bytes(self) -> int:
        """Bytes per weight that the optimizer updates, the master where there is one, and of each of its states."""
        return self.master_bytes or self.weight_bytes

    def attention_kernel(self, model: Transformer) -> str:
        """Return the attention kernel's name: "unfused", "flash" (the implementation's choice), or one of
        `data/attention.toml`."""
        given = self.attention or model.attention
        return given or implementations()[self.implemented_by(model)].attention_default

    def loss_kernel(self, model: Transformer) -> str:
        """Return the name of the cross entropy; torch's own keeps the precision of a model without master weights."""
        if given := self.cross_entropy or model.cross_entropy:
            return given
        name = implementations()[self.implemented_by(model)].cross_entropy
        return "half" if name == "eager" and not self.master_weights else name

    def flash(self, model: Transformer) -> bool:
        """Return whether scores stay on chip: with a fused kernel that supports the model's head size."""
        return self.attention_kernel(model) != UNFUSED and self.fuses_heads(model)

    def fuses_heads(self, model: Transformer) -> bool:
        """Return whether the implementation's fused attention supports the model's head size."""
        return model.head % implementations()[self.implemented_by(model)].head_multiple == 0

    def implemented_by(self, model: Model) -> str:
        """Return the name of the implementation that runs `model`."""
        named = self.implementation or (model.implementation if isinstance(model, Transformer) else "")
        return named or ("torch" if self.zero == 3 or isinstance(model, LayerTable) else "megatron")

    def bucket_parameters(self, model: Model) -> float:
        """Return the bucket size in parameters. Layer tables use DDP's, unless the job specifies an implementation."""
        least, each_rank = (0.0, 0.0)
        if isinstance(model, Transformer) or self.implementation:
            least, each_rank = implementations()[self.implemented_by(model)].bucket_parameters
        if self.bucket_bytes or not least:
            return (self.bucket_bytes or DDP_BUCKET_BYTES) / self.gradient_bytes
        return max(least, each_rank * self.dp)

    def fit(self, model: Model) -> None:
        """Raise ConfigError unless `model` can be split as specified."""
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
                raise ConfigError(f"{model.name} is not a transformer: it has no embedding or loss to count as a layer")
            if self.lora:
                raise ConfigError(f"{model.name} is not a transformer: LoRA's adapters are of its linear layers")
            if self.recompute_every > 1:
                raise ConfigError(f"{model.name} is not a transformer: recompute-every chooses among equal layers")
            if self.recompute in ("selective", "pointwise", "operators") or self.sequence_parallel:
                raise ConfigError(
                    f"{model.name} is not a transformer: selective recomputation and sequence parallelism need one"
                )
            return
        pieces = self.pp * self.virtual_stages
        if pieces > model.layers + self.counts_embedding + self.counts_loss:
            what = "stages" if self.virtual_stages == 1 else "pieces (pp x virtual stages)"
            counted = {"the embedding": self.counts_embedding, "the loss": self.counts_loss}
            besides = "".join(f" and {name}" for name, is_counted in counted.items() if is_counted)
            raise ConfigError(f"{model.name}'s {model.layers} layers{besides} can't be split into {pieces} {what}")
        if self.document and self.cp > 1:
            raise ConfigError(
                f"documents of {self.document} tokens in a sample give cp {self.cp} ranks unequal shares of attention, "
                "which are not modelled; take cp 1"
            )
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
        """Recomputation option as text."""
        return self.recompute + (f", 1 layer in {self.recompute_every}" if self.recompute_every > 1 else "")

    def replace(self, **changes: Any) -> Job:
        """Return a validated copy with changed values."""
        return dataclasses.replace(self, **changes)
