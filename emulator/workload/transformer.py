"""What one layer of a transformer launches: matrix products and memory-bound kernels of forward and backward, as rows
for `emulator.cluster.kernels`, and what tensor parallelism exchanges between them. The kernels are those of
Megatron-LM (megatron/model/transformer.py and its fused kernels): counted from the code, one row a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.cluster.kernels import gemm, memory
from emulator.workload.job import Job
from emulator.workload.models import Transformer

LOSS_KERNELS = 12
"""Launched by vocabulary-parallel cross entropy, in forward and again in backward."""


@dataclass(frozen=True)
class Segment:
    """Half a layer, or what stands before or after all layers: kernels (rows of batch, m, n, k, bytes, factor) and
    exchanges."""

    name: str
    forward: np.ndarray
    backward: np.ndarray
    recomputed: np.ndarray
    """What selective recomputation runs a second time."""
    reduce_bytes: float = 0.0
    """All-reduced among tensor-parallel ranks after forward, and again after backward."""
    exchange_bytes: float = 0.0
    """Sent by each expert-parallel rank in an all-to-all before and after the experts, each way."""


def _rows(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float64).reshape(-1, 6)


def _products(m: float, n: float, k: float, batch: float, element: int) -> tuple[tuple, tuple]:
    """A linear layer (k in, m out) on n tokens: forward, and backward to inputs and weights, adding up the
    gradient."""
    forward = (gemm(m, n, k, batch),)
    backward = (gemm(k, n, m, batch), gemm(m, k, n, batch), memory(3 * element * batch * m * k))
    return forward, backward


def attention(model: Transformer, job: Job, traffic: float, flash_factor: float = 1.0) -> Segment:
    """Norm, queries keys and values, scores, softmax, dropout, context, output, residual. `traffic`: memory traffic of
    the kernels on scores, over what their operands need once. `flash_factor`: how many times longer flash attention
    takes than a matrix product."""
    e, t, b, s = job.element_bytes, job.tp, job.micro_batch, job.tokens(model)
    h, k = model.hidden, max(model.key_width, model.hidden // model.heads * t)
    tokens, head = b * s, h // model.heads
    whole = tokens * h / (t if job.sequence_parallel else 1)
    split = tokens * h / t
    heads = b * model.heads / t
    qkv, qkv_back = _products((h + 2 * k) / t, tokens, h, 1, e)
    out, out_back = _products(h, tokens, h / t, 1, e)
    norm, norm_back = memory(2 * e * whole), memory(5 * e * whole)
    residual = memory((3 * e + 1) * whole)
    residual_back = (memory((2.5 * e + 2) * whole), memory(3 * e * whole))
    if job.flash(model):
        core = (gemm(s, s / 2, 2 * head, heads, flash_factor), memory(4 * e * split))
        core_back = (gemm(s, s / 2, 5 * head, heads, flash_factor), memory(8 * e * split))
    else:
        scores = traffic * heads * s * s
        softmax = [memory(2 * e * scores), memory((2 * e + 1) * scores)]
        core = [gemm(s, s, head, heads), *softmax, gemm(s, head, s, heads)]
        core_back = [gemm(s, head, s, heads)] * 2 + [gemm(s, s, head, heads)] * 2
        core_back += [memory((2 * e + 1) * scores), memory(3 * e * scores)]
        if heads % 4:
            # Megatron's fused softmax takes multiples of 4 heads (batch times heads of a rank); else it is six kernels,
            # to fp32, scale, mask, softmax, back (megatron/model/fused_softmax.py, forward_torch_softmax).
            core += [memory(2 * e * scores)] * 5
            core_back += [memory(3 * e * scores)] * 4
    turned = () if model.learned_positions else (memory(2 * e * (tokens * (h + k) / t)),)  # rotary positions, fused
    core, core_back = (*turned, *core), (*core_back, *turned)
    forward = _rows(norm, *qkv, *core, memory(2 * e * split), *out, residual)
    backward = _rows(
        *residual_back, *out_back, memory(2 * e * split), *core_back, memory(6 * e * split), *qkv_back, norm_back
    )
    return Segment("attention", forward, backward, _rows(*core), reduce_bytes=e * tokens * h if t > 1 else 0.0)


def mlp(model: Transformer, job: Job) -> Segment:
    """Norm, up, activation, down, residual; with experts a router before and exchanges around them, tokens spread
    evenly."""
    e, t, b, s = job.element_bytes, job.tp, job.micro_batch, job.tokens(model)
    h, f, tokens = model.hidden, model.width, b * s
    whole = tokens * h / (t if job.sequence_parallel else 1)
    local = model.experts / job.ep
    inner = tokens * model.experts_per_token
    ways = 2 if model.gated else 1
    up, up_back = _products(ways * f / t, inner / local, h, local, e)
    down, down_back = _products(h, inner / local, f / t, local, e)
    forward = [memory(2 * e * whole), *up, memory((ways + 1) * e * inner * f / t), *down, memory((3 * e + 1) * whole)]
    backward = [memory((2.5 * e + 2) * whole), memory(3 * e * whole), *down_back]
    backward += [memory(3 * ways * e * inner * f / t), memory(ways * e * inner * f / t), *up_back]
    backward += [memory(5 * e * whole), memory(3 * e * whole)]
    if model.experts > 1:
        routing, routing_back = _products(model.experts, tokens, h, 1, e)
        moves = memory(2 * e * inner * h)
        forward += [*routing, moves, moves]
        backward += [*routing_back, moves, moves]
    reduced = e * tokens * h if t > 1 else 0.0
    exchanged = e * inner * h / (t if job.sequence_parallel else 1) if job.ep > 1 else 0.0
    return Segment("mlp", _rows(*forward), _rows(*backward), _rows(), reduced, exchanged)


def embedding(model: Transformer, job: Job) -> Segment:
    """Rows looked up, positions added, dropout; backward scatters."""
    moved = _rows(memory((4 * job.element_bytes + 1) * job.micro_batch * job.tokens(model) * model.hidden))
    return Segment("embedding", moved, moved, _rows())


def head(model: Transformer, job: Job, loss_bytes: float) -> Segment:
    """Projection onto the vocabulary and the loss. `loss_bytes`: memory traffic of the loss for each logit; three
    fifths of it in forward."""
    tokens, share = job.micro_batch * job.tokens(model), model.vocabulary / job.tp
    product, product_back = _products(share, tokens, model.hidden, 1, job.element_bytes)
    one = loss_bytes * tokens * share / LOSS_KERNELS
    forward = _rows(*product, *[memory(0.6 * one)] * LOSS_KERNELS)
    return Segment("loss", forward, _rows(*product_back[:2], *[memory(0.4 * one)] * LOSS_KERNELS), _rows())
