"""Kernels of a transformer layer: GEMMs and memory-bound kernels of forward and backward, as rows for
`emulator.cluster.kernels`, and tensor-parallel communication between them. The kernels around the GEMMs depend on the
implementation (`implementations.py`): counted from its code, one row per kernel.
"""

from dataclasses import dataclass

import numpy as np

from emulator.cluster.accelerator import QUANTIZED_BYTES
from emulator.cluster.kernels import COLUMNS, at_rate, for_weights, gemm, looped, memory
from emulator.jobs.workload.implementations import CrossEntropy, Implementation, Sweeps, attended
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import Transformer
from emulator.jobs.workload.tensors import tensors

HEAD_MULTIPLE = 8
"""Heads of other sizes are copied into ones padded to this multiple, and the output out of them
(flash_attn_interface.py, FlashAttnFunc; torch pads likewise, transformers/attention.cpp, pad_last_dim)."""


@dataclass(frozen=True)
class Code:
    """Implementation and kernel rates of a job's layers."""

    implementation: Implementation
    cross_entropy: CrossEntropy
    attention_traffic: float
    """Memory traffic of the kernels on scores of unfused attention, relative to reading their operands once."""
    attention_flops: tuple[float, float]
    """FLOP/s of the attention kernel forward and backward, where scores stay on chip."""
    window_flops: tuple[float, float]
    """FLOP/s of the attention kernel in sliding-window layers."""
    loss_bytes: float
    """Unit of a fitted cross entropy's traffic, in bytes per logit."""
    quantize_kernels: int = 1
    """Kernels in fp8 that quantize the input of an expert's GEMM."""
    transposes: bool = False
    """Whether the backward pass transposes frozen weights in fp8."""


def _sweeps(kernels: Sweeps, elements: float, element: float, launches: float = 0.0) -> list[tuple[float, ...]]:
    """Return rows of kernels over an activation, or of `launches` kernels each over parts of it."""
    return [memory((element * read_or_written + masks) * elements, launches) for read_or_written, masks in kernels]


@dataclass(frozen=True)
class Segment:
    """Half a layer, or the part before or after all layers: kernels (rows of `emulator.cluster.kernels`) and
    communication."""

    name: str
    forward: np.ndarray
    backward: np.ndarray
    recomputed: np.ndarray
    """Kernels that selective recomputation repeats."""
    pointwise: np.ndarray
    """Norm and activation, which pointwise recomputation repeats."""
    unneeded: int = 0
    """Kernels at the end of forward that only compute the layer's output, which full recomputation may omit."""
    reduce_bytes: float = 0.0
    """All-reduced among tensor-parallel ranks after forward, and again after backward."""
    exchange_bytes: float = 0.0
    """Sent by each expert-parallel rank in an all-to-all before and after the experts, each way."""
    copies: int = 1
    """Copies of a token in that."""
    looped: tuple[int, int] = (0, 0)
    """Additional kernels, forward and backward, launched by loops over experts, beyond one per row."""
    captured: tuple[int, int] = (0, 0)
    """Rows, forward and backward, inside a CUDA graph where layers with experts are partially captured."""
    context_bytes: tuple[float, float] = (0.0, 0.0)
    """Bytes of a context-parallel rank, forward and backward: its keys and values, plus their gradients backward,
    scaled for one transfer more than the other ranks; or all inputs and outputs of attention."""


def _rows(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float64).reshape(-1, COLUMNS)


