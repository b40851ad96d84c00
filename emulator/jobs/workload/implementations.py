"""What runs a model, as data: the kernels that an implementation launches around its matrix products, the cross entropy
behind them, attention's kernel. Files: `data/implementations.toml`, `data/cross_entropy.toml`, `data/attention.toml`.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from emulator import datafile
from emulator.cluster.accelerator import Accelerator, unquantized
from switchml.errors import ConfigError

DATA = Path(__file__).parent / "data"
DDP_BUCKET_BYTES = 25 * 2**20
"""torch.nn.parallel.DistributedDataParallel's `bucket_cap_mb=25`."""
CONTEXT_HIDES = ("all", "first", "none")
EXPERTS = ("grouped", "streams", "sequential")
Sweeps = tuple[tuple[float, ...], ...]
"""Kernels, one after the other: elements of an activation that each reads and writes, and bytes for each besides."""


@dataclass(frozen=True)
class Implementation:
    """Kernels of a layer's parts, forward and backward."""

    title: str
    source: str
    cross_entropy: str
    """The model's own or the job's stands in its place."""
    norm: Sweeps
    norm_back: Sweeps
    residual: Sweeps
    residual_back: Sweeps
    branch_back: Sweeps
    """Where the gradients of the MLP's branch join the residual's, if that is a kernel of its own."""
    activation: Sweeps
    """Inside the MLP, for each element of its width."""
    activation_back: Sweeps
    gated: Sweeps
    """The same with a gate."""
    gated_back: Sweeps
    clamped: Sweeps
    """Besides, where what goes into it is clamped: by operators that one function starts one after the other."""
    clamped_back: Sweeps
    rotary: Sweeps
    """On queries and keys."""
    rotary_back: Sweeps
    turning: Sweeps
    """The same where sines and cosines are scaled (YaRN), which fused kernels can't: on queries, and on keys."""
    turning_back: Sweeps
    repeated: Sweeps
    """Where fewer heads have keys than queries, and the code copies keys and values for all of them: for each element
    read or written."""
    repeated_back: Sweeps
    context: Sweeps
    """Copies between attention's core and its output projection."""
    context_back: Sweeps
    handed: Sweeps
    """Before a context-parallel ring's exchange, forward and backward, for each element of keys and values."""
    merged: Sweeps
    """A context-parallel ring's steps after the first: what another part of the keys gives goes into the output, for
    each of its elements."""
    merged_back: Sweeps
    """The same of the queries' gradients, at each step."""
    merged_keys_back: Sweeps
    """And of the keys' and values'."""
    joined_back: Sweeps
    """Gradients of queries, keys and values, before the product that made them."""
    embedding: Sweeps
    embedding_back: Sweeps
    weight_back: float
    """Elements moved for each of a weight, where its gradient is added up by a kernel of its own."""
    bias_back: float
    """Elements moved for each output of a linear layer with a bias."""
    optimizer_bytes: dict[str, float]
    """Memory traffic of a step for each parameter, by optimizer."""
    context_gradient_bytes: int = 2
    """Of a gradient of keys and values that a context-parallel ring hands on."""
    context_hides: str = "all"
    """What of a ring's exchange hides behind attention: "all" that attention is long enough for, only what goes on
    behind the "first" part of the keys, as where all are gathered at once, or "none"."""
    experts: str = "grouped"
    """Products of a rank's experts: "grouped", one kernel whose tiles are those of all experts, "streams", a kernel for
    each, side by side, launched by a loop in C++, or "sequential", one after the other, each of which fills the device
    by itself only with many tokens."""
    expert_bias: Sweeps = ()
    """Where experts have biases that no product adds, for each element of what comes out of them: kernels of each
    expert, but the last joins all."""
    expert_bias_back: Sweeps = ()
    quantize_kernels: dict[str, int] = field(default_factory=dict)
    """In fp8, mxfp8 and nvfp4, that quantize what goes into an expert's product, by architecture: with "streams", for
    each expert."""
    head_multiple: int = 1
    """What a head's size has to be a multiple of for a fused kernel of attention; others keep scores in memory."""
    routing_kernels: tuple[int, int] = (0, 0)
    """Around the router's product, forward and backward: top-k, counts of tokens, index maps; each reads the logits."""
    dispatches: bool = False
    """Whether DeepEP or HybridEP brings tokens to experts beyond a node of eight, unless a job says otherwise."""
    captures: bool = False
    """Whether attention, router and counting are CUDA graphs where they do so: one launch each."""
    gradient_bytes: dict[str, int] = field(default_factory=dict)
    """Of a gradient that is added up and all-reduced, by precision, unless a job says otherwise; else those of a
    weight, 2 in half precision. FSDP has its own."""
    vocabulary_multiple: int = 1
    """Columns of the projection onto the vocabulary on each tensor-parallel rank are padded to a multiple of."""
    bucket_parameters: tuple[float, float] = (0.0, 0.0)
    """In a bucket of gradients: so many, and so many for each data-parallel rank, whichever is more; zeros: DDP's
    `bucket_cap_mb`, DDP_BUCKET_BYTES."""
    stops_recomputing_early: bool = False
    """Whether what a checkpointed layer needs for nothing but its result is not recomputed: the MLP's last product."""
    constants: dict[str, float] = field(default_factory=dict)
    """In place of the built-in constants of software; a cluster's own come before them."""

    def __post_init__(self) -> None:
        datafile.check_name("context_hides", self.context_hides, CONTEXT_HIDES)
        datafile.check_name("experts", self.experts, EXPERTS)


