"""State of one job in a software aggregator: the slots, the endpoints of its ranks, and its open rounds."""

import os
import time

import numpy as np

from switchml import logs
from switchml.control.dataplane import JobCounters, JobSpec
from switchml.counters import COUNTERS
from switchml.errors import ConfigError
from switchml.net import shm
from switchml.protocol import authentication
from switchml.protocol.pool import Pool, PoolV1

log = logs.of("switchml.aggregator")


class JobState:
    """A job's arrays, and the times since when its rounds have been open, for `counters`."""

    def __init__(self, spec: JobSpec, shared: bool, halves: bool = False) -> None:
        self.spec = spec
        self.segment: shm.Segment | None = None
        self.segment_name, self._segment_fd = "", -1
        if shared and spec.protocol == 2:
            try:
                self.segment, self._segment_fd, self.segment_name = shm.create(
                    spec.workers, spec.slots, spec.large_bytes or shm.DATA_BYTES
                )
            except OSError as error:
                if spec.large_bytes:
                    raise ConfigError(f"can't allocate shared memory for the ranks: {error}") from None
                log.warning("job %d: no shared memory (%s); its ranks will use UDP", spec.job_id, error)
        self.pool: Pool | PoolV1
        if spec.protocol == 1:
            self.pool = PoolV1(workers=spec.workers, payload_bytes=spec.payload_bytes)
        else:
            rows = shm.pool_rows(self.segment) if self.segment is not None else None
            self.pool = Pool(
                workers=spec.workers,
                slots=spec.slots,
                payload_bytes=spec.payload_bytes,
                large_bytes=spec.large_bytes,
                wire=spec.wire,
                job_tag=spec.job_tag,
                isn=spec.isn,
                rows=rows,
                with_tags=bool(spec.key),
                halves=halves,
            )
        self.endpoints = np.zeros(spec.workers, np.uint64)
        self.local = np.zeros(spec.workers, np.uint8)
        self.index = -1
        self.opened: dict[int, tuple[int, float]] = {}

    def entry(self) -> tuple[int, ...]:
        """The job's row in the compiled loop's table (JOB_ENTRY)."""
        pool = self.pool
        assert pool.rows is not None and pool.wide is not None
        seen = pool.seen.ctypes.data if isinstance(pool, Pool) else 0
        addresses = (pool.job.ctypes.data, pool.slots.ctypes.data, seen)
        rows = (pool.rows.ctypes.data, pool.rows.shape[1], pool.wide.ctypes.data, pool.wide.shape[1])
        parts = (pool.parts.ctypes.data, *pool.parts.shape)
        results = (pool.first_result, pool.counters.ctypes.data, self.endpoints.ctypes.data, len(pool.slots) // 2)
        shared = (self.segment.at.ctypes.data, self.local.ctypes.data) if self.segment else (0, 0)
        key, tag_bytes = (0, 0), 0
        if self.spec.key:
            key, tag_bytes = tuple(authentication.key_words(self.spec.key).tolist()), authentication.TAG_BYTES
        return (self.spec.protocol, self.spec.workers, *addresses, *rows, *parts, *results, *shared, 0, *key, tag_bytes)

    def close(self) -> None:
        """Prevent further processes from attaching to the shared memory; existing mappings remain."""
        if self._segment_fd >= 0:
            os.close(self._segment_fd)
            self._segment_fd = -1

    def open_rounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows with an open round, and a number for each that changes from round to round."""
        slots = self.pool.slots
        if self.spec.protocol == 1:
            rows = np.flatnonzero((slots["count"] > 0) & (slots["bitmap"] > 0))
            return rows, slots["bitmap"][rows].astype(np.int64)
        rows = np.flatnonzero((slots["count"] > 0) & (slots["count"] < self.spec.workers))
        return rows, slots["seq"][rows]

    def missing(self, row: int) -> set[int]:
        """Ranks that have not contributed to a row's round."""
        if isinstance(self.pool, PoolV1):
            bitmap = int(self.pool.slots["bitmap"][row])
        else:
            bitmap = sum(int(word) << (64 * i) for i, word in enumerate(self.pool.seen[row]))
        return {rank for rank in range(self.spec.workers) if bitmap >> rank & 1 == 0}

    def count(self) -> JobCounters:
        """Counters of the job. Ranks count as missing if the round was already open at a call at least a second ago."""
        ranks = tuple(dict(zip(COUNTERS, (int(v) for v in row), strict=True)) for row in self.pool.counters)
        rows, marks = self.open_rounds()
        now, opened = time.monotonic(), {}
        missing: set[int] = set()
        for row, mark in zip(rows.tolist(), marks.tolist(), strict=True):
            before = self.opened.get(row)
            opened[row] = before if before is not None and before[0] == mark else (mark, now)
            if now - opened[row][1] >= 1.0:
                missing |= self.missing(row)
        self.opened = opened
        return JobCounters(ranks, len(set(rows % (len(self.pool.slots) // 2))), tuple(sorted(missing)))
