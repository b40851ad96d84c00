"""The loader as a choice of a job: where its samples come from, and how long an iteration waits for them on the job's
cluster. The algorithms are in `workload/loading.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.cluster.cluster import Cluster
from emulator.workload.job import Job
from emulator.workload.loading import LOADERS, Dataset, Loading, Storage, loading
from switchml.errors import ConfigError

MOST_ACCESSES = 200_000_000
"""Samples times epochs that are played out one by one: some 4 GB of index lists."""


@dataclass(frozen=True)
class DataLoading:
    """The table [loading] of a job."""

    loader: str = ""
    """pytorch, lru, nopfs or solar; empty: samples are there when they are needed."""
    samples: int = 0
    """Of the dataset."""
    sample_bytes: float = 0.0
    epochs: int = 3
    """Over which figures are averaged; caches are cold in the first."""
    buffer_bytes: float = 0.0
    """Of host memory, that each data-parallel rank keeps samples in."""
    prefetch: int = 2
    """Batches that a rank loads ahead."""
    workers: int = 4
    """Reads that a rank has in flight."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.loader:
            others = [name for name in ("samples", "sample_bytes", "buffer_bytes") if getattr(self, name)]
            if others:
                raise ConfigError(f"{others[0].replace('_', '-')} is for a loader; choose one of {', '.join(LOADERS)}")
            return
        if self.loader not in LOADERS:
            raise ConfigError(f"unknown loader {self.loader!r}; known: {', '.join(LOADERS)}")
        if self.samples < 1 or not self.sample_bytes > 0:
            raise ConfigError(f"loader {self.loader} needs the dataset's size: samples and sample-bytes, both above 0")
        if self.samples * self.epochs > MOST_ACCESSES:
            raise ConfigError(
                f"{self.samples:,} samples in {self.epochs} epochs are too many to play out (at most "
                f"{MOST_ACCESSES:,}); group samples into larger ones, or take fewer epochs"
            )

    def cost(self, job: Job, cluster: Cluster, iteration_s: float) -> Loading:
        """Beside an iteration of `iteration_s`. A data-parallel rank reads its share of the batch once, whatever
        tensor or pipeline ranks it is made of, and shares its node's way to storage with the others there."""
        on_node = max(1, min(job.dp, cluster.accelerators_per_node // min(job.tp, cluster.accelerators_per_node)))
        storage = Storage(
            bytes_per_s=cluster.storage.total_bytes_per_s,
            client_bytes_per_s=cluster.storage.node_bytes_per_s / on_node,
            seek_s=cluster.storage.latency_s,
            reads_at_once=self.workers,
            peer_bytes_per_s=cluster.between.node_bytes_per_s / on_node,
        )
        dataset = Dataset(
            samples=self.samples,
            sample_bytes=self.sample_bytes,
            global_batch=job.global_batch,
            ranks=job.dp,
            epochs=self.epochs,
            buffer_samples=int(self.buffer_bytes // self.sample_bytes),
            seed=self.seed,
        )
        return loading(self.loader, dataset, storage, iteration_s, prefetch=self.prefetch)

    def assumption(self, found: Loading) -> str:
        """What a reader should know about it."""
        return (
            f"samples: loader {self.loader}, {self.samples:,} of {self.sample_bytes:,.0f} bytes, {self.prefetch} "
            f"batches ahead; {found.hit_rate:.1%} from memory over {self.epochs} epochs"
        )
