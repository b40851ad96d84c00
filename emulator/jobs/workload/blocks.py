"""The tensors of a transformer's blocks on one rank, operator by operator: a layer, the embedding, and the head with
the loss. Sizes in bytes. Tensor-parallel sharding as in Megatron-LM (Korthikanti et al., MLSys 2023, figures 4 and 5).
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.cluster.accelerator import QUANTIZED_BYTES
from emulator.jobs.workload.implementations import implementations
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.lifetimes import Block
from emulator.jobs.workload.models import Transformer
from emulator.jobs.workload.tensors import loss_tensors, tensors

STATISTICS_BYTES = 8.0
"""Mean and reciprocal standard deviation that a norm saves per token; flash attention saves 4 bytes per token and head.
"""


@dataclass(frozen=True)
class _Sizes:
    """Bytes of a micro-batch's tensors on one rank."""

    element: int
    tokens: float
    whole: float
    """The residual stream; with sequence parallelism, for a share of the tokens."""
    gathered: float
    """The residual stream of all tokens."""
    heads: float
    """Queries, or the attention output, of this rank's heads."""
    keys: float
    """Keys, or values, of this rank."""
    inner: float
    """MLP intermediate, for all experts of each token."""
    gradient: float
    """Gradient bytes per parameter."""

    @classmethod
    def of(cls, model: Transformer, job: Job) -> _Sizes:
        tokens, e = float(job.micro_batch * job.tokens(model)), job.element_bytes
        gathered = e * tokens * model.hidden
        return cls(
            element=e,
            tokens=tokens,
            whole=gathered / (job.tp if job.sequence_parallel else 1),
            gathered=gathered,
            heads=e * tokens * model.query_width / job.tp,
            keys=e * tokens * model.key_width / min(job.tp, model.key_heads),
            inner=e * tokens * model.width * (model.experts_per_token + model.shared_experts) / job.tp,
            gradient=gradient_bytes(job),
        )

    @property
    def statistics(self) -> float:
        return STATISTICS_BYTES * self.whole / self.gathered * self.tokens


def gradient_bytes(job: Job) -> float:
    """Bytes of a gradient element as written by the backward pass. Sharded gradients have the dtype of the gathered
    weights and are cast when reduced; others are accumulated in the dtype in which they are reduced. Frozen weights
    have none, and those of adapters are negligible."""
    if job.lora:
        return 0.0
    return float(job.element_bytes if job.zero >= 2 else max(job.gradient_bytes, job.element_bytes))


def boundary_bytes(model: Transformer, job: Job) -> float:
    """Activations that a stage sends to the next, per micro-batch and rank."""
    return _Sizes.of(model, job).whole


