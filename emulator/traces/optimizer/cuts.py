"""Computes the best buckets, if gradients become final sequentially, buckets are runs of them, and all-reduces are
sequential. `fastest` is exact if all later ops wait for all buckets, as with DDP (`is_path`); otherwise a good start.
The earliest end e[b, j] of reducing the first j gradients in b buckets is the minimum, over the last bucket's first
gradient i and its codec, of max(e[b - 1, i], ready[j]) plus the bucket's duration (dPRO's tensor fusion, MLSys 2022,
section 5.2). The number of buckets is that with the earliest end, including the uncertainty of each all-reduce: one
that is hidden in an idle period of the network is free in a replay, but not on a host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.jobs.replay.engine import replay
from emulator.traces.joined import Joined
from emulator.traces.optimizer.machine import Machine
from emulator.traces.whatif.buckets import caps_of
from emulator.traces.whatif.edits import edges
from emulator.traces.whatif.gradients import gradients
from switchml.runtime.jit import kernel

MAX_BUCKETS = 64
"""Maximum number of buckets considered."""


@dataclass(frozen=True)
class Choice:
    """A codec option of a bucket. `fixed_s`, then `per_byte_s` per byte, codec and all-reduce together; plus
    `repeat_s_per_byte` for each of its first `guessed_bytes` where exponents are guessed."""

    codec: str
    fixed_s: float
    per_byte_s: float
    repeat_s_per_byte: float = 0.0
    guessed_bytes: float = 0.0


def choices(machine: Machine, allreduce: str, codecs: Sequence[str]) -> list[Choice]:
    """Return the option for each codec ("" is none)."""
    options = []
    for spec in codecs:
        transfer = machine.compressed(allreduce, spec)
        codec_s = 1 / machine.codec(spec).bytes_per_s if spec else 0.0
        byte_s = 1 / transfer.bytes_per_s
        repeat_s = transfer.repeat_share * byte_s
        options.append(Choice(spec, transfer.fixed_s, byte_s + codec_s, repeat_s, transfer.guessed_bytes))
    return options


def ready(joined: Joined) -> tuple[np.ndarray, np.ndarray]:
    """Return when each gradient and all before it are final on the last rank, and its bytes, float64 (gradients,)
    each."""
    present = gradients(joined)
    end_s = replay(joined.graph, joined.costs).end_s
    return np.maximum.accumulate(end_s[present.op].max(axis=0)), present.bytes


def fastest(
    ready_s: np.ndarray, sizes: np.ndarray, options: Sequence[Choice], uncertainty_s: float
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return (caps in bytes, codec of each bucket) of the buckets with the earliest end of the last all-reduce, each
    with an additional cost of `uncertainty_s`. Gradients have `sizes` bytes and are final at `ready_s`, which must not
    decrease."""
    first, option, end_s = path(ready_s, sizes, *columns(options), min(len(sizes), MAX_BUCKETS))
    left = int(np.argmin(end_s[:, -1] + uncertainty_s * np.arange(len(end_s))))
    bucket = np.zeros(len(sizes), np.int64)
    codecs = []
    at = len(bucket)
    for number in range(left, 0, -1):
        begin = first[number, at]
        bucket[begin:at] = number - 1
        codecs.append(options[option[number, at]].codec)
        at = begin
    return caps_of(sizes, bucket), tuple(codecs[::-1])


def columns(options: Sequence[Choice]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
    """Return the last arguments of `path`."""
    numbers = [(one.fixed_s, one.per_byte_s, one.repeat_s_per_byte, one.guessed_bytes) for one in options]
    return *np.array(numbers).T.copy(), any(one.codec for one in options)


def is_path(joined: Joined) -> bool:
    """Return whether every op that waits for a bucket waits for all buckets of its rank."""
    ops = joined.graph.ops
    transfers = gradients(joined).transfers
    owner, on = edges(ops)
    waiting = owner[np.isin(ops.transfer[on], transfers)]
    return bool(np.all(np.unique(waiting, return_counts=True)[1] == len(transfers)))


@kernel
def path(ready_s, size, fixed_s, per_byte_s, repeat_s_per_byte, guessed_bytes, in_turns, most):
    """Return for up to `most` buckets (row) of the first gradients (column), from 0: the start of the last bucket, its
    option, and the time at which all are reduced. `in_turns`: all-reduces do not queue, so exponents are never
    announced."""
    count = len(size)
    first, option = np.zeros((most + 1, count + 1), np.int64), np.zeros((most + 1, count + 1), np.int64)
    end_s = np.full((most + 1, count + 1), np.inf)
    end_s[0, 0] = 0.0
    for bucket in range(1, most + 1):
        for j in range(bucket, count + 1):
            filled = 0.0
            for i in range(j - 1, bucket - 2, -1):
                filled += size[i]
                begun_s = max(end_s[bucket - 1, i], ready_s[j - 1])
                waited_s = 0.0 if in_turns else begun_s - ready_s[j - 1]
                for k in range(len(fixed_s)):
                    guessed = min(filled, max(guessed_bytes[k] - waited_s / per_byte_s[k], 0.0))
                    done_s = begun_s + fixed_s[k] + filled * per_byte_s[k] + guessed * repeat_s_per_byte[k]
                    if done_s < end_s[bucket, j]:
                        first[bucket, j], option[bucket, j], end_s[bucket, j] = i, k, done_s
    return first, option, end_s