@cache
def implementations() -> dict[str, Implementation]:
    """By name."""
    path = DATA / "implementations.toml"
    tables: dict[str, Any] = {}
    for name, table in datafile.load(path).items():
        base = table.pop("extends", None)
        tables[name] = datafile.merge(tables[base], table) if base else table
    return {name: datafile.build(Implementation, table, f"{path.name} [{name}]") for name, table in tables.items()}


@dataclass(frozen=True)
class CrossEntropy:
    """Memory traffic of the loss for each logit."""

    title: str
    source: str
    forward_bytes: float
    backward_bytes: float
    forward_kernels: int
    backward_kernels: int
    is_fitted: bool = False
    """Whether the bytes are shares of the constant `loss_bytes_per_logit`."""


@cache
def cross_entropies() -> dict[str, CrossEntropy]:
    """By name."""
    return datafile.build_all(CrossEntropy, DATA / "cross_entropy.toml")


UNFUSED = "unfused"
FLASH = "flash"
"""Name of the kernel in use today: FlashAttention-2."""
BLOCK = 128
"""Queries that a block of FlashAttention's kernels takes, or keys backward (flash_fwd_launch_template.h,
flash_bwd_launch_template.h)."""
WIDE_HEAD = 96
"""From here on a padded head counts as one of 128; below, as one of 64."""


def attended(tokens: float, window: int = 0) -> float:
    """Pairs of a query and a key that causal attention over so many tokens has: the sum of min(i, window) over the
    i-th token, or half of all where no window is shorter."""
    return window * (tokens - (window - 1) / 2) if 0 < window < tokens else tokens**2 / 2


@dataclass(frozen=True)
class AttentionKernel:
    """A kernel that keeps scores on chip."""

    title: str
    source: str
    share: float
    forward: float
    backward: float
    narrow: float
    half_length: float
    heads: tuple[int, ...] = ()
    """Sizes of heads that it is compiled for: others are computed as the next larger one; empty: any."""
    architectures: tuple[str, ...] = ()
    """Of accelerators that it is written for; empty: all."""

    def padded(self, head: int) -> int:
        """The size that a head is computed as."""
        return next((size for size in self.heads if size >= head), head)

    def rates(
        self, device: Accelerator, name: str, precision: str, tokens: int, head: int, window: int = 0
    ) -> tuple[float, float]:
        """FLOP/s forward and backward on causal sequences of so many tokens; neither the upper triangle counts, nor
        what is outside of a sliding `window` (0: none), nor what pads a head. At most what a matrix product reaches.
        Raises ConfigError where the kernel does not run.

        With a window a query's keys are as few as in short sequences, and they end inside blocks on both sides."""
        if self.architectures and device.architecture and device.architecture not in self.architectures:
            raise ConfigError(
                f"attention {name}: {self.title} runs on {' and '.join(self.architectures)}, {device.title} is "
                f"{device.architecture}"
            )
        both = device.attention_flops.get(name, self.share * device.flash_rate(precision))
        padded = self.padded(head)
        both *= (1.0 if padded >= WIDE_HEAD else self.narrow) * head / padded
        is_windowed = 0 < window < tokens
        length = 2 * attended(tokens, window) / tokens  # of a sequence whose mean query has as many keys
        both *= length / (length + self.half_length + (BLOCK if is_windowed else 0))
        most = device.matmul_share * device.peak(unquantized(precision))
        return min(both * self.forward, most), min(both * self.backward, most)


@cache
def attention_kernels() -> dict[str, AttentionKernel]:
    """By name, with `flash` for the one in use today."""
    read = datafile.build_all(AttentionKernel, DATA / "attention.toml")
    return {FLASH: read["fa2"], **read}


def attention_names() -> tuple[str, ...]:
    """All that a model or a job may name."""
    return (UNFUSED, *attention_kernels())
