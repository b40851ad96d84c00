"""Implementations of models, as data: the kernels that an implementation launches around its GEMMs, its cross entropy,
and its attention kernel. Files: `data/implementations.toml`, `data/cross_entropy.toml`, `data/attention.toml`.
"""

from dataclasses import dataclass, field, replace
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
"""A sequence of kernels: elements read and written per element of an activation, and additional bytes per element."""


@dataclass(frozen=True)
class Implementation:
    """Kernels of a layer's parts, forward and backward."""

    title: str
    source: str
    cross_entropy: str
    """Default, if neither the model nor the job specifies one."""
    norm: Sweeps
    norm_back: Sweeps
    residual: Sweeps
    residual_back: Sweeps
    branch_back: Sweeps
    """Kernels that add the gradients of the MLP branch to those of the residual, if separate."""
    activation: Sweeps
    """MLP activation, per element of the inner width."""
    activation_back: Sweeps
    gated: Sweeps
    """Gated MLP activation, per element of the inner width."""
    gated_back: Sweeps
    clamped: Sweeps
    """Additional kernels of a gated activation with clamped input, launched by one function call."""
    clamped_back: Sweeps
    rotary: Sweeps
    """Rotary embedding of queries and keys."""
    rotary_back: Sweeps
    turning: Sweeps
    """Rotary embedding with scaled sines and cosines (YaRN), which fused kernels do not support: on queries, and on
    keys."""
    turning_back: Sweeps
    repeated: Sweeps
    """Copies of keys and values where there are fewer key heads than query heads and the code expands them: per element
    read or written."""
    repeated_back: Sweeps
    context: Sweeps
    """Copies between the attention kernel and its output projection."""
    context_back: Sweeps
    handed: Sweeps
    """Before a context-parallel ring's transfer, forward and backward, per element of keys and values."""
    merged: Sweeps
    """Context-parallel ring steps after the first: merging the result for another part of the keys into the output, per
    output element."""
    merged_back: Sweeps
    """Merging the query gradients, at each ring step."""
    merged_keys_back: Sweeps
    """Merging the key and value gradients, at each ring step."""
    joined_back: Sweeps
    """Joining gradients of queries, keys and values before the backward GEMM of their projection."""
    embedding: Sweeps
    embedding_back: Sweeps
    weight_back: float
    """Elements moved per weight element, where a separate kernel accumulates the weight gradient."""
    bias_back: float
    """Elements moved per output element of a linear layer with a bias."""
    optimizer_bytes: dict[str, float]
    """Memory traffic of an optimizer step per parameter, by optimizer."""
    gathered: Sweeps = ()
    """Copies after gathering tokens of several samples over tensor-parallel ranks, and before scattering them, where
    samples come first in memory: per element of all tokens."""
    async_share: float = 1.0
    """Share of a tensor-parallel transfer, but for its first piece, that asynchronous tensor parallelism hides."""
    context_gradient_bytes: int = 2
    """Bytes per key or value gradient that a context-parallel ring sends."""
    context_hides: str = "all"
    """Ring transfers hidden behind attention: "all" that attention is long enough for, only those during attention on
    the "first" part of the keys, as where all are gathered at once, or "none"."""
    experts: str = "grouped"
    """GEMMs of a rank's experts: "grouped", one kernel with the tiles of all experts; "streams", concurrent kernels,
    one for each, launched by a loop in C++; or "sequential", in sequence, each of which fills the device only with many
    tokens."""
    expert_bias: Sweeps = ()
    """Where a separate kernel adds the experts' biases, per element of the experts' output: kernels of each expert,
    except the last, which joins all."""
    expert_bias_back: Sweeps = ()
    quantize_kernels: dict[str, int] = field(default_factory=dict)
    """Kernels that quantize the input of an expert's GEMM in fp8, mxfp8 and nvfp4, by architecture; with "streams", per
    expert."""
    transposes: tuple[str, ...] = ()
    """Architectures whose fp8 GEMMs need a frozen weight transposed for the backward pass."""
    attention_default: str = "flash"
    """Attention of models that don't say: "unfused" or "flash"."""
    attention: dict[str, str] = field(default_factory=dict)
    """Fused attention kernel in half precision, by architecture and "default"; without one FlashAttention-2 where it
    runs, else torch's memory-efficient kernel."""
    head_multiple: int = 1
    """Head sizes that fused attention supports must be a multiple of this; others keep scores in memory."""
    routing_kernels: tuple[int, int] = (0, 0)
    """Kernels around the router's GEMM, forward and backward: top-k, token counts, index maps; each reads the logits.
    """
    dispatches: bool = False
    """Whether DeepEP or HybridEP is the default dispatcher beyond a node of eight."""
    captures: bool = False
    """Whether attention, router and counting run as CUDA graphs with that dispatcher: one launch each."""
    gradient_bytes: dict[str, int] = field(default_factory=dict)
    """Default bytes of a gradient when accumulated and all-reduced, by precision; if missing, those of a weight, 2 in
    half precision. Not used with FSDP."""
    vocabulary_multiple: int = 1
    """Multiple to which each tensor-parallel rank's columns of the vocabulary projection are padded."""
    bucket_parameters: tuple[float, float] = (0.0, 0.0)
    """Bucket size in parameters: the larger of a fixed number, and a number per data-parallel rank; zeros: DDP's
    `bucket_cap_mb`, DDP_BUCKET_BYTES."""
    stops_recomputing_early: bool = False
    """Whether recomputation of a checkpointed layer omits kernels needed only for its output: the MLP's last GEMM."""
    constants: dict[str, float] = field(default_factory=dict)
    """Overrides of the built-in constants; a cluster's own take precedence."""

    def __post_init__(self) -> None:
        datafile.check_name("context_hides", self.context_hides, CONTEXT_HIDES)
        datafile.check_name("experts", self.experts, EXPERTS)


