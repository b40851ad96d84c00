"""All-reduce calls: the request of a caller, the queue and state of calls in an agent, and the handle of an
asynchronous call."""

import collections
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from host_agent import density
from host_agent.signatures import Signature
from switchml.errors import CollectiveTimeout, ConfigError, JobError, SumOverflow
from switchml.protocol.collectives import Collective
from switchml.protocol.packet import REACH_ALL

log = logging.getLogger("host_agent")

RAW = "raw"
"""The dtype of requests that move bytes (fixedpoint.FORMATS)."""

OnDone = Callable[[BaseException | None], None]
"""Callback that is called once when an all-reduce ends, with its error or None."""


def words(kind: str) -> str:
    """Name of a kind of collective in messages: "reduce-scatter"."""
    return kind.replace("_", "-")


@dataclass
class LateContributions:
    """Contributions that missed the deadline of an all-reduce, in a job with a deadline (docs/protocol.md, section 13).

    `values`: an array of the call's size and dtype that receives what this rank contributed too late, and 0 elsewhere;
    may be the array that is summed. Of the latest call: `ranks`, the smallest number of ranks that any chunk's sum
    includes; `late_chunks` of `chunks` are without this rank.
    """

    values: npt.NDArray[Any]
    ranks: int = 0
    late_chunks: int = 0
    chunks: int = 0

    @property
    def is_behind(self) -> bool:
        """Whether the whole call came too late: the other ranks may have completed calls whose results this
        rank lacks."""
        return self.chunks > 0 and self.late_chunks == self.chunks

    def check(self, numel: int, dtype: str) -> None:
        """Check that `values` fits a call. Raises ConfigError if it does not."""
        values = self.values
        if dtype not in ("float32", "float64") or str(values.dtype) != dtype or values.size != numel:
            raise ConfigError(
                f"late: {values.dtype}[{values.size}] for {numel} of {dtype}: expected as many float32 or float64"
            )
        if not values.flags.c_contiguous or not values.flags.writeable:
            raise ConfigError("late: expected an array that is C-contiguous and writable")


@dataclass(frozen=True)
class Request:
    """Request to all-reduce `numel` elements of `dtype` from address `source` into address `target` (may be equal).

    `dtype`: a key of tensors.ITEM_BYTES. `op`: "sum" or "mean". `timeout_s`: None for no limit. `keep`: object kept
    alive until the call ends. `sparse`: None for the agent's default. `wire`: "int32" in place of the job's lanes, or
    None. `collective`: a collective other than an all-reduce (collectives.py), of dtype "raw" if it moves bytes.
    `is_part`: other threads of this rank reduce the rest of the tensor concurrently. `late`: the sums may exclude late
    ranks, which get their contribution back in it. `called`: signature of the call, if it does not follow from the
    other fields.
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
    collective: Collective | None = None
    is_part: bool = False
    late: LateContributions | None = None
    called: Signature | None = None

    @property
    def signature(self) -> Signature:
        """Properties of the call that must be equal on all ranks."""
        kind = self.collective.kind if self.collective else "all_reduce"
        return self.called or Signature(kind, self.numel, self.dtype, self.op)

    @property
    def name(self) -> str:
        """Name of the collective, for messages."""
        return words(self.collective.kind if self.collective else "all_reduce")

    @property
    def is_empty(self) -> bool:
        """Whether the call has nothing to do: no elements, and not a barrier."""
        return self.numel == 0 and (self.collective is None or self.collective.reach != REACH_ALL)

    def divisor(self, world_size: int) -> int:
        """Number that the sum is divided by."""
        return world_size if self.op == "mean" else 1

    def deadline(self, now: float) -> float:
        """Deadline in seconds of the clock whose current time is `now`."""
        return math.inf if self.timeout_s is None else now + self.timeout_s


@dataclass(frozen=True)
class CallStart:
    """Start of a call: the worker's task `number`, the time in seconds of the agent's clock, and packet counters at
    that time."""

    number: int
    at: float
    sent: int
    retransmitted: int


@dataclass
class PendingCall:
    """An all-reduce from submission to completion. `deadline`: in seconds of the agent's clock. `index`: number of this
    call, counted per agent. `begun`: None until the worker has started it."""

    request: Request
    sparse: density.Choice
    divisor: int
    deadline: float
    index: int = field(default=0, init=False)
    begun: CallStart | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """Name in messages: "all-gather 7"."""
        return f"{self.request.name} {self.index}"

    def end(self, error: BaseException | None) -> None:
        """Report completion. An exception raised by the callback is logged."""
        try:
            self.request.on_done(error)
        except Exception:
            log.exception("%s: its completion callback failed", self.name)


def overflow(misfits: int, numel: int, dtype: str) -> SumOverflow | None:
    """SumOverflow if `misfits` sums of a call do not fit its dtype, or None."""
    if not misfits:
        return None
    return SumOverflow(f"{misfits} of {numel} sums do not fit {dtype}; use a wider dtype", misfits)


class FailureState:
    """The error that ends a rank's participation in its job; the first one counts. Thread-safe."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """`wake`: called, with the lock held, to wake the agent's thread."""
        self.error: BaseException | None = None
        self._wake = wake
        self._lock = threading.Lock()
        self._on_failure: list[Callable[[BaseException], None]] = []

    def fail(self, error: BaseException) -> bool:
        """Fail every running and every later call with `error`. Returns False if the job had failed already."""
        with self._lock:
            if self.error is not None:
                return False
            self.error = error
            callbacks, self._on_failure = self._on_failure, []
            self._wake()
        for callback in callbacks:
            callback(error)
        return True

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` once with the error, after callbacks registered earlier; at once if the job has failed
        already."""
        with self._lock:
            error = self.error
            if error is None:
                self._on_failure.append(callback)
        if error is not None:
            callback(error)


