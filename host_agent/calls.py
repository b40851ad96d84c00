"""One all-reduce: as a caller asks for it (`Request`), as the agent tracks it (`Call`), and what a caller who does not
wait gets (`Handle`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from host_agent import density
from switchml.errors import CollectiveTimeout

log = logging.getLogger("host_agent")

OnDone = Callable[[BaseException | None], None]
"""Called once when an all-reduce has ended, with its error or None."""


@dataclass(frozen=True)
class Request:
    """All-reduce `numel` elements of `dtype` from address `source` into address `target` (may be equal).

    `dtype`: a key of tensors.ITEM_BYTES. `op`: "sum" or "mean". `timeout_s`: None for no limit. `keep`: kept alive
    until the call ends. `sparse`: None for the agent's default. `wire`: "int32" in place of the job's lanes, or None.
    """

    source: int
    target: int
    numel: int
    dtype: str
    op: str
    on_done: OnDone
    timeout_s: float | None = None
    keep: object = None
    sparse: density.Choice | None = None
    wire: str | None = None


@dataclass
class Call:
    """An all-reduce from submission to completion. `dtype`: a key of fixedpoint.FORMATS. `deadline`: in seconds of the
    agent's clock. `index`: counts this agent's calls; `number`: the worker's task, -1 before it starts. `kind`: under
    `sparse="auto"`, the kind of tensor whose density its result decides (density.py)."""

    source: int
    target: int
    numel: int
    dtype: str
    divisor: int
    on_done: OnDone
    deadline: float
    index: int = 0
    number: int = -1
    keep: object = None
    sparse: density.Choice = field(default_factory=density.Choice)
    kind: density.Kind | None = None

    def end(self, error: BaseException | None) -> None:
        """Report completion. An exception in the callback is logged."""
        try:
            self.on_done(error)
        except Exception:
            log.exception("all-reduce %d: its completion callback failed", self.index)


@dataclass
class Handle:
    """An all-reduce under way."""

    _done: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None
    _result: Any = None

    def is_done(self) -> bool:
        return self._done.is_set()

    def finish(self, error: BaseException | None, result: Any) -> None:
        """For the agent: what `wait` raises, or else returns."""
        self._error, self._result = error, result
        self._done.set()

    def wait(self, timeout_s: float | None = None) -> Any:
        """The reduced array. Raises the call's error, or CollectiveTimeout after `timeout_s` seconds (the call goes
        on)."""
        if not self._done.wait(timeout_s):
            raise CollectiveTimeout(f"all-reduce not done after {timeout_s:g} s of waiting")
        if self._error is not None:
            raise self._error
        return self._result