@cache
def implementations() -> dict[str, Implementation]:
    """Return the implementations by name."""
    path = DATA / "implementations.toml"
    tables: dict[str, Any] = {}
    for name, table in datafile.load(path).items():
        base = table.pop("extends", None)
        tables[name] = datafile.merge(tables[base], table) if base else table
    return {name: datafile.build(Implementation, table, f"{path.name} [{name}]") for name, table in tables.items()}


@dataclass(frozen=True)
class CrossEntropy:
    """Memory traffic of the loss per logit."""

    title: str
    source: str
    forward_bytes: float
    backward_bytes: float
    forward_kernels: int
    backward_kernels: int
    is_fitted: bool = False
    """Whether the bytes are multiples of the constant `loss_bytes_per_logit`."""


@cache
def cross_entropies() -> dict[str, CrossEntropy]:
    """Return the cross entropies by name."""
    return datafile.build_all(CrossEntropy, DATA / "cross_entropy.toml")


UNFUSED = "unfused"
FLASH = "flash"
"""The fused kernel that an implementation chooses (`resolved_attention`)."""
MEASURED = "measured"
"""The kernel that an accelerator's own file describes (`switchml bench kernels`)."""
DEFAULT = "default"
"""Architectures that have no entry."""
FULL_PRECISIONS = ("fp32", "tf32")
WITHOUT_FLASH = ("Pascal", "Volta", "Turing")
"""Architectures without FlashAttention-2 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
check_flash_attention_hardware_support)."""
BLOCK = 128
"""Queries (or keys, backward) per block of FlashAttention's kernels (flash_fwd_launch_template.h,
flash_bwd_launch_template.h)."""
WIDE_HEAD = 96
"""Padded heads of at least this size use the rate for 128; smaller ones that for 64."""


def attended(tokens: float, window: int = 0, is_causal: bool = True) -> float:
    """Number of query-key pairs of attention over `tokens` tokens. Causal: the sum of min(i, window) over the i-th
    token, or half of all without a shorter window. Otherwise a window has as many tokens before a query as after it."""
    is_windowed = 0 < window < tokens
    if is_causal:
        return window * (tokens - (window - 1) / 2) if is_windowed else tokens**2 / 2
    return window * tokens - window**2 // 4 if is_windowed else tokens**2


