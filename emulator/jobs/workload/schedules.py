"""In which order a pipeline stage takes its forward and backward passes. A schedule is an array (passes, 3) int32: 1
for forward or 0 for backward, micro-batch, and which of the stage's pieces of the model (0 without interleaving).
"""

from __future__ import annotations

import numpy as np

from emulator.jobs.workload.job import Job


def passes(job: Job, stage: int) -> np.ndarray:
    """The order of `stage`. A message-driven stage (AxoNN) has none: it takes what has arrived; its order here is that
    of 1F1B and only numbers the passes."""
    if job.schedule == "gpipe":
        return _gpipe(job.micro_batches)
    if job.schedule == "interleaved":
        return _interleaved(job.micro_batches, job.pp, job.virtual_stages, stage)
    return _one_forward_one_backward(job.micro_batches, job.pp, stage)


def _gpipe(count: int) -> np.ndarray:
    """All forward, then all backward in the opposite order (Huang et al., NeurIPS 2019)."""
    forward = [(1, i, 0) for i in range(count)]
    return np.array(forward + [(0, i, 0) for i in reversed(range(count))], np.int32)


def _one_forward_one_backward(count: int, stages: int, stage: int) -> np.ndarray:
    """Forward until the pipeline behind is full, then one backward for each forward (PipeDream-flush; Narayanan et
    al., ICML 2021)."""
    warm = min(stages - stage - 1, count)
    order = [(1, i, 0) for i in range(warm)]
    for i in range(count - warm):
        order += [(1, warm + i, 0), (0, i, 0)]
    order += [(0, i, 0) for i in range(count - warm, count)]
    return np.array(order, np.int32)


def _interleaved(count: int, stages: int, pieces: int, stage: int) -> np.ndarray:
    """As 1F1B, but in groups of `stages` micro-batches that go through one piece after the other (Narayanan et al., SC
    2021, section 2.2; Megatron-LM, forward_backward_pipelining_with_interleaving)."""
    total = count * pieces

    def nth(number: int, forward: bool) -> tuple[int, int, int]:
        group, within = divmod(number, stages * pieces)
        piece, place = divmod(within, stages)
        return int(forward), group * stages + place, piece if forward else pieces - 1 - piece

    warm = total if count == stages else min((stages - stage - 1) * 2 + (pieces - 1) * stages, total)
    order = [nth(i, True) for i in range(warm)]
    for i in range(total - warm):
        order += [nth(warm + i, True), nth(i, False)]
    order += [nth(i, False) for i in range(total - warm, total)]
    return np.array(order, np.int32)
