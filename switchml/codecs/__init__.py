"""Codecs for gradients and activations, one per module, and error feedback, which keeps the compression error.

    codec, feedback = parse("topk:ratio=0.01"), parse_error_feedback("residual")
    payload = codec.compress(codec.new_state(), x, StepContext(name="layer", step=0))
    y = codec.decompress(payload, x.size)

`allreduce` is one compressed all-reduce as a generator; docs/codecs.md lists the codecs and their costs.
"""

from switchml.codecs.base import (
    AGGREGATIONS,
    HALVES,
    Codec,
    ErrorFeedback,
    Gather,
    Max,
    Outcome,
    Payload,
    Request,
    SparseSum,
    StepContext,
    Sum,
)
from switchml.codecs.exchange import allreduce, max_as_sum, max_of_sum, together
from switchml.codecs.registry import CODECS, ERROR_FEEDBACKS, by_number, parse, parse_error_feedback

__all__ = [
    "AGGREGATIONS",
    "CODECS",
    "HALVES",
    "ERROR_FEEDBACKS",
    "Codec",
    "ErrorFeedback",
    "Gather",
    "Max",
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
    "parse_error_feedback",
    "together",
]