def _products(
    m: float,
    n: float,
    k: float,
    batch: float,
    job: Job,
    code: Code,
    *,
    is_router: bool = False,
    has_bias: bool = False,
    has_adapter: bool = False,
) -> tuple[tuple, tuple]:
    """Return the forward and backward rows of a linear layer (k in, m out) on n tokens, for each of `batch` experts;
    backward to inputs and weights, with gradient accumulation. In fp8, mxfp8 and nvfp4 each operand is cast, and also
    written transposed for the other GEMMs (Transformer Engine, cast_transpose); in nvfp4 a separate kernel first
    computes its maximum (NVFP4Quantizer)."""
    e, how, half = job.element_bytes, code.implementation, is_router
    if how.experts == "sequential" and batch > 1:
        each = _products(m, n, k, 1, job, code, has_bias=has_bias)
        return each[0] * round(batch), each[1] * round(batch)
    forward, backward = [gemm(m, n, k, batch, half=half, rows=(k,))], [gemm(k, n, m, batch, half=half, rows=(k, m))]
    backward.append(for_weights(gemm(m, k, n, batch, half=half, rows=(k, m))))
    if how.weight_back:
        backward.append(for_weights(memory(how.weight_back * e * batch * m * k)))
    if how.bias_back and has_bias:
        backward.append(for_weights(memory(how.bias_back * e * batch * m * n)))
    if job.precision in QUANTIZED_BYTES and not half:
        launches = batch * code.quantize_kernels if how.experts == "streams" and batch > 1 else 1

        def cast(elements: float, launches: float) -> list[tuple[float, ...]]:
            maximum = [memory(e * elements, launches)] if job.precision == "nvfp4" else []
            return [*maximum, memory((e + 2 * QUANTIZED_BYTES[job.precision]) * elements, launches)]

        # Frozen weights are cast only once.
        weights = [] if job.lora else cast(batch * m * k, 0)
        transposes = job.lora and job.precision == "fp8" and code.transposes
        turned = [memory(2 * QUANTIZED_BYTES["fp8"] * batch * m * k)] if transposes else []
        forward = [*cast(batch * k * n, launches), *weights, *forward]
        backward = [*turned, *cast(batch * m * n, launches), *backward]
    if job.lora:
        backward = [row for row in backward if not row[-1]]  # the weights are frozen
        if has_adapter:
            own, own_back = _adapter(m, n, k, job)
            forward, backward = [*forward, *own], [*own_back, *backward, memory(3 * e * n * k)]
    return tuple(forward), tuple(backward)


