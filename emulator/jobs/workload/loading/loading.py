"""Data loaders of a job: PyTorch's loader, the same with an LRU cache, a loader like NoPFS, and SOLAR. Each is
simulated on the index lists of all epochs, which gives each rank's reads in every step; storage bandwidth and seek time
convert them to seconds, and `stalls_s` to the time that training waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emulator.jobs.workload.loading.caches import lru_misses
from host_agent.loading import solar as loading_solar
from switchml.errors import ConfigError
from switchml.runtime.jit import kernel

MAX_ACCESSES = 200_000_000
"""Limit of samples times epochs: some 4 GB of index lists."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set and its access pattern."""

    samples: int
    sample_bytes: float
    global_batch: int
    ranks: int
    epochs: int
    buffer_samples: int = 0
    """Cache size of each rank, in samples."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "global_batch", "ranks", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.global_batch > self.samples or self.global_batch % self.ranks:
            raise ConfigError(
                f"a global batch of {self.global_batch} on {self.ranks} ranks from {self.samples} samples; expected a "
                "multiple of the ranks, and no more than there are samples"
            )
        if self.samples * self.epochs > MAX_ACCESSES:
            raise ConfigError(
                f"{self.samples:,} samples in {self.epochs} epochs are too many to play out (at most "
                f"{MAX_ACCESSES:,}); group samples into larger ones, or take fewer epochs"
            )
        if self.buffer_samples < 0 or not self.sample_bytes > 0:
            raise ConfigError(
                f"{self.buffer_samples} buffered samples of {self.sample_bytes} bytes: expected at least 0 and above 0"
            )

    @property
    def steps(self) -> int:
        """Steps per epoch; the remainder is dropped, as in DistributedSampler(drop_last=True)."""
        return self.samples // self.global_batch

    def batches(self) -> np.ndarray:
        """Return the seeded shuffled index lists of all epochs, int32 (epochs, steps, global batch)."""
        generator = np.random.default_rng(self.seed)
        used = self.steps * self.global_batch
        lists = [generator.permutation(self.samples)[:used] for _ in range(self.epochs)]
        return np.array(lists, np.int32).reshape(self.epochs, self.steps, self.global_batch)

    def dealt(self) -> np.ndarray:
        """Return the batches by rank, int32 (steps of all epochs, global batch / ranks, ranks): sample i of a batch
        belongs to rank i mod ranks."""
        return self.batches().reshape(self.epochs * self.steps, -1, self.ranks)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Performance of the shared storage and of peers' memory."""

    bytes_per_s: float
    """Aggregate bandwidth for all ranks."""
    client_bytes_per_s: float = math.inf
    """Bandwidth limit of one rank."""
    seek_s: float = 0.0
    """Latency of each read before its first byte."""
    reads_at_once: int = 1
    """Concurrent reads of a rank: its loader's workers."""
    peer_bytes_per_s: float = math.inf
    """Bandwidth from another rank's memory."""
    read_cpu_s: float = 0.0
    """Processor time per read on its rank. Concurrent reads overlap their storage latency, but not this."""

    def __post_init__(self) -> None:
        rates = (self.bytes_per_s, self.client_bytes_per_s, self.peer_bytes_per_s)
        if not all(rate > 0 for rate in rates) or min(self.seek_s, self.read_cpu_s) < 0 or self.reads_at_once < 1:
            raise ConfigError("a storage needs rates above 0, times of at least 0 and at least 1 concurrent read")


@dataclass(frozen=True)
class Loads:
    """Activity of a loader in each step; arrays (steps of all epochs, ranks) int64."""

    batch: np.ndarray
    """Samples that the rank trains on."""
    misses: np.ndarray
    """Samples among these that the rank must read from storage."""
    peer_hits: np.ndarray
    """Samples that the rank gets from another rank's memory."""
    reads: np.ndarray
    """Read requests to storage."""
    read_samples: np.ndarray
    """Samples transferred by these requests, including unwanted ones in between."""
    epochs: list[int]
    """Order in which epochs are trained."""

    def seconds(self, dataset: Dataset, storage: Storage) -> np.ndarray:
        """Return the time that each rank's loader is busy with each step's batch, float64 (steps, ranks). Ranks that
        read in a step share storage bandwidth evenly."""
        reading = np.maximum((self.reads > 0).sum(axis=1, keepdims=True), 1)
        rate = np.minimum(storage.client_bytes_per_s, storage.bytes_per_s / reading)
        moving_s = self.read_samples * dataset.sample_bytes / rate
        peers_s = self.peer_hits * dataset.sample_bytes / storage.peer_bytes_per_s
        coming_s = self.reads * storage.seek_s / storage.reads_at_once + moving_s
        return np.maximum(coming_s, self.reads * storage.read_cpu_s) + peers_s

    def hit_rate(self) -> float:
        """Return the share of samples that were not read from storage."""
        return 1.0 - float(self.misses.sum()) / float(self.batch.sum())