class _Layer:
    """Adds the operators of a layer to a block."""

    def __init__(self, model: Transformer, job: Job) -> None:
        self.model, self.job, self.how = model, job, tensors(model, job)
        self.size = _Sizes.of(model, job)
        self.block = Block([self.size.whole])
        self.quantized: set[int] = set()

    def norm(self, x: int) -> int:
        size, weight = self.size, self.size.gradient * self.model.hidden * (2 if self.model.biases else 1)
        return self.block.add(x, size.whole, keeps="in", extra=size.statistics, weight=weight, part="pointwise")

    def product(
        self,
        x: int,
        size: float,
        parameters: float,
        *,
        from_whole: bool = False,
        is_qkv: bool = False,
        is_quantized: bool = True,
    ) -> int:
        """Add a linear layer. `from_whole`: its input is split over tokens; the gathered input is not saved, but
        gathered again for the weight gradient. Frozen weights without an adapter do not need to save their input.
        Where the implementation keeps what it has quantized, products of one input share that; adapters need the input
        itself."""
        gathers = from_whole and self.job.sequence_parallel and not self.how.keeps_gathered
        scratch = self.size.gathered if gathers else 0.0
        weight = self.size.gradient * parameters
        keeps = "in" if not self.job.lora or is_qkv or self.job.lora_targets == "all" else ""
        extra = 0.0
        if is_quantized and self.how.keeps_quantized and self.job.precision in QUANTIZED_BYTES and not self.job.lora:
            keeps = ""
            if x not in self.quantized:
                self.quantized.add(x)
                extra = QUANTIZED_BYTES[self.job.precision] / self.size.element * self.block.sizes[x]
        return self.block.add(
            x, size, keeps=keeps, extra=extra, weight=weight, scratch=scratch, scratch_back=scratch, part="product"
        )

    def gathered(self, x: int) -> int:
        """Return all tokens, gathered where sequence parallelism has split them and the gathered tensor is saved."""
        if not (self.job.sequence_parallel and self.how.keeps_gathered):
            return x
        return self.block.add(x, self.size.gathered)

    def to_whole(self, x: int) -> int:
        """Sum over tensor-parallel ranks: in place, or scattered over the tokens."""
        return self.block.add(x, self.size.whole, part="scatter") if self.job.sequence_parallel else x

    def dropout(self, x: int, size: float) -> int:
        if not self.how.dropout:
            return x
        return self.block.add(x, size, extra=size / self.size.element)

    def attention(self, x: int) -> int:
        model, size = self.model, self.size
        width = size.heads / size.gathered * model.hidden
        keys = size.keys / size.gathered * model.hidden
        biased = 1 if model.biases else 0
        a = self.gathered(self.norm(x))
        if self.model.learned_positions:
            size_qkv = size.heads + 2 * size.keys
            parameters = (model.hidden + biased) * (width + 2 * keys)
            joint = self.product(a, size_qkv, parameters, from_whole=True, is_qkv=True)
            heads: tuple[int, ...] = (joint,)
        else:
            q = self.product(a, size.heads, model.hidden * width, from_whole=True, is_qkv=True)
            k, v = (self.product(a, size.keys, model.hidden * keys, from_whole=True, is_qkv=True) for _ in range(2))
            heads = (self.rotated(q, size.heads), self.rotated(k, size.keys), v)
            if self.how.repeats_keys and model.key_heads < model.heads:
                heads = (heads[0], *(self.block.add(one, size.heads) for one in heads[1:]))
        first = len(self.block.ops)
        context = self.core(heads)
        self.inside = range(first, len(self.block.ops))
        o = self.to_whole(self.product(context, size.gathered, width * model.hidden + biased * model.hidden))
        return self.block.add((x, self.dropout(o, size.whole)), size.whole, passes=True)

    def rotated(self, x: int, size: float) -> int:
        """Apply rotary embeddings: in fp32, as complex numbers."""
        scratch = 0.0 if self.how.fuses_rotary else 8.0 * size / self.size.element
        return self.block.add(x, size, scratch=scratch, scratch_back=scratch)

    def core(self, heads: tuple[int, ...]) -> int:
        """Add scores, softmax and attention output."""
        job, size, block = self.job, self.size, self.block
        if job.flash(self.model):
            statistics = 4.0 * size.tokens * self.model.heads / job.tp
            others, others_back = self.from_others()
            return block.add(
                heads,
                size.heads,
                keeps="in out",
                extra=statistics,
                scratch=others,
                scratch_back=others_back,
                part="core",
            )
        scores = size.element * size.tokens * float(job.sample_tokens(self.model)) * self.model.heads / job.tp
        raw = block.add(heads, scores, keeps="in")
        shares = self.dropout(block.add(raw, scores, keeps="out"), scores)
        return block.add((shares, *heads[-1:]), size.heads, keeps="in")

    def from_others(self) -> tuple[float, float]:
        """Additional scratch memory of context-parallel attention, forward and backward: another rank's keys and values
        besides its own while the next ones are received; or those of all ranks at once, results in fp32 and, backward,
        keys' and values' gradients as accumulated, sent and received
        (torch/distributed/tensor/experimental/_attention.py, _templated_ring_attention)."""
        size, ranks = self.size, self.job.cp
        if ranks == 1:
            return 0.0, 0.0
        if not self.how.gathers_context or self.job.cp_exchange != "ring":
            return (4.0 * size.keys + size.heads,) * 2
        exact = 4.0 / size.element
        keys = size.heads if self.how.repeats_keys else size.keys
        gathered = 2.0 * (ranks + 1) * keys
        summed = exact * (size.heads + 6.0 * keys)
        written = (1 + exact) * size.heads + 2.0 * keys  # FlashAttention-2 accumulates query gradients in fp32
        return gathered + (1 + 2 * exact) * size.heads, gathered + summed + written

    def mlp(self, x: int) -> int:
        model, size, block = self.model, self.size, self.block
        sharing = self.job.expert_tp if model.experts > 1 else self.job.tp
        routed, shared = model.experts / self.job.ep, model.shared_experts
        matrix = model.hidden * model.width * (routed / sharing + shared / self.job.tp)
        bias = matrix / model.hidden if model.biases else 0.0
        m = self.gathered(self.norm(x))
        is_routed = model.experts > 1
        if is_routed:
            # Tokens are copied once for each of their experts.
            chosen = model.experts_per_token * (size.whole if self.job.sequence_parallel else size.gathered)
            m = block.add(m, chosen, weight=size.gradient * model.hidden * model.experts, keeps="in")
        if not model.gated:
            up = self.product(m, size.inner, matrix + bias, from_whole=not is_routed)
            active = block.add(up, size.inner, keeps="in", part="pointwise")
        else:
            gate, up = (self.product(m, size.inner, matrix + bias, from_whole=not is_routed) for _ in ("gate", "up"))
            if model.clamped and implementations()[self.job.implemented_by(model)].clamped:
                gate, up = (block.add(one, size.inner, keeps="in", part="pointwise") for one in (gate, up))
            if not self.how.joins_gate:
                gate = block.add(gate, size.inner, keeps="in", part="pointwise")
            active = block.add((gate, up), size.inner, keeps="in", part="pointwise")
        out = size.gathered * (model.experts_per_token * sharing / self.job.tp if is_routed else 1)
        down = self.product(active, out, matrix + (model.hidden * (routed + shared) if model.biases else 0))
        if is_routed:
            down = block.add(down, size.gathered, keeps="in" if self.how.weighs_outputs else "")
        return block.add((x, self.dropout(self.to_whole(down), size.whole)), size.whole, passes=True)


