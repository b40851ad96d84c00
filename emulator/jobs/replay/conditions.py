"""Replay conditions besides costs: stragglers, noise, pauses, and interference. All of it is seeded and indexed by op,
so that a seed gives the same run in every engine, regardless of the order in which it processes ops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from emulator.jobs.workload.graph import Graph
from switchml.errors import ConfigError
from switchml.runtime.jit import kernel


@dataclass(frozen=True)
class Pause:
    """A pause in a rank's compute: a transient failure, garbage collection, a preemption."""

    rank: int
    from_s: float
    until_s: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Conditions of a replay; the defaults are an ideal machine."""

    slowness: dict[int, float] = field(default_factory=dict)
    """Rank → factor on the duration of its own ops (1.5: 50 % longer)."""
    jitter: float = 0.0
    """Standard deviation of op durations relative to their mean; log-normal, preserving the mean."""
    comm_jitter: float = 0.0
    """Standard deviation of transfer durations relative to their mean, likewise log-normal."""
    seed: int = 0
    pauses: tuple[Pause, ...] = ()
    overlap_slowdown: float | dict[int, float] = 0.0
    """Relative increase of compute time while a collective or send of its rank is in progress: 0.15 is 15 % longer; for
    all jobs, or by job."""
    start_s: dict[int, float] = field(default_factory=dict)
    """Job → submission time; default 0."""
    share_links: bool = True
    """Whether transfers share links; otherwise each has its whole route exclusively."""

    def __post_init__(self) -> None:
        for rank, factor in self.slowness.items():
            if not (factor > 0 and np.isfinite(factor)):
                raise ConfigError(f"rank {rank} is {factor} times as slow as the others; expected a factor above 0")
        shares = [("jitter", self.jitter), ("comm_jitter", self.comm_jitter)]
        shares += [("overlap_slowdown", share) for share in self.slowdowns().values()]
        for name, share in shares:
            if not 0 <= share < 100:
                raise ConfigError(f"{name} is {share}; expected a share from 0 (none) to 100, such as 0.05")
        for pause in self.pauses:
            if not 0 <= pause.from_s <= pause.until_s < np.inf:
                raise ConfigError(f"a pause from {pause.from_s} s to {pause.until_s} s; expected times that rise")
        for job, start_s in self.start_s.items():
            if not 0 <= start_s < np.inf:
                raise ConfigError(f"job {job} starts at {start_s} s; expected at least 0")

    def slowdowns(self) -> dict[int, float]:
        """Job → slowdown; −1: all jobs."""
        return self.overlap_slowdown if isinstance(self.overlap_slowdown, dict) else {-1: self.overlap_slowdown}

    def for_kernels(self, graph: Graph) -> Flat:
        """Return the conditions as arrays over the ranks of `graph`."""
        ranks = len(graph.ranks)
        for what, numbers in (("slowness", self.slowness), ("pauses", [pause.rank for pause in self.pauses])):
            for rank in numbers:
                if not 0 <= rank < ranks:
                    raise ConfigError(f"{what} names rank {rank}; the job has ranks 0 to {ranks - 1}")
        named = [("start_s", job) for job in self.start_s]
        named += [("overlap_slowdown", job) for job in self.slowdowns() if job >= 0]
        for what, job in named:
            if not 0 <= job < len(graph.job_names):
                raise ConfigError(f"{what} names job {job}; there are {len(graph.job_names)}")
        slowness, start_s, slowdown = np.ones(ranks), np.zeros(ranks), np.zeros(ranks)
        for job, share in self.slowdowns().items():
            slowdown[(graph.ranks.job == job) | (job < 0)] = share
        slowness[list(self.slowness)] = list(self.slowness.values())
        for job, begin_s in self.start_s.items():
            start_s[graph.ranks.job == job] = begin_s
        pauses = sorted(self.pauses, key=lambda pause: (pause.rank, pause.from_s))
        for before, after in zip(pauses, pauses[1:], strict=False):
            if before.rank == after.rank and after.from_s < before.until_s:
                raise ConfigError(f"two pauses of rank {after.rank} overlap, from {after.from_s} s on")
        return Flat(
            slowness=slowness,
            start_s=start_s,
            pause_start=np.searchsorted([pause.rank for pause in pauses], np.arange(ranks + 1)).astype(np.int64),
            pause_from_s=np.array([pause.from_s for pause in pauses], np.float64),
            pause_until_s=np.array([pause.until_s for pause in pauses], np.float64),
            sigma=float(np.sqrt(np.log1p(self.jitter**2))),
            seed=np.uint64(self.seed % 2**64),
            slowdown=slowdown,
        )


class Flat(NamedTuple):
    """`Conditions` for kernels: arrays (ranks,), with pauses as runs, `pause_start` (ranks + 1,)."""

    slowness: np.ndarray
    start_s: np.ndarray
    pause_start: np.ndarray
    pause_from_s: np.ndarray
    pause_until_s: np.ndarray
    sigma: float
    """Standard deviation of the logarithm of op durations."""
    seed: np.uint64
    slowdown: np.ndarray


@kernel(forceinline=True)
def _uniform(z):
    """One step of SplitMix64: a number in the open interval from 0 to 1, and the bits from which it is derived."""
    z += np.uint64(0x9E3779B97F4A7C15)
    mixed = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (np.float64(mixed >> np.uint64(11)) + 0.5) * 2.0**-53, mixed


@kernel(forceinline=True)
def noise(seed, number, sigma):
    """A log-normal factor of mean 1 that depends on `seed` and `number` alone (SplitMix64, then Box-Muller)."""
    z = seed + (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    first, mixed = _uniform(z)
    second, mixed = _uniform((z + np.uint64(0x9E3779B97F4A7C15)) ^ mixed)
    normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    return np.exp(sigma * normal - 0.5 * sigma * sigma)


@kernel
def noises(seed, count, sigma):
    """`noise` for the numbers 0 to count − 1 of a sequence separate from that of ops; float64 (count,)."""
    out = np.empty(count)
    for number in range(count):
        out[number] = noise(~seed, number, sigma)
    return out


@kernel
def finish(flat, rank, start_s, seconds):
    """End time of work of `seconds` that `rank` begins at `start_s`, pauses included. Zero-length work is not delayed
    by pauses."""
    end_s = start_s + seconds
    if seconds == 0:
        return end_s
    for i in range(flat.pause_start[rank], flat.pause_start[rank + 1]):
        if flat.pause_until_s[i] <= start_s:
            continue
        if flat.pause_from_s[i] >= end_s:
            break
        end_s += flat.pause_until_s[i] - max(start_s, flat.pause_from_s[i])
    return end_s