def _adapter(m: float, n: float, k: float, job: Job) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Return the rows of a LoRA adapter next to a linear layer: projection down to its rank and up, scaled and added,
    in half precision. The down projection is split over tensor-parallel ranks; gathering its small output is not costed
    (NVIDIA-NeMo/Megatron-Bridge, peft/utils.py, ParallelLinearAdapter)."""
    e, rank, part = job.element_bytes, job.lora, job.lora / job.tp
    forward = [gemm(part, n, k, half=True, rows=(k,)), gemm(m, n, rank, half=True, rows=(rank,))]
    backward = [gemm(rank, n, m, half=True, rows=(rank, m)), for_weights(gemm(m, rank, n, half=True, rows=(rank, m)))]
    backward += [gemm(k, n, part, half=True, rows=(k, part)), for_weights(gemm(part, k, n, half=True, rows=(k, part)))]
    scaled = memory(2 * e * m * n)
    return [*forward, scaled, memory(3 * e * m * n)], [scaled, *backward]


def _queries(model: Transformer, tokens: float, k: float, job: Job, code: Code) -> tuple[tuple, tuple]:
    """Return the rows of the query, key and value projections: one GEMM; with latent attention one down, on every rank,
    and two up."""
    h, t = model.hidden, job.tp
    if not model.kv_rank:
        wide = (model.query_width + 2 * k) / t
        return _products(wide, tokens, h, 1, job, code, has_bias=model.biases, has_adapter=True)
    turned = model.heads * model.rotary_size
    steps = [
        _products(model.query_rank + model.kv_rank + model.rotary_size, tokens, h, 1, job, code),
        _products((model.query_width + turned) / t, tokens, model.query_rank, 1, job, code),
        _products(2 * k / t, tokens, model.kv_rank, 1, job, code),
    ]
    return sum((forward for forward, _ in steps), ()), sum((backward for _, backward in reversed(steps)), ())


def _context_bytes(queries: float, keys: float, job: Job, code: Code) -> tuple[float, float]:
    """Return a segment's `context_bytes` from a rank's elements of queries and of keys."""
    e, how = job.element_bytes, code.implementation
    if job.cp_exchange == "all-to-all":
        both = e * (2 * queries + 2 * keys)
        return both, both
    # Gradients need as many steps as there are ranks to return to their own.
    back = max(e, how.context_gradient_bytes) * 2 * keys * job.cp / (job.cp - 1)
    return e * 2 * keys, e * 2 * keys + back


def attention(model: Transformer, job: Job, code: Code, window: int = 0) -> Segment:
    """Return norm, query, key and value projections, scores, softmax, dropout, attention output, output projection and
    residual. A kernel that keeps scores on chip skips pairs outside a sliding `window` (tokens; 0: none); others
    compute and mask them."""
    how, traffic = code.implementation, code.attention_traffic
    e, t, b, s = job.element_bytes, job.tp, job.micro_batch, job.tokens(model)
    whole_s = job.sample_tokens(model)
    h, q, k = model.hidden, model.query_width, max(model.key_width, model.head * t)
    keys = q if tensors(model, job).repeats_keys else k  # as used by the attention kernel
    tokens, head = b * s, model.head + model.rotary_size / 2
    whole = tokens * h / (t if job.sequence_parallel else 1)
    split = tokens * q / t
    heads = b * model.heads / t
    qkv, qkv_back = _queries(model, tokens, k, job, code)
    kind: dict[str, bool] = {"has_bias": model.biases, "has_adapter": job.lora_targets == "all"}
    out, out_back = _products(h, tokens, q / t, 1, job, code, **kind)
    if job.flash(model):
        forward_flops, backward_flops = code.window_flops if window else code.attention_flops
        row = job.document_tokens(model)
        seen = attended(row, window, model.causal) / row  # average keys per query
        core = [at_rate(forward_flops, s, seen, 2 * head, heads)]
        core_back = [at_rate(backward_flops, s, seen, 5 * head, heads)]
        if model.head % HEAD_MULTIPLE:
            core = [memory(2 * e * tokens * (q + 2 * keys) / t), *core, memory(2 * e * split)]
            core_back = [memory(2 * e * split), *core_back]
    else:
        scores = traffic * heads * s * whole_s
        softmax = [memory(2 * e * scores), memory((2 * e + 1) * scores)]
        made = gemm(s, whole_s, head, heads, half=True, rows=(head,))
        used = gemm(s, head, whole_s, heads, half=True, rows=(head, whole_s))
        core = [made, *softmax, used]
        core_back = [used] * 2 + [made] * 2
        core_back += [memory((2 * e + 1) * scores), memory(3 * e * scores)]
        if heads % 4:
            # Megatron's fused softmax requires multiples of 4 heads (batch times heads of a rank); otherwise it is six
            # kernels, to fp32, scale, mask, softmax, back (megatron/model/fused_softmax.py, forward_torch_softmax).
            core += [memory(2 * e * scores)] * 5
            core_back += [memory(3 * e * scores)] * 4
    if not model.learned_positions:
        turned, (turn, turn_back) = [tokens * (q + k) / t], (how.rotary, how.rotary_back)
        if model.scaled_rotary:
            turned, (turn, turn_back) = [tokens * q / t, tokens * k / t], (how.turning, how.turning_back)
        core = [*(row for each in turned for row in _sweeps(turn, each, e)), *core]
        core_back += [row for each in turned for row in _sweeps(turn_back, each, e)]
    if keys > k:
        copied = 2 * tokens * (k + keys) / t
        core = [*_sweeps(how.repeated, copied, e), *core]
        core_back = [*core_back, *_sweeps(how.repeated_back, copied, e)]
    if job.cp > 1 and job.cp_exchange == "ring":
        handed = _sweeps(how.handed, 2 * tokens * keys / t, e)
        core_back = [*handed, *core_back]
        core = [*handed, *core, *_sweeps(how.merged, split, e) * (job.cp - 1)]
        core_back += _sweeps(how.merged_back, split, e) * job.cp
        core_back += _sweeps(how.merged_keys_back, 2 * tokens * keys / t, e) * job.cp
    gathered, scattered = _copied(model, job, how)
    forward = [*_sweeps(how.norm, whole, e), *gathered, *qkv, *core, *_sweeps(how.context, split, e), *out, *scattered]
    forward += _sweeps(how.residual, whole, e)
    backward = [*_sweeps(how.residual_back, whole, e), *gathered, *out_back, *_sweeps(how.context_back, split, e)]
    backward += [*core_back, *_sweeps(how.joined_back, tokens * (q + 2 * k) / t, e), *qkv_back, *scattered]
    backward += _sweeps(how.norm_back, whole, e)
    reduced = e * tokens * h if t > 1 else 0.0
    context = _context_bytes(tokens * q / t, tokens * keys / t, job, code) if job.cp > 1 else (0.0, 0.0)
    rows = _rows(*forward), _rows(*backward), _rows(*core)
    captured = len(forward), len(backward)
    again = _rows(*_sweeps(how.norm, whole, e))
    return Segment("attention", *rows, again, reduce_bytes=reduced, context_bytes=context, captured=captured)


def mlp(model: Transformer, job: Job, code: Code) -> Segment:
    """Return norm, up projection, activation, down projection and residual; with experts also the router and dispatch,
    tokens spread evenly. Tensor-parallel ranks that don't share an expert (`etp`) each send their own part of the
    tokens."""
    how = code.implementation
    e, t, b, s = job.element_bytes, job.tp, job.micro_batch, job.tokens(model)
    h, f, tokens = model.hidden, model.width, b * s
    whole = tokens * h / (t if job.sequence_parallel else 1)
    has_experts = model.experts > 1
    sharing = job.expert_tp if has_experts else t
    local = model.experts / job.ep if has_experts else 1.0
    inner = tokens * sharing / t * model.experts_per_token
    ways = 2 if model.gated else 1
    kind: dict[str, bool] = {"has_bias": model.biases, "has_adapter": job.lora_targets == "all"}
    up, up_back = _products(ways * f / sharing, inner / local, h, local, job, code, **kind)
    down, down_back = _products(h, inner / local, f / sharing, local, job, code, **kind)
    middle, middle_back = (how.gated, how.gated_back) if model.gated else (how.activation, how.activation_back)
    if model.clamped:
        middle_back = (*middle_back, *how.clamped_back)
    norm, active = _sweeps(how.norm, whole, e), _sweeps(middle, inner * f / sharing, e)
    if model.clamped and how.clamped:
        each = _sweeps(how.clamped, inner * f / sharing, e)
        active = [memory(_rows(*each)[:, 4].sum(), len(each)), *active]
    gathered, scattered = _copied(model, job, how)
    forward, again = [*norm, *gathered, *up, *active], _rows(*norm, *active)
    if model.shared_experts:
        shared = model.shared_experts * f
        own_up, own_up_back = _products(ways * shared / t, tokens, h, 1, job, code)
        own_down, own_down_back = _products(h, tokens, shared / t, 1, job, code)
        up_back = (*up_back, *own_down_back, *own_up_back)
        forward = [*forward, *own_up, *own_down]
    needed = len(forward)
    forward += [*down, *scattered, *_sweeps(how.residual, whole, e)]
    unneeded = 0 if has_experts else len(forward) - needed
    backward = [*_sweeps(how.residual_back, whole, e), *gathered, *down_back]
    backward += [*_sweeps(middle_back, inner * f / sharing, e), *up_back, *scattered]
    backward += [*_sweeps(how.norm_back, whole, e), *_sweeps(how.branch_back, whole, e)]
    reduced = e * tokens * h if t > 1 else 0.0
    if not has_experts:
        return Segment("mlp", _rows(*forward), _rows(*backward), _rows(), again, unneeded, reduced)
    routing, routing_back = _products(model.experts, tokens, h, 1, job, code, is_router=True)
    # Sorting by rank and back; sorting received tokens by expert and back.
    moves = [memory(2 * e * inner * h)] * (4 if job.ep > 1 and local > 1 else 2)
    small, small_back = ([memory(e * tokens * model.experts)] * count for count in how.routing_kernels)
    forward += [*routing, *small, *moves]
    backward += [*routing_back, *small_back, *moves]
    if model.biases:
        for rows, added in ((forward, how.expert_bias), (backward, how.expert_bias_back)):
            rows += [*_sweeps(added[:-1], inner * h, e, local), *_sweeps(added[-1:], inner * h, e)]
    loops = (looped(_rows(*forward)), looped(_rows(*backward))) if how.experts == "streams" else (0, 0)
    exchanged = e * inner * h / (sharing if job.sequence_parallel else 1) if job.ep > 1 else 0.0
    if job.ep > 1:
        # Tokens from other ranks are gathered by the ranks that share an expert: a copy for each chosen expert
        # (megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher).
        reduced = (e * inner * h if sharing > 1 else 0.0) + (reduced if model.shared_experts else 0.0)
    kernels = _rows(*forward), _rows(*backward), _rows(), again
    captured = len(how.norm) + len(routing) + len(small), len(how.norm_back) + len(routing_back) + len(small_back)
    return Segment("mlp", *kernels, unneeded, reduced, exchanged, model.experts_per_token, loops, captured)


def _copied(model: Transformer, job: Job, how: Implementation) -> tuple[list[tuple[float, ...]], ...]:
    """Return the copies of all tokens around the collectives of tensor-parallel ranks: of gathered operands, and of
    results to be scattered. A single sample's tokens come first in memory, and async TP takes them as they are."""
    if not job.sequence_parallel or job.async_tp or job.micro_batch == 1:
        return [], []
    elements, e = job.micro_batch * job.tokens(model) * model.hidden, job.element_bytes
    narrow = QUANTIZED_BYTES.get(job.precision, e)
    return _sweeps(how.gathered, elements, narrow), _sweeps(how.gathered, elements, e)