def layer(model: Transformer, job: Job) -> Block:
    """Return one layer, checkpointed as in the job: "selective" recomputes scores to attention output (Korthikanti et
    al., section 5), "pointwise" norms and the MLP's activation (Megatron-Core's --recompute-modules layernorm moe_act),
    "full" everything, "operators" everything but attention and every other GEMM (torchtitan's selective_ac_option
    "op")."""
    writer = _Layer(model, job)
    writer.mlp(writer.attention(0))
    block = writer.block
    if job.recompute == "full":
        return block.checkpoint()
    if job.recompute == "selective" and not job.flash(model):
        return block.checkpoint(writer.inside)
    if job.recompute == "pointwise":
        again = {op.output for op in block.ops if op.part == "pointwise"}
        return block.checkpoint(stored={tensor for op in block.ops for tensor in op.keeps} - again)
    if job.recompute == "operators":
        products = [op.output for op in block.ops if op.part == "product"]
        return block.checkpoint(
            stored=[*products[::2], *(op.output for op in block.ops if op.part in ("core", "scatter"))]
        )
    return block


def embedding(model: Transformer, job: Job) -> Block:
    """Return the embedding lookup and added positions. Its input, the token ids, counts as 0 bytes."""
    writer = _Layer(model, job)
    block = writer.block = Block([0.0])
    whole, gradient = writer.size.whole, writer.size.gradient
    x = block.add(0, whole, weight=gradient * model.hidden * model.vocabulary / job.tp)
    if model.learned_positions:
        x = block.add(x, whole, weight=gradient * model.hidden * model.sequence, passes=True)
    writer.dropout(x, whole)
    return block


def head(model: Transformer, job: Job) -> Block:
    """Return the final norm, the projection to the vocabulary, and the loss."""
    writer = _Layer(model, job)
    block, size = writer.block, writer.size
    count = size.tokens * model.vocabulary / job.tp
    logits = writer.product(
        writer.gathered(writer.norm(0)),
        size.element * count,
        model.hidden * model.vocabulary / job.tp,
        from_whole=True,
        is_quantized=False,
    )
    loss = loss_tensors(model, job)
    exact = logits
    if loss.to_fp32 and size.element < 4:
        exact = block.add(logits, 4.0 * count)
        block.held = frozenset((logits,))
    each = 4.0 * size.tokens
    if not loss.keeps_shares:
        block.add(logits, each, keeps="in", overwrites=loss.overwrites)
    elif loss.overwrites:
        block.add(exact, each, extra=4.0 * count, overwrites=True)
    elif job.tp > 1:
        # Difference to the maximum and its exponential; in backward a sum, a product and their operands
        # (torch/distributed/tensor/parallel/loss.py).
        block.add(exact, each, extra=4.0 * count, scratch=4.0 * count, scratch_back=8.0 * count)
    else:
        block.add(block.add(exact, (4.0 if loss.to_fp32 else size.element) * count, keeps="out"), each, keeps="in")
    return block
