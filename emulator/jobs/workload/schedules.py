"""In which order a pipeline stage takes its forward and backward passes. A schedule is an array (passes, 3) int32: 1
for forward or 0 for backward, micro-batch, and which of the stage's pieces of the model (0 without interleaving).
"""

import numpy as np

from emulator.jobs.workload.job import Job


def passes(job: Job, stage: int) -> np.ndarray:
    """The order of `stage`. A message-driven stage (AxoNN) has none: it takes what has arrived; its order here is that
    of 1F1B and only numbers the passes."""
    count, stages = job.micro_batches, job.pp
    if job.schedule == "interleaved":
        return _interleaved(count, stages, job.virtual_stages, stage)
    number = np.arange(count)
    if job.schedule == "gpipe":  # all forward, then all backward in the opposite order (Huang et al., NeurIPS 2019)
        return np.concatenate([_passes(1, number, 0), _passes(0, number[::-1], 0)])
    # Forward until the pipeline behind is full (PipeDream-flush; Narayanan et al., ICML 2021).
    return _alternating(_passes(1, number, 0), _passes(0, number, 0), min(stages - stage - 1, count))


def _interleaved(count: int, stages: int, pieces: int, stage: int) -> np.ndarray:
    """As 1F1B, but in groups of `stages` micro-batches that go through one piece after the other (Narayanan et al., SC
    2021, section 2.2; Megatron-LM, forward_backward_pipelining_with_interleaving)."""
    total = count * pieces
    group, within = np.divmod(np.arange(total), stages * pieces)
    piece, place = np.divmod(within, stages)
    micro_batch = group * stages + place
    warm = total if count == stages else min((stages - stage - 1) * 2 + (pieces - 1) * stages, total)
    return _alternating(_passes(1, micro_batch, piece), _passes(0, micro_batch, pieces - 1 - piece), warm)


def _passes(forward: int, micro_batch: np.ndarray, piece: int | np.ndarray) -> np.ndarray:
    passes = np.empty((len(micro_batch), 3), np.int32)
    passes[:, 0], passes[:, 1], passes[:, 2] = forward, micro_batch, piece
    return passes


def _alternating(forward: np.ndarray, backward: np.ndarray, warm: int) -> np.ndarray:
    """`warm` forward passes, one backward after each of the other forward ones, then what is left."""
    steady = len(forward) - warm
    pairs = np.stack([forward[warm:], backward[:steady]], axis=1).reshape(-1, 3)
    return np.concatenate([forward[:warm], pairs, backward[steady:]])
