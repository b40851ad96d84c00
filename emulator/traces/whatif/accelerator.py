"""What-if changes: a faster accelerator, and half precision on the same one."""

import dataclasses

import numpy as np

from emulator.traces.joined import Joined
from emulator.traces.whatif import edits
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.serial import one_at_a_time
from emulator.traces.whatif.speeds import Speeds

HALF_MATRIX, HALF_OTHER = 3.0, 2.0
"""Speed-up by half precision, of GEMMs and of other kernels (Daydream, ATC 2020, section 5.1)."""


def accelerator(joined: Joined, matrix: float, memory: float | None = None) -> Joined:
    """Speed up GEMMs by `matrix`, other compute by `memory` (default: the same); only kernels, if there are any."""
    matrix = edits.positive(matrix, "accelerator")
    memory = matrix if memory is None else edits.positive(memory, "accelerator")
    return accelerator_of(joined, Speeds(matrix, memory, matrix))


def accelerator_of(joined: Joined, speeds: Speeds) -> Joined:
    """Speed up compute by class of kernel, with the factors of `speeds.speeds` for an accelerator."""
    for factor in (speeds.matrix, speeds.memory, speeds.attention):
        edits.positive(factor, "accelerator")
    joined = one_at_a_time(joined)
    ops = np.flatnonzero(edits.computes(joined))
    names = [joined.graph.op_types.name[op_type] for op_type in joined.graph.ops.op_type[ops].tolist()]
    return edits.with_durations(joined, ops, speeds.seconds(names, edits.durations(joined)[ops]))


def half_precision(joined: Joined, host_speed: float, least_s: float) -> Joined:
    """Speed up an accelerator's kernels by `HALF_MATRIX` and `HALF_OTHER`, a host's operators by `host_speed`, and
    halve gradients. `least_s`: size-independent part of an all-reduce's time."""
    speeds = (HALF_MATRIX, HALF_OTHER) if edits.is_on_device(joined).any() else (host_speed, host_speed)
    transfers = gradients(joined).transfers
    joined = accelerator(joined, *speeds)
    size = joined.graph.op_types.bytes.copy()
    size[np.unique(joined.graph.transfers.op_type[transfers])] /= 2
    moved, elapsed_s = joined.costs.transfer_bytes[transfers], joined.costs.transfer_fixed_s[transfers]
    # A traced duration, not bytes at a rate: the part above the fixed one is halved.
    elapsed_s = np.where(moved == 0, (elapsed_s + np.minimum(least_s, elapsed_s)) / 2, elapsed_s)
    joined = edits.with_costs(
        edits.with_table(joined, "op_types", bytes=size),
        transfers,
        transfer_bytes=moved / 2,
        transfer_fixed_s=elapsed_s,
    )
    return dataclasses.replace(joined, gradients=[(op, bucket, size / 2) for op, bucket, size in joined.gradients])
