"""Exponents of the last tensor of each shape, for the chunks of the next that are sent before anything of it is
known."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import numpy as np

from switchml import worker as rules

from .calls import Call

_MOST = 4096
"""Tensor shapes whose exponents are remembered."""


class Histories:
    """Those of one worker; the ones used last are kept."""

    def __init__(self, worker: rules.Worker):
        self._slots, self._payload_bytes = int(worker.me["slots"]), int(worker.me["payload"])
        self._known: collections.OrderedDict[tuple[str, int], np.ndarray] = collections.OrderedDict()

    def of(self, call: Call, running: Iterable[Call]) -> np.ndarray | None:
        """int8[chunks that are sent at first], which the worker reads and writes; None where there are no exponents, or
        no room: those of `running` calls stay."""
        if call.dtype in ("int32", "int64"):
            return None
        key = (call.dtype, call.numel)
        if key not in self._known:
            if len(self._known) == _MOST:
                oldest = next(iter(self._known))
                if any((other.dtype, other.numel) == oldest for other in running):
                    return None
                self._known.popitem(last=False)
            per_chunk = rules.elements_per_chunk(rules.FORMATS[call.dtype], self._payload_bytes)
            self._known[key] = np.full(min(self._slots, -(-call.numel // per_chunk)), rules.CODE_ZERO, np.int8)
        self._known.move_to_end(key)
        return self._known[key]