def embedding(model: Transformer, job: Job, code: Code) -> Segment:
    """Return embedding lookup, added positions and dropout; backward scatters."""
    how, elements = code.implementation, job.micro_batch * job.tokens(model) * model.hidden
    forward, backward = (
        _sweeps(kernels, elements, job.element_bytes) for kernels in (how.embedding, how.embedding_back)
    )
    return Segment(
        "embedding", _rows(*forward), _rows(*([] if job.lora else map(for_weights, backward))), _rows(), _rows()
    )


def head(model: Transformer, job: Job, code: Code) -> Segment:
    """Return the vocabulary projection and the loss."""
    loss, tokens, h = code.cross_entropy, job.micro_batch * job.tokens(model), model.hidden
    multiple = code.implementation.vocabulary_multiple * job.tp
    share = -(-model.vocabulary // multiple) * multiple / job.tp
    product = gemm(share, tokens, h, half=True, rows=(h,))
    product_back = [gemm(h, tokens, share, half=True, rows=(h, share))]
    if not job.lora:
        product_back.append(for_weights(gemm(share, h, tokens, half=True, rows=(h, share))))
    moved = (code.loss_bytes if loss.is_fitted else 1.0) * tokens * share
    forward = [memory(loss.forward_bytes * moved / loss.forward_kernels)] * loss.forward_kernels
    backward = [memory(loss.backward_bytes * moved / loss.backward_kernels)] * loss.backward_kernels
    return Segment("loss", _rows(product, *forward), _rows(*product_back, *backward), _rows(), _rows())
