"""Predicted exponents for a tensor's first chunks, from earlier tensors.

Training reduces the same tensors in the same order in each step, and several may have the same shape. So each tensor
takes its exponents from the log's entry after the one that its predecessor used. If that entry has another shape, the
tensor is looked up anew: the last tensor of its shape that followed the longest matching run of shapes. All ranks
reduce the same shapes in the same order, so their choices agree.
"""

from dataclasses import dataclass

import numpy as np

from switchml.protocol.fixedpoint import FORMATS
from switchml.protocol.packet import CODE_ZERO
from switchml.protocol.worker import Worker, elements_per_chunk
from switchml.protocol.worker_state import SUMS, TASKS

_MOST = TASKS
"""Minimum number of remembered tensors: as many as may be in progress, whose exponents the worker writes."""
_BEHIND = (8, 3, 1, 0)
"""Numbers of preceding shapes by which a tensor is looked up, longest first."""

Shape = tuple[str, int]


@dataclass
class _Entry:
    shape: Shape
    codes: np.ndarray


class Histories:
    """The exponents of one worker's tensors."""

    def __init__(self, worker: Worker):
        self._payload_bytes = int(worker.identity["payload"])
        blocks = max(int(worker.identity["large"]) // self._payload_bytes, 1)  # blocks in a packet
        self._window_blocks = int(worker.queues[SUMS]["slots"]) * blocks
        self._workers = int(worker.identity["workers"])
        self._log: list[_Entry] = []
        self._forgotten = 0
        """Number of entries dropped from the log's start; positions count from the first entry ever."""
        self._last: dict[tuple[Shape, ...], int] = {}
        """Consecutive shapes → the latest position where they end."""
        self._followed = -1
        """Position whose exponents the last tensor took; -1: none."""

    def of(self, dtype: str, numel: int) -> np.ndarray | None:
        """Exponents for a tensor of `numel` elements of `dtype` (of FORMATS): int8[blocks of the first window], which
        the worker reads and writes; None for integers."""
        if dtype in ("int32", "int64"):
            return None
        shape = (dtype, numel)
        before = tuple(entry.shape for entry in self._log[-_BEHIND[0] :])
        keys = [(*before[len(before) - behind :], shape) for behind in _BEHIND if behind <= len(before)]
        model = self._at(self._followed + 1) if self._followed >= 0 else None
        if model is not None and model.shape == shape:
            self._followed += 1
        else:
            self._followed = next((self._last[key] for key in keys if key in self._last), -1)
            model = self._at(self._followed)
        codes = self._new(shape) if model is None else model.codes.copy()  # the entry may be reused
        place = self._forgotten + len(self._log)
        self._log.append(_Entry(shape, codes))
        self._last.update(dict.fromkeys(keys, place))
        if len(self._log) > 2 * _MOST:
            self._forget()
        return codes

    def _at(self, place: int) -> _Entry | None:
        at = place - self._forgotten
        return self._log[at] if 0 <= at < len(self._log) else None

    def _new(self, shape: Shape) -> np.ndarray:
        dtype, numel = shape
        per_chunk = elements_per_chunk(FORMATS[dtype], self._payload_bytes, self._workers)
        return np.full(min(self._window_blocks, -(-numel // per_chunk)), CODE_ZERO, np.int8)

    def _forget(self) -> None:
        self._forgotten += len(self._log) - _MOST
        del self._log[:-_MOST]
        self._last = {key: place for key, place in self._last.items() if place >= self._forgotten}