C = TypeVar("C", bound=PendingCall)


class CallQueue(FailureState, Generic[C]):
    """Calls that wait to be started, in the order of submission, and totals of all calls."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self.calls = self.bytes = 0
        """All-reduces submitted so far, and total bytes of their results."""
        self._queue: collections.deque[C] = collections.deque()
        self._busy_s = self._busy_since = 0.0

    def add(
        self,
        call: C,
        departure: Callable[[], BaseException | None],
        log_call: Callable[[int], None] = lambda index: None,
        seals: bool = False,
    ) -> None:
        """Queue a call and pass its index to `log_call`. The call ends at once if its tensor is empty and it has no
        seal (`seals`), if the job has failed, or if `departure` returns an error."""
        if call.request.is_empty and not seals:
            call.request.on_done(self.error)
            return
        with self._lock:
            error = self.error or departure()
            if error is None:
                call.index = self.calls
                self.calls += 1
                log_call(call.index)
                self._queue.append(call)
                self._wake()
        if error is not None:
            call.request.on_done(error)

    def take(self) -> C | None:
        """Remove and return the next waiting call, or None."""
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def queued(self) -> list[C]:
        """The waiting calls."""
        with self._lock:
            return list(self._queue)

    def note_busy(self, now: float, is_busy: bool) -> None:
        """Record whether calls are running from `now` on."""
        if is_busy and not self._busy_since:
            self._busy_since = now
        elif not is_busy and self._busy_since:
            self._busy_s += now - self._busy_since
            self._busy_since = 0.0

    def totals(self) -> dict[str, float]:
        """Calls, bytes reduced, seconds with calls running, and goodput in bits of tensor data per such second."""
        goodput_bps = 8 * self.bytes / self._busy_s if self._busy_s else 0.0
        return {"calls": self.calls, "bytes": self.bytes, "busy_s": self._busy_s, "goodput_bps": goodput_bps}

    def end_calls(self, running: Iterable[C]) -> None:
        """Fail the running calls and the waiting ones."""
        calls = list(running)
        with self._lock:
            calls += self._queue
            self._queue.clear()
        for call in calls:
            call.end(self.error)


class Handle:
    """A collective in progress; `name` is used in messages."""

    def __init__(self, name: str = "all-reduce") -> None:
        self.name, self._is_done, self._pid = name, False, os.getpid()
        self._error: BaseException | None = None
        self._result: Any = None
        self._pending = threading.Lock()
        """Held until the collective ends. An Event uses three locks, which take as long as a small collective's
        packets."""
        self._pending.acquire()

    def is_done(self) -> bool:
        return self._is_done

    def finish(self, error: BaseException | None, result: Any) -> None:
        """Called once, by the agent: set the error that `wait` raises, or the result that it returns."""
        self._error, self._result, self._is_done = error, result, True
        self._pending.release()

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait for the reduced array. Raises the call's error, or CollectiveTimeout after `timeout_s` (the call
        continues)."""
        if os.getpid() != self._pid and not self.is_done():
            raise JobError(f"this {self.name} is process {self._pid}'s: a forked child can't wait for its parent's")
        if not self._is_done:
            if not self._pending.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
                raise CollectiveTimeout(f"{self.name} not done after {timeout_s:g} s of waiting")
            self._pending.release()  # for other threads that wait
        if self._error is not None:
            raise self._error
        return self._result