@dataclass(frozen=True)
class AttentionKernel:
    """An attention kernel that keeps scores on chip."""

    title: str
    source: str
    share: float
    """Of FlashAttention-2's rate, in half precision."""
    forward: float
    backward: float
    narrow: float
    half_length: float
    full_share: float = 0.0
    """Of the fp32 peak, in fp32 and tf32; 0: it does not run in those."""
    half_length_full: float | None = None
    """Without a causal mask; by default half of `half_length`, as each query then has twice as many keys."""
    backwards: dict[str, float] = field(default_factory=dict)
    """Of `narrow`, `half_length` and `half_length_full`, those that differ in the backward pass."""
    heads: tuple[int, ...] = ()
    """Head sizes that the kernel is compiled for: others are padded to the next larger one; empty: any."""
    architectures: tuple[str, ...] = ()
    """Supported accelerator architectures; empty: all but `never`."""
    never: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in self.backwards:
            datafile.check_name("key of backwards", key, ("narrow", "half_length", "half_length_full"))

    def padded(self, head: int) -> int:
        """Return the size to which a head is padded."""
        return next((size for size in self.heads if size >= head), head)

    def runs_on(self, device: Accelerator) -> bool:
        """Return whether the kernel runs on an accelerator; one without an architecture runs all."""
        is_listed = not self.architectures or device.architecture in self.architectures
        return not device.architecture or (is_listed and device.architecture not in self.never)

    def runs_in(self, precision: str) -> bool:
        """Return whether the kernel runs in a precision."""
        return precision not in FULL_PRECISIONS or self.full_share > 0

    def rates(
        self,
        device: Accelerator,
        name: str,
        precision: str,
        tokens: int,
        head: int,
        window: int = 0,
        is_causal: bool = True,
    ) -> tuple[float, float]:
        """Return FLOP/s forward and backward on sequences of `tokens` tokens, not counting pairs outside the mask (the
        upper triangle; outside a sliding `window`, 0: none), or head padding. At most the rate of a GEMM. Raises
        ConfigError where the kernel does not run, on that accelerator or in that precision.

        With a window, queries have as few keys as in short sequences, and the range ends inside blocks on both sides.
        """
        if not self.runs_on(device):
            runs = f"runs on {' and '.join(self.architectures)}" if self.architectures else "does not run there"
            raise ConfigError(f"attention {name}: {self.title} {runs}; {device.title} is {device.architecture}")
        if not self.runs_in(precision):
            raise ConfigError(f"attention {name}: {self.title} runs in half precision, the job is in {precision}")
        if precision in FULL_PRECISIONS:
            both = self.full_share * device.peak("fp32")
        else:
            both = device.attention_flops.get(name, self.share * device.flash_rate(precision))
        padded = self.padded(head)
        is_windowed = 0 < window < tokens
        keys = attended(tokens, window, is_causal) / tokens
        length = 2 * keys if is_causal else keys  # of a sequence with the same mean number of keys per query
        most = device.matmul_share * device.peak(unquantized(precision))
        backwards: dict[str, Any] = self.backwards
        forward, backward = (
            both * times * (1.0 if padded >= WIDE_HEAD else kernel.narrow) * head / padded
            * length / (length + kernel._half(is_causal) + (BLOCK if is_windowed else 0))
            for kernel, times in ((self, self.forward), (replace(self, **backwards), self.backward))
        )  # fmt: skip
        return min(forward, most), min(backward, most)

    def _half(self, is_causal: bool) -> float:
        """Tokens at which half of the rate is reached."""
        if is_causal:
            return self.half_length
        return self.half_length / 2 if self.half_length_full is None else self.half_length_full


@cache
def attention_kernels() -> dict[str, AttentionKernel]:
    """Return the built-in kernels by name."""
    return datafile.build_all(AttentionKernel, DATA / "attention.toml")


def attention_kernel(name: str, device: Accelerator) -> AttentionKernel:
    """Return a kernel: a built-in one, or the one measured on the accelerator. Raises ConfigError if there is none."""
    if name != MEASURED:
        return attention_kernels()[name]
    if not device.attention:
        raise ConfigError(f"attention {name}: no kernel was measured on {device.title} (switchml bench kernels)")
    named = {"title": "attention as measured there", "source": device.source, "share": 1.0}
    return datafile.build(AttentionKernel, named | device.attention, f"{device.title}, attention")


def resolved_attention(name: str, implementation: Implementation, device: Accelerator, precision: str) -> str:
    """Return the kernel that "flash" stands for: what was measured on the accelerator, else what the implementation
    chooses there. Other names are returned as they are."""
    if name != FLASH:
        return name
    if precision in FULL_PRECISIONS:
        return "efficient"
    if device.attention:
        return MEASURED
    chosen = {DEFAULT: "fa2", **dict.fromkeys(WITHOUT_FLASH, "efficient"), **implementation.attention}
    return chosen.get(device.architecture, chosen[DEFAULT])


def attention_names() -> tuple[str, ...]:
    """Return all names that a model or a job may use."""
    return (UNFUSED, FLASH, MEASURED, *attention_kernels())
