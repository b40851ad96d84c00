"""Finds gradient compression that takes longer than it saves."""

import numpy as np

from emulator.jobs.replay.parts import COMPRESSION
from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.context import DiagnosisContext, Finding
from switchml.units import bytes_text, time_text


def find(context: DiagnosisContext) -> list[Finding]:
    """Return at most one finding: the job without its codec, its buckets as large as their gradients."""
    codes = context.kind == Kind.CODEC
    if not codes.any():
        return []
    ratio = ratios(context)
    faster_s = context.replayed_s(own_s=np.where(codes, 0.0, context.own_s), transfer_s=context.transfer_s * ratio)
    by_rank_s = np.bincount(context.rank[codes], context.own_s[codes], minlength=len(context.graph.ranks))
    sent = np.where(ratio > 1, context.graph.op_types.bytes[context.graph.transfers.op_type], 0.0)
    spared_s = float((context.transfer_s * (ratio - 1)).sum())
    codec = next((trace.about["codec"] for trace in context.joined.traces if trace.about.get("codec")), "the codec")
    return context.report(
        "compression",
        f"{codec} costs more than it saves",
        gain_s=context.iteration_s - faster_s,
        evidence=[
            f"compressing and decompressing: {time_text(by_rank_s.mean())} a rank, of which nothing hides "
            f"{time_text(context.causes.parts.by_rank[:, COMPRESSION].mean())}",
            f"what it spares on the wire: {time_text(spared_s)}, with {bytes_text(float(sent.sum()))} sent where "
            f"{bytes_text(float((ratio * sent).sum()))} would be",
        ],
        settings=["no codec, or a faster one: fp16 and int8 cost little more than a copy (--codec fp16)"],
        replayed="no compression; all-reduces longer by the bytes that it spared",
        sightings=context.sightings(np.flatnonzero(codes)),
    )


def ratios(context: DiagnosisContext) -> np.ndarray:
    """Return the compression ratio of each bucket, float64 (transfers,): bytes of its gradients over bytes sent; 1 if
    unknown."""
    count = len(context.graph.transfers)
    sent = context.graph.op_types.bytes[context.graph.transfers.op_type]
    listed = [(op, transfer, size) for op, transfer, size in context.joined.gradients if transfer >= 0]
    if not listed:
        return np.ones(count)
    op, transfer, size = (np.array(column) for column in zip(*listed, strict=True))
    of_all_ranks = np.bincount(transfer, size, minlength=count)
    ranks = np.bincount(np.unique(np.stack([transfer, context.rank[op]]), axis=1)[0], minlength=count)
    gradient_bytes = of_all_ranks / np.maximum(ranks, 1)
    return np.divide(gradient_bytes, sent, out=np.ones(count), where=(sent > 0) & (gradient_bytes > 0))