@dataclass(frozen=True)
class Work:
    """Estimated resources for simulating a loader."""

    steps: float
    """Simple steps of a compiled loop."""
    size_bytes: float

    @classmethod
    def of(cls, loader: str, dataset: Dataset) -> Work:
        """Return the estimate, as measured: 60 bytes per access; arrays of all samples for each rank of `lru` and
        `nopfs`, which sorts them; in `solar` each rank scans every batch, and epochs are compared in pairs and ordered
        in Python."""
        accesses, places = dataset.samples * dataset.epochs, dataset.ranks * dataset.samples
        kept = dataset.ranks * dataset.buffer_samples
        steps, size_bytes = {
            "lru": (8.0 * places, 0.0),
            "nopfs": (60.0 * places, 2.0 * places),
            "solar": (
                accesses * (2.0 * dataset.ranks + 300.0 * (1 + dataset.ranks / dataset.global_batch))
                + dataset.epochs**2 * (min(kept, dataset.samples) + 8e4),
                64.0 * kept + 16.0 * dataset.ranks * dataset.global_batch + 2.0 * accesses,
            ),
        }.get(loader, (0.0, 0.0))
        return cls(150.0 * accesses + steps, 60.0 * accesses + size_bytes)


def pytorch(dataset: Dataset, storage: Storage) -> Loads:
    """torch's DataLoader with DistributedSampler: no cache."""
    return _by_rank(dataset, lambda accesses: np.ones(len(accesses), bool))


def lru(dataset: Dataset, storage: Storage) -> Loads:
    """torch's DataLoader where each rank has a least-recently-used cache of `buffer_samples`."""
    return _by_rank(dataset, lambda accesses: lru_misses(accesses, dataset.samples, dataset.buffer_samples))


def _by_rank(dataset: Dataset, misses_of: Callable[[np.ndarray], np.ndarray]) -> Loads:
    dealt = dataset.dealt()
    misses = np.empty((len(dealt), dataset.ranks), np.int64)
    for rank in range(dataset.ranks):
        mine = np.ascontiguousarray(dealt[:, :, rank])
        misses[:, rank] = misses_of(mine.ravel()).reshape(mine.shape).sum(axis=1)
    return _one_by_one(dataset, misses, np.zeros_like(misses))


