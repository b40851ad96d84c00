"""Execution of one rank's part of a plan: its buffer, the windows of samples being read, and the samples lent to and
borrowed from other ranks. A step is atomic: if a sample cannot be obtained, the step can be retried.
"""

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from host_agent.loading.fetch import Fetcher
from host_agent.loading.peers import Peers
from host_agent.loading.plan import STORAGE, LoadingPlan, StepPlan
from host_agent.loading.sources.base import owned, size_of
from switchml.errors import LoadingError

WINDOWS = 3
"""Number of windows that are loaded or being read: while training takes the batches of one, the last samples of the
next arrive, and the one after is requested. With two, storage would be idle at the end of each window."""


class Execution:
    """State of a plan's execution. `step`: number of the next step. `counts`: buffer_hits, peer_hits, peer_bytes,
    peer_failures, storage_samples."""

    def __init__(self, plan: LoadingPlan, rank: int, fetcher: Fetcher, peers: Peers | None = None):
        self.plan, self._rank, self.fetcher, self._peers = plan, rank, fetcher, peers
        self.step = plan.first_step
        self.counts: Counter[str] = Counter()
        self._buffer: dict[int, Any] = {}
        self._windows: dict[int, Future[dict[int, Any]]] = {}
        self._pool = ThreadPoolExecutor(WINDOWS, "switchml-reader")

    def next_batch(self) -> tuple[list[Any], StepPlan]:
        """Return this rank's samples of the next step, and its plan. Raises LoadingError for samples that cannot be
        read; the next call retries the same step."""
        mine = self.plan.step(self.step, self._rank)
        if self._peers is not None:
            self._peers.lend(self.step, {sample: self._buffer[sample] for sample in mine.lent.tolist()})
        source_of = dict(zip(mine.batch.tolist(), mine.source.tolist(), strict=True))
        found = {sample: self._buffer[sample] for sample, rank in source_of.items() if rank == self._rank}
        hits = len(found)
        read = self._window(self.step)
        # Retry what failed in an earlier attempt at this step.
        read |= self.fetcher.fetch([each for each, rank in source_of.items() if rank == STORAGE and each not in read])
        found |= {sample: read[sample] for sample, rank in source_of.items() if rank == STORAGE}
        stored = len(found) - hits
        found |= self._borrowed(source_of)
        self._raise_failed(found, read)
        self.counts.update(buffer_hits=hits, storage_samples=stored)
        for sample, evicted in mine.kept:
            self._buffer.pop(evicted, None)
            self._buffer[sample] = owned(found[sample])
        if self.step == self.plan.window_of(self.step)[-1]:
            del self._windows[self.plan.window_of(self.step).start]
        self.step += 1
        return [found[sample] for sample in mine.batch.tolist()], mine

    def close(self) -> None:
        """Stop reading."""
        self.fetcher.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _window(self, step: int) -> dict[int, Any]:
        """Samples read for the window of `step`; starts to read it, and the windows after it."""
        steps = self.plan.window_of(step)
        upcoming = steps
        for _ in range(WINDOWS):
            if upcoming.start not in self._windows:
                samples = self.plan.reads(upcoming, self._rank).tolist()
                self._windows[upcoming.start] = self._pool.submit(self.fetcher.fetch, samples)
            if upcoming.stop == self.plan.steps:
                break
            upcoming = self.plan.window_of(upcoming.stop)
        return self._windows[steps.start].result()

    def _borrowed(self, source_of: dict[int, int]) -> dict[int, Any]:
        """Samples held by other ranks, from them or else from storage."""
        by_rank: dict[int, list[int]] = {}
        for sample, rank in source_of.items():
            if rank not in (self._rank, STORAGE):
                by_rank.setdefault(rank, []).append(sample)
        found: dict[int, Any] = {}
        for rank, samples in by_rank.items():
            lent = self._peers.borrow(self.step, rank, samples) if self._peers is not None else None
            if lent is None:
                self.counts.update(peer_failures=len(samples), storage_samples=len(samples))
                found |= self.fetcher.fetch(sorted(samples))
            else:
                self.counts.update(peer_hits=len(samples), peer_bytes=size_of(lent))
                found |= dict(zip(samples, lent, strict=True))
        return found

    def _raise_failed(self, found: dict[int, Any], read: dict[int, Any]) -> None:
        """Raise LoadingError for samples of this step that were not read, and drop them from the window so that they
        are retried."""
        failed = sorted(sample for sample, value in found.items() if isinstance(value, LoadingError))
        for sample in failed:
            read.pop(sample, None)
        if failed:
            error: LoadingError = found[failed[0]]
            more = f"; {len(failed) - 1} more of this step failed" if len(failed) > 1 else ""
            raise LoadingError(f"step {self.step}: {error}{more}", tuple(failed)) from error.__cause__
