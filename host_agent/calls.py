"""One all-reduce: as the agent keeps it (`Call`), and as a caller who does not wait for it does (`Handle`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from host_agent import density
from switchml.errors import CollectiveTimeout

log = logging.getLogger("host_agent")


@dataclass
class Call:
    """An all-reduce from submission to report. `keep` is whatever must stay alive; `number` the worker's task number
    once started; `looked_at` the kind of tensor that its result tells something about (density.py)."""

    source: int
    target: int
    numel: int
    dtype: str
    divisor: int
    on_done: Callable[[BaseException | None], None]
    deadline: float
    index: int = 0
    number: int = -1
    keep: object = None
    sparse: density.Choice = field(default_factory=density.Choice)
    looked_at: density.Kind | None = None

    def end(self, error: BaseException | None) -> None:
        """Report it."""
        try:
            self.on_done(error)
        except Exception:
            log.exception("all-reduce %d: its completion callback failed", self.index)


@dataclass
class Handle:
    """An all-reduce under way."""

    _done: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None
    _result: object = None

    def is_done(self) -> bool:
        return self._done.is_set()

    def finish(self, error: BaseException | None, result: object) -> None:
        """For the agent: what `wait` raises, or else returns."""
        self._error, self._result = error, result
        self._done.set()

    def wait(self, timeout_s: float | None = None):
        """The reduced array; raises what went wrong, or CollectiveTimeout if it is not done in `timeout_s` (it then
        goes on)."""
        if not self._done.wait(timeout_s):
            raise CollectiveTimeout(f"all-reduce not done after {timeout_s:g} s of waiting")
        if self._error is not None:
            raise self._error
        return self._result
