"""The tensors of a job's collectives: each rank's input and expected result."""

from typing import Any

import numpy as np

from emulator.networks.netsim.blocks import owned
from emulator.networks.netsim.config import JobConfig
from switchml.errors import SwitchMLError
from switchml.protocol import collectives
from switchml.protocol.fixedpoint import FORMATS, headroom, spreads
from switchml.protocol.packet import CODE_ZERO, OP_SUM
from switchml.protocol.sizes import WIRES
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import elements_per_chunk

_LARGEST = 1000
"""Largest value; values are integers, so that float sums are exact and exponents of chunks hardly differ."""


class Tensors:
    """Tensors of all ranks of a job, all with different content."""

    def __init__(self, job: JobConfig, slots: int, generator: np.random.Generator):
        self._job, self._numel, self._share = job, job.size_bytes // 4, job.size_bytes // 4 // job.workers
        values = generator.integers(-_LARGEST, _LARGEST + 1, self._numel + job.workers).astype(np.float32)
        self._sources = [values[rank : rank + self._numel] for rank in self._ranks]
        """Overlapping views of one array; copies if some of their blocks are zero."""
        self._sparse = Sparse(job.block) if job.block else None
        if job.block:
            has = owned(job.density, job.overlap, job.workers, -(-self._numel // job.block))
            masks = np.repeat(has, job.block, axis=1)[:, : self._numel]
            self._sources = [source * mask for source, mask in zip(self._sources, masks, strict=True)]
        self._results = {
            kind: [np.zeros(self._numel if kind != "reduce_scatter" else self._share, np.float32) for _ in self._ranks]
            for kind in job.kinds
        }
        self._dtype = "float32" if job.wire == "int32" else f"float32/{job.wire}"
        chunks = -(-self._numel // elements_per_chunk(FORMATS[self._dtype], job.payload_bytes, job.workers))
        self._histories = [np.full(min(slots, chunks), CODE_ZERO, np.int8) for _ in self._ranks]

    def tasks(self, rank: int) -> list[tuple[Any, ...]]:
        """Arguments of a rank's `Worker.start` calls for one repeat."""
        return [self._task(kind, rank) for kind in self._job.kinds]

    def check(self) -> None:
        """Raise SwitchMLError unless every result equals exact arithmetic."""
        exact = np.add.reduce(self._sources, dtype=np.float64)
        wire, workers = WIRES[self._job.wire], self._job.workers
        # Narrow lanes: each rank's value is off by at most half a step, which is that of the next larger power of two,
        # or of a larger guess.
        off = workers * (_LARGEST << spreads(workers)[wire]) / headroom(workers)[wire] + 1e-3 if wire else 0
        for kind, results in self._results.items():
            for rank, result in enumerate(results):
                right = self._expected(kind, rank, exact)
                is_same = kind != "all_reduce" or np.array_equal(result, results[0])
                if not is_same or np.abs(result - right).max() > off:
                    raise SwitchMLError(f"job {self._job.name}: rank {rank} has a wrong {kind.replace('_', '-')}")

    @property
    def _ranks(self) -> range:
        return range(self._job.workers)

    def _part(self, x: np.ndarray, rank: int) -> np.ndarray:
        return x[rank * self._share : (rank + 1) * self._share]

    def _expected(self, kind: str, rank: int, exact: np.ndarray) -> np.ndarray:
        if kind == "broadcast":
            return self._sources[0]
        if kind == "all_gather":
            return np.concatenate([self._part(source, other) for other, source in enumerate(self._sources)])
        return self._part(exact, rank) if kind == "reduce_scatter" else exact

    def _task(self, kind: str, rank: int) -> tuple[Any, ...]:
        """Arguments of `Worker.start`."""
        source, target = self._sources[rank], self._results[kind][rank]
        at, to = source.ctypes.data, target.ctypes.data
        if kind == "all_reduce":
            return at, to, self._numel, self._dtype, 1, self._histories[rank], self._sparse
        n, share = self._job.workers, self._share
        if kind == "reduce_scatter":
            scheme = collectives.reduce_scatter(n, 4 * share, OP_SUM)
            return at, to, share, self._dtype, 1, self._histories[rank], None, scheme
        if kind == "broadcast":
            target[:] = source if rank == 0 else 0
            return to, to, 4 * self._numel, "raw", 1, None, None, collectives.broadcast(0, 4)
        own = self._part(target, rank)
        own[:] = self._part(source, rank)
        return own.ctypes.data, to, 4 * share, "raw", 1, None, None, collectives.all_gather(n, 4 * share, 4)
