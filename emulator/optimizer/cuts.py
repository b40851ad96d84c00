"""The best buckets, where the space is a path: gradients become final one after the other, buckets are runs of them,
and one all-reduce follows another. `fastest` is exact for jobs in which all that comes later waits for all buckets, as
with DDP (`is_path`); for others it is a good start.

The earliest end e[j] of reducing the first j gradients is the smallest, over the last bucket's first gradient i and its
codec, of max(e[i], ready[j]) + what the bucket takes. An earlier end never makes a later one later, so nothing else of
the past matters (the optimal substructure of dPRO's tensor fusion, MLSys 2022, section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.replay.engine import replay
from emulator.trace.buckets import caps_of, gradients
from emulator.trace.joined import Joined
from switchml.jit import kernel


@dataclass(frozen=True)
class Choice:
    """What one bucket may go through. `fixed_s`, then `per_byte_s` for each of its bytes, codec and all-reduce together;
    `again_s` more for each of its first `guessed_bytes` where exponents are guessed."""

    codec: str
    fixed_s: float
    per_byte_s: float
    again_s: float = 0.0
    guessed_bytes: float = 0.0


def choices(machine: Machine, placement: str, codecs: Sequence[str]) -> list[Choice]:
    """For each codec ("" is none), at worst."""
    found = []
    for spec in codecs:
        transfer = machine.compressed(placement, spec)
        codec_s = 1 / machine.codec(spec).bytes_per_s if spec else 0.0
        found.append(
            Choice(
                spec,
                transfer.fixed_s + machine.doubt_s,
                1 / transfer.bytes_per_s + codec_s,
                transfer.again / transfer.bytes_per_s,
                transfer.guessed_bytes,
            )
        )
    return found


def ready(joined: Joined) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 (gradients,): when each is final on its last rank, with all before it; and its bytes."""
    found = gradients(joined)
    end_s = replay(joined.graph, joined.costs).end_s
    return np.maximum.accumulate(end_s[found.op].max(axis=0)), found.bytes


def fastest(
    ready_s: np.ndarray, sizes: np.ndarray, options: Sequence[Choice]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(caps in bytes, codec of each bucket) of the buckets that are all reduced first. Gradients have `sizes` bytes and
    are final at `ready_s`, which must not fall."""
    first, option, _ = path(ready_s, sizes, *columns(options))
    bucket = np.zeros(len(sizes), np.int64)
    codecs = []
    at = len(bucket)
    while at > 0:
        bucket[first[at] : at] = -len(codecs)
        codecs.append(options[option[at]].codec)
        at = first[at]
    return caps_of(sizes, bucket - bucket[0]), tuple(codecs[::-1])


def columns(options: Sequence[Choice]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
    """`path`'s last arguments."""
    numbers = [(one.fixed_s, one.per_byte_s, one.again_s, one.guessed_bytes) for one in options]
    return *np.array(numbers).T.copy(), any(one.codec for one in options)


def is_path(joined: Joined) -> bool:
    """Whether every op that waits for a bucket waits for all of its rank."""
    ops = joined.graph.ops
    meetings = gradients(joined).meetings
    of_dep = np.repeat(np.arange(len(ops)), np.diff(ops.dep_start))
    waits = np.isin(ops.meeting[ops.deps], meetings)
    return bool(np.all(np.bincount(of_dep[waits])[np.unique(of_dep[waits])] == len(meetings)))


@kernel
def path(ready_s, size, fixed_s, per_byte_s, again_s, guessed_bytes, in_turns):
    """For the first j gradients, j from 0: where the last bucket begins, its option, and when all are reduced.
    `in_turns`: no all-reduce waits in line, so exponents are guessed in all of them, not in the first alone."""
    count = len(size)
    first, option = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    end_s = np.full(count + 1, np.inf)
    end_s[0] = 0.0
    for j in range(1, count + 1):
        held = 0.0
        for i in range(j - 1, -1, -1):
            held += size[i]
            for k in range(len(fixed_s)):
                done_s = max(end_s[i], ready_s[j - 1]) + fixed_s[k] + held * per_byte_s[k]
                if in_turns or i == 0:
                    done_s += again_s[k] * min(held, guessed_bytes[k])
                if done_s < end_s[j]:
                    first[j], option[j], end_s[j] = i, k, done_s
    return first, option, end_s
