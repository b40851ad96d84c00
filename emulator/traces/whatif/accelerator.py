"""A faster accelerator, and half precision on the same one."""

import dataclasses

import numpy as np

from emulator.traces.joined import Joined
from emulator.traces.whatif import edits
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.serial import one_at_a_time
from emulator.traces.whatif.speeds import Speeds

HALF_MATRIX, HALF_OTHER = 3.0, 2.0
"""Speed-up by half precision, of matrix products and of other kernels (Daydream, ATC 2020, section 5.1)."""


def accelerator(joined: Joined, matrix: float, memory: float | None = None) -> Joined:
    """Compute `matrix` times as fast, and `memory` (default: the same) other than matrix products; kernels if any."""
    matrix = edits.positive(matrix, "accelerator")
    memory = matrix if memory is None else edits.positive(memory, "accelerator")
    return accelerator_of(joined, Speeds(matrix, memory, matrix))


def accelerator_of(joined: Joined, speeds: Speeds) -> Joined:
    """The same by class of kernel, as `speeds.speeds` finds them for an accelerator."""
    for factor in (speeds.matrix, speeds.memory, speeds.attention):
        edits.positive(factor, "accelerator")
    joined = one_at_a_time(joined)
    ops = np.flatnonzero(edits.computes(joined))
    names = [joined.graph.op_types.name[op_type] for op_type in joined.graph.ops.op_type[ops].tolist()]
    return edits.with_durations(joined, ops, speeds.seconds(names, edits.durations(joined)[ops]))


def half_precision(joined: Joined, host_speed: float, least_s: float) -> Joined:
    """An accelerator's kernels as `HALF_MATRIX` and `HALF_OTHER` say, a host's operators `host_speed` times as fast,
    and half of each gradient. `least_s`: of an all-reduce's time, what does not depend on its size."""
    speeds = (HALF_MATRIX, HALF_OTHER) if edits.is_on_device(joined).any() else (host_speed, host_speed)
    transfers = gradients(joined).transfers
    joined = accelerator(joined, *speeds)
    size = joined.graph.op_types.bytes.copy()
    size[np.unique(joined.graph.transfers.op_type[transfers])] /= 2
    moved, elapsed_s = joined.costs.transfer_bytes[transfers], joined.costs.transfer_fixed_s[transfers]
    # A traced duration, not bytes at a rate: what is above the fixed part halves.
    elapsed_s = np.where(moved == 0, (elapsed_s + np.minimum(least_s, elapsed_s)) / 2, elapsed_s)
    joined = edits.with_costs(
        edits.with_table(joined, "op_types", bytes=size),
        transfers,
        transfer_bytes=moved / 2,
        transfer_fixed_s=elapsed_s,
    )
    return dataclasses.replace(joined, gradients=[(op, bucket, size / 2) for op, bucket, size in joined.gradients])
