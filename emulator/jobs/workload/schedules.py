"""Pipeline schedules: the order of a stage's forward and backward passes. A schedule is an array (passes, 3) int32: 1
for forward, 0 for backward or 2 for separate weight gradients; micro-batch; and piece of the model on the stage (0
without interleaving).
"""

import numpy as np

from emulator.jobs.workload.job import Job

WEIGHTS = 2


def passes(job: Job, stage: int) -> np.ndarray:
    """Return the order of passes of `stage`. A message-driven stage (AxoNN) runs passes in order of arrival; the order
    returned for it is that of 1F1B and only numbers the passes."""
    count, stages = job.micro_batches, job.pp
    if job.schedule == "interleaved":
        return _interleaved(count, stages, job.virtual_stages, stage)
    number = np.arange(count)
    if job.schedule == "gpipe":  # all forward, then all backward in the opposite order (Huang et al., NeurIPS 2019)
        return np.concatenate([_passes(1, number, 0), _passes(0, number[::-1], 0)])
    # Forward until the rest of the pipeline is full (PipeDream-flush; Narayanan et al., ICML 2021).
    order = _alternating(_passes(1, number, 0), _passes(0, number, 0), min(stages - stage - 1, count))
    return _apart(order, min(stage, count)) if job.splits_backward else order


def _apart(order: np.ndarray, late: int) -> np.ndarray:
    """Insert weight-gradient passes as in ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2024, section 2.3;
    pytorch, distributed/pipelining/schedules.py, ScheduleInterleavedZeroBubble): after each backward pass those of the
    micro-batch `late` before it, and the remaining ones at the end. Later stages, whose first backward pass is earlier,
    delay them by more."""
    ends = np.cumsum(order[:, 0] == 0)
    made = _passes(WEIGHTS, np.arange(ends[-1] - late), 0)
    after = np.searchsorted(ends, np.arange(late + 1, ends[-1] + 1)) + 1
    left = _passes(WEIGHTS, np.arange(ends[-1] - late, ends[-1]), 0)
    return np.concatenate([np.insert(order, after, made, axis=0), left])


def _interleaved(count: int, stages: int, pieces: int, stage: int) -> np.ndarray:
    """1F1B in groups of `stages` micro-batches that pass one piece after the other (Narayanan et al., SC 2021, section
    2.2; Megatron-LM, forward_backward_pipelining_with_interleaving)."""
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
    """Return `warm` forward passes, then the other forward passes alternating with backward ones, then the remaining
    backward passes."""
    steady = len(forward) - warm
    pairs = np.stack([forward[warm:], backward[:steady]], axis=1).reshape(-1, 3)
    return np.concatenate([forward[:warm], pairs, backward[steady:]])
