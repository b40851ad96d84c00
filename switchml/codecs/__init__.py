"""Compressors of gradients and activations, one a file, and the memories that keep what they leave out.

    codec, memory = parse("topk:ratio=0.01"), parse_memory("residual")
    payload = codec.compress(codec.new_state(), x, StepContext(name="layer", step=0))
    y = codec.decompress(payload, x.size)

`allreduce` is one compressed all-reduce as a generator; docs/codecs.md has the list and what each costs.
"""

from switchml.codecs.base import (
    AGGREGATIONS,
    HALVES,
    Codec,
    Gather,
    Max,
    Memory,
    Outcome,
    Payload,
    Request,
    SparseSum,
    StepContext,
    Sum,
)
from switchml.codecs.exchange import allreduce, max_as_sum, max_of_sum, together
from switchml.codecs.registry import CODECS, MEMORIES, by_number, parse, parse_memory

__all__ = [
    "AGGREGATIONS",
    "CODECS",
    "HALVES",
    "MEMORIES",
    "Codec",
    "Gather",
    "Max",
    "Memory",
    "Outcome",
    "Payload",
    "Request",
    "SparseSum",
    "Sum",
    "StepContext",
    "allreduce",
    "by_number",
    "max_as_sum",
    "max_of_sum",
    "parse",
    "parse_memory",
    "together",
]