def _one_by_one(dataset: Dataset, misses: np.ndarray, peer_hits: np.ndarray) -> Loads:
    """Return the loads of even batches, epochs in order, with a read for each miss."""
    batch = np.full_like(misses, dataset.global_batch // dataset.ranks)
    return Loads(batch, misses, peer_hits, misses, misses, list(range(dataset.epochs)))


def nopfs(dataset: Dataset, storage: Storage) -> Loads:
    """A loader like NoPFS (Dryden et al., SC 2021, arXiv 2101.08734): a rank caches, from their first access on, the
    samples that it will access most often in all epochs; samples cached by another rank are fetched from there, the
    rest from storage."""
    dealt = dataset.dealt()
    is_cached = np.zeros((dataset.ranks, dataset.samples), bool)
    for rank in range(dataset.ranks):
        frequency = np.bincount(dealt[:, :, rank].ravel(), minlength=dataset.samples)
        often = np.argsort(-frequency, kind="stable")[: dataset.buffer_samples]
        is_cached[rank, often[frequency[often] > 0]] = True
    return _one_by_one(dataset, *_play_nopfs(dealt, is_cached))


@kernel
def _play_nopfs(dealt, is_cached):
    steps, each, ranks = dealt.shape
    misses, peer_hits = np.zeros((steps, ranks), np.int64), np.zeros((steps, ranks), np.int64)
    is_here = np.zeros(is_cached.shape, np.bool_)
    holders = np.zeros(is_cached.shape[1], np.int64)
    for step in range(steps):
        for rank in range(ranks):
            for i in range(each):
                sample = dealt[step, i, rank]
                if is_here[rank, sample]:
                    continue
                if holders[sample]:
                    peer_hits[step, rank] += 1
                else:
                    misses[step, rank] += 1
        for rank in range(ranks):
            for i in range(each):
                sample = dealt[step, i, rank]
                if is_cached[rank, sample] and not is_here[rank, sample]:
                    is_here[rank, sample] = True
                    holders[sample] += 1
    return misses, peer_hits


IMBALANCE = 1.25
"""SOLAR: largest batch of a rank relative to an even share."""


def solar(
    dataset: Dataset,
    storage: Storage,
    imbalance: float = IMBALANCE,
    window: int = 1,
    gap_bytes: float | None = None,
    reorder: bool = True,
) -> Loads:
    """SOLAR's plan, see `loading_solar`. Samples cached by a rank beyond its batch limit are read again by another
    rank. `window`: number of steps whose reads are coalesced across gaps of at most `gap_bytes`; None: gaps that are
    faster to read than a separate read. `reorder`: order epochs for maximum reuse. PlannedLoader: 8, 32 KiB, False."""
    batches = dataset.batches()
    buffered = dataset.buffer_samples * dataset.ranks
    flat = batches.reshape(dataset.epochs, -1)
    order = list(range(dataset.epochs))
    if reorder and 0 < buffered < dataset.samples:
        buffered = min(buffered, flat.shape[1])
        order = loading_solar.epoch_order(loading_solar.overlaps(flat, dataset.samples, buffered))
    planned = np.ascontiguousarray(batches[order].reshape(-1, dataset.global_batch))
    each = dataset.global_batch // dataset.ranks
    most = max(each, min(dataset.global_batch, math.floor(each * imbalance)))
    rank_of, held_by, *_ = loading_solar.assign(
        planned, dataset.samples, dataset.ranks, dataset.buffer_samples, most, window, dataset.steps, 0
    )
    gap = read_gap(dataset, storage) if gap_bytes is None else int(gap_bytes / dataset.sample_bytes)
    batch, misses, reads, span = loading_solar.reads(
        planned, rank_of, rank_of != held_by, dataset.ranks, gap, window, dataset.steps
    )
    return Loads(batch, misses, np.zeros_like(batch), reads, span, order)


def read_gap(dataset: Dataset, storage: Storage) -> int:
    """Return the largest number of unwanted samples between two wanted ones that is faster to read than to seek
    over."""
    rate = min(storage.client_bytes_per_s, storage.bytes_per_s / dataset.ranks)
    return int(storage.seek_s / storage.reads_at_once * rate / dataset.sample_bytes)


LOADERS: dict[str, Callable[[Dataset, Storage], Loads]] = dict(pytorch=pytorch, lru=lru, nopfs=nopfs, solar=solar)
"""Name → loader; the values of a job's option `loader`."""


def loads(loader: str, dataset: Dataset, storage: Storage) -> Loads:
    """Simulate `loader` on `dataset`."""
    if loader not in LOADERS:
        raise ConfigError(f"unknown loader {loader!r}; expected one of {', '.join(LOADERS)}")
    return LOADERS[loader](dataset, storage)


@kernel
def stalls_s(load_s, step_s, prefetch):
    """Return the time before each step that all ranks wait for the last rank's batch, float64 (steps,). Loaders run
    ahead of training by up to `prefetch` batches (DataLoader's prefetch_factor · num_workers); no rank begins a step
    before all can. `load_s`: float64 (steps, ranks); `step_s`: float64 (steps,), training time of each step."""
    steps, ranks = load_s.shape
    stalls = np.zeros(steps)
    begun = np.zeros(steps)
    loaded = np.zeros(ranks)
    free_s = 0.0
    for step in range(steps):
        ready_s = 0.0
        for rank in range(ranks):
            # A place in the queue is free once training takes the batch `prefetch` steps earlier.
            since_s = begun[step - prefetch] if step >= prefetch else 0.0
            loaded[rank] = max(loaded[rank], since_s) + load_s[step, rank]
            ready_s = max(ready_s, loaded[rank])
        begun[step] = max(free_s, ready_s)
        stalls[step] = begun[step] - free_s
        free_s = begun[step] + step_s[step]
    return stalls


@dataclass(frozen=True)
class Loading:
    """Cost of a loader, average per step over all epochs."""

    loader: str
    stall_s: float
    """Delay of a step: the part "loading" of an iteration."""
    imbalance_s: float
    """Part of `stall_s` due to the largest local batch where batches are unequal (SOLAR), rather than waiting for
    samples."""
    busy_s: float
    """Working time of the slowest rank's loader, mostly overlapped with training."""
    storage_bytes: float
    """Bytes read from storage by all ranks."""
    hit_rate: float
    largest_batch: int
    """Largest batch of a rank; more than an even share where SOLAR assigns samples to the rank that caches them."""

    def to_json(self) -> dict[str, float | str]:
        """Return plain values for `--json`."""
        return dict(vars(self))


def loading(
    loader: str,
    dataset: Dataset,
    storage: Storage,
    iteration_s: float,
    *,
    compute_s: float = 0.0,
    prefetch: int = 2,
    window: int = 1,
    gap_bytes: float | None = None,
) -> Loading:
    """Simulate `loader` alongside training that takes `iteration_s` per step. `prefetch`: batches that a rank loads
    ahead, torch's DataLoader prefetch_factor · num_workers. `compute_s` of the step scales with the largest local
    batch. `window`, `gap_bytes`: coalescing of SOLAR's reads."""
    if prefetch < 1 or window < 1:
        raise ConfigError(f"a loader that is {prefetch} batches ahead, in windows of {window}; expected at least 1")
    if loader == "solar":
        played = solar(dataset, storage, window=window, gap_bytes=gap_bytes)
    else:
        played = loads(loader, dataset, storage)
    seconds = played.seconds(dataset, storage)
    imbalance_s = compute_s * (played.batch.max(axis=1) * (dataset.ranks / dataset.global_batch) - 1.0)
    waits_s = stalls_s(seconds, iteration_s + imbalance_s, prefetch)
    return Loading(
        loader=loader,
        stall_s=float(waits_s.mean() + imbalance_s.mean()),
        imbalance_s=float(imbalance_s.mean()),
        busy_s=float(seconds.max(axis=1).mean()),
        storage_bytes=float(played.read_samples.sum(axis=1).mean() * dataset.sample_bytes),
        hit_rate=played.hit_rate(),
        largest_batch=int(played.batch.max()),
    )
