"""One rank of one job as a state machine: which all-reduces are queued and under way, how they end, and what ends the
rank's part in the job.

No thread, no clock and no socket: time is passed in, in seconds of any one monotonic clock, and `wake` is called when
the driver has something to do. host_agent/agent.py drives a core from a thread with the compiled loop; fault runs drive
it in virtual time. One turn of a driver:

    while core.start_queued(now):
        ...                      # move packets between the network and core.worker (loop.run, or its like)
        core.finish_turn(now)
    core.end_calls()
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from host_agent import density, tensors
from host_agent.calls import Call, OnDone, Request
from host_agent.histories import Histories
from host_agent.watch import INTERVAL_S, Watch
from switchml.control import client, membership
from switchml.errors import (
    AggregatorLost,
    CollectiveTimeout,
    ConfigError,
    JobError,
    RanksDisagree,
    SumOverflow,
    UnsupportedTensor,
)
from switchml.protocol import worker_state
from switchml.protocol.fixedpoint import ITEM_BYTES
from switchml.protocol.sizes import WIRES
from switchml.protocol.worker import Worker
from switchml.protocol.worker_state import DONE, TASKS

DENSE_ONLY = "sparse on: this aggregator is a tree of switches, which add dense tensors only; expected off or auto"

COUNTERS = ("sent", "received", "retransmitted", "refused", "waits", "spurious", "repeats", "streamed")
"""Names of the worker's counters in `Core.stats`."""
_DISAGREEMENTS = {
    worker_state.ERROR_MIXED: "the ranks' contributions differ in dtype",
    worker_state.ERROR_OVERFLOW: "a sum overflowed its lanes",
    worker_state.ERROR_AHEAD: "a chunk needs another exponent than was agreed",
    worker_state.ERROR_STREAM: "the aggregator names blocks that this rank does not expect",
}


def new_worker(
    info: client.JobInfo,
    rank: int,
    world_size: int,
    *,
    packets: np.ndarray | None = None,
    wide: np.ndarray | None = None,
    lossless: bool = False,
) -> Worker:
    """The worker of a rank that has joined; the arguments are those of Worker."""
    return Worker(
        rank=rank,
        workers=world_size,
        slots=info.slots,
        tag=info.tag,
        isn=info.isn,
        window=info.window,
        payload_bytes=info.payload_bytes,
        packets=packets,
        wide=wide,
        lossless=lossless,
        padded=info.padded,
    )


def accepted(
    request: Request, *, wire: str, sparse: density.Choice, takes_sparse: bool
) -> tuple[Request, density.Choice]:
    """The request with half precision widened to float32, and what it does with blocks of zeros. `wire`, `sparse` and
    `takes_sparse` are the agent's. Raises as `Agent.submit`."""
    sparse = sparse if request.sparse is None else request.sparse
    if not takes_sparse:
        if sparse.mode == "on":
            raise ConfigError(DENSE_ONLY)
        sparse = density.OFF
    if request.dtype not in tensors.ITEM_BYTES:
        raise UnsupportedTensor(f"dtype {request.dtype}: expected one of {', '.join(tensors.ITEM_BYTES)}")
    if request.wire not in (None, "int32", wire):
        raise ConfigError(f"wire {request.wire!r}: this job has {wire}, and any job has int32")
    return _widened(request) if request.dtype in tensors.HALVES else request, sparse


class CallLog(Protocol):
    """Where a core records the life of its calls (recording.py has the one that profiles use)."""

    def submitted(self, index: int, nbytes: int) -> None: ...

    def started(self, index: int) -> None: ...

    def done(self, index: int, failed: bool) -> None: ...


class Core:
    """`submit`, `fail`, `on_failure` and `on_event` may be called from any thread, all other methods by the driver
    alone."""

    def __init__(
        self,
        worker: Worker,
        info: client.JobInfo,
        *,
        job: str,
        rank: int,
        world_size: int,
        wake: Callable[[], None],
        udp: bool = True,
        sparse: density.Choice = density.OFF,
    ):
        """`udp`: the network may drop all packets (for messages); `sparse`: for requests that leave it open."""
        self.worker, self.job, self.rank, self.world_size, self.sparse = worker, job, rank, world_size, sparse
        self.wire = next(name for name, code in WIRES.items() if code == info.wire)
        self.takes_sparse = not info.dense_only
        """Whether the aggregator accepts sparse streams; switches in a tree don't."""
        self.error: BaseException | None = None
        """What ended this rank's part in the job."""
        self.call_log: CallLog | None = None
        self.calls = 0
        """All-reduces submitted so far."""
        self.completed = 0
        """The worker's tasks whose calls have been reported."""
        self._wake = wake
        self._queue: collections.deque[Call] = collections.deque()
        self._running: collections.OrderedDict[int, Call] = collections.OrderedDict()
        self._densities, self._histories = density.Memory(), Histories(worker)
        self._watch = Watch(worker, job, rank, info.data_address, udp)
        self._lock = threading.Lock()
        self._on_failure: list[Callable[[BaseException], None]] = []
        self._bytes = 0
        self._busy_s = self._busy_since = self._check_at = 0.0

    # From any thread

    def submit(self, request: Request, now: float) -> None:
        """Queue an all-reduce. `request.on_done` is called from the driver's thread, or at once if the job is over or
        the tensor empty.

        Raises UnsupportedTensor for the dtype; ConfigError for sparse streams that the aggregator does not take, and
        for a wire that is neither the job's nor int32.
        """
        nbytes = request.numel * tensors.ITEM_BYTES.get(request.dtype, 0)
        request, sparse = accepted(request, wire=self.wire, sparse=self.sparse, takes_sparse=self.takes_sparse)
        dtype = request.dtype
        if dtype == "float32" and (request.wire or self.wire) != "int32":
            dtype = f"float32/{self.wire}"
        if request.numel == 0:
            request.on_done(self.error)
            return
        call = Call(
            request.source,
            request.target,
            request.numel,
            dtype,
            self.world_size if request.op == "mean" else 1,
            request.on_done,
            deadline=now + request.timeout_s if request.timeout_s is not None else float("inf"),
            keep=request.keep,
            sparse=sparse,
        )
        with self._lock:
            error = self.error or self._watch.departure
            if error is None:
                call.index = self.calls
                self.calls += 1
                if self.call_log is not None:
                    self.call_log.submitted(call.index, nbytes)
                self._queue.append(call)
                self._wake()
        if error is not None:
            request.on_done(error)

    def missing_ranks(self, now: float) -> tuple[int, ...]:
        """Ranks that a stalled round waited for a moment ago."""
        return self._watch.missing_ranks(now)

    def fail(self, error: BaseException) -> None:
        """End this rank's part in the job: every call under way and every later one fails with `error`. Only the first
        error counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            callbacks, self._on_failure = self._on_failure, []
            self._wake()
        for callback in callbacks:
            callback(error)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` once with the error that ends this rank's part in the job; at once if there is one."""
        with self._lock:
            error = self.error
            if error is None:
                self._on_failure.append(callback)
        if error is not None:
            callback(error)

    def on_event(self, event: client.SessionEvent, now: float) -> None:
        """What the session reports about the aggregator and the other ranks."""
        if isinstance(event, client.AggregatorLost):
            self.fail(AggregatorLost(f"job '{self.job}': aggregator lost: {event.reason}"))
        elif isinstance(event, membership.PeerLost):
            self.fail(self._watch.loss(event))
        else:
            with self._lock:
                self._watch.peer_left(event, now)

    # From the driver

    @property
    def is_idle(self) -> bool:
        """No call is under way."""
        return not self._running

    @property
    def has_queued(self) -> bool:
        """Calls wait to be started."""
        return bool(self._queue)

    @property
    def tick_ns(self) -> int:
        """After how long `finish_turn` must be called even if nothing happens; -1: no need."""
        return int(INTERVAL_S * 1e9) if self._running else -1

    def start_queued(self, now: float) -> bool:
        """Give queued calls to the worker. False once `error` is set."""
        with self._lock:
            if self.error is not None:
                return False
            while self._queue and self.worker.outstanding < TASKS and self._start(self._queue[0]):
                self._queue.popleft()
        if self._running and not self._busy_since:
            self._busy_since = now
        return True

    def finish_turn(self, now: float) -> None:
        """After packets have moved: report the calls that are done, and fail if the ranks disagree, a needed peer has
        left or a call is late."""
        if self.worker.failure["code"]:
            self.fail(self._disagreement())
        completed = int(self.worker.counters["completed"])
        if completed != self.completed:
            self.completed = completed
            self._report_done()
        if self._busy_since and not self._running:
            self._busy_s += now - self._busy_since
            self._busy_since = 0.0
        if now >= self._check_at:  # a busy loop has no quiet moment
            self._check_at = now + INTERVAL_S
            self._check_progress(now)

    def end_calls(self) -> bool:
        """Fail every call that is left with `error`. Returns whether this rank should leave the job at once, so that
        the others need not wait for it in vain: it failed by itself."""
        calls = list(self._running.values())
        with self._lock:
            calls += self._queue
            self._queue.clear()
        self._running.clear()
        for call in calls:
            call.end(self.error)
        return isinstance(self.error, (RanksDisagree, CollectiveTimeout))

    def stats(self) -> dict[str, float]:
        """Counters since joining: packets sent (retransmissions included), received, retransmitted, refused, waits,
        spurious, repeats, streamed (rounds of sparse streams after their first); round-trip time and retransmission
        timeout in seconds; the window in rounds; calls, bytes reduced, the seconds in which calls were under way, and
        goodput in bits of tensor per such second."""
        worker = self.worker
        return {name: int(worker.counters[name]) for name in COUNTERS} | {
            "rtt_s": int(worker.rtt["srtt"]) / 1e9,
            "rto_s": int(worker.rtt["rto"]) / 1e9,
            "window": int(worker.window["size"]),
            "calls": self.calls,
            "bytes": self._bytes,
            "busy_s": self._busy_s,
            "goodput_bps": 8 * self._bytes / self._busy_s if self._busy_s else 0.0,
        }

    def _start(self, call: Call) -> bool:
        """Give a call to the worker; False if it has to wait for the density of an earlier result."""
        is_sparse = call.sparse.mode == "on"
        if call.sparse.mode == "auto" and call.numel >= density.LEAST_BLOCKS * call.sparse.blocks.block:
            kind = self._densities.kind(call.dtype, call.numel, call.sparse.blocks)
            if kind.is_awaited:
                return False
            is_sparse = kind.is_sparse
            call.kind = kind if self._densities.start(kind) else None
        call.number = self.worker.start(
            call.source,
            call.target,
            call.numel,
            call.dtype,
            call.divisor,
            None if is_sparse else self._histories.of(call),
            call.sparse.blocks if is_sparse else None,
        )
        self._running[call.number] = call
        if self.call_log is not None:
            self.call_log.started(call.index)
        return True

    def _report_done(self) -> None:
        tasks = self.worker.state.tasks
        numbers = np.fromiter(self._running, np.int64, len(self._running))
        for number in numbers[tasks["state"][numbers % TASKS] == DONE].tolist():
            call, task = self._running.pop(number), tasks[number % TASKS]
            if call.kind is not None:
                self._densities.look(call.kind, call.target, call.numel, call.dtype, call.sparse.blocks)
            self._bytes += call.numel * ITEM_BYTES[task["fmt"]]
            error = None
            if misfits := int(task["misfits"]):
                message = f"{misfits} of {call.numel} sums do not fit {call.dtype}; use a wider dtype"
                error = SumOverflow(message, misfits)
            if self.call_log is not None:
                self.call_log.done(call.index, error is not None)
            call.end(error)

    def _check_progress(self, now: float) -> None:
        if not self._running:
            return
        with self._lock:
            queued = list(self._queue)
        if (error := self._watch.check(now, self._running.values(), queued)) is not None:
            self.fail(error)

    def _disagreement(self) -> JobError:
        return RanksDisagree(
            f"job '{self.job}' chunk {self.worker.failure['chunk']}: "
            f"{_DISAGREEMENTS[int(self.worker.failure['code'])]}; every rank must all-reduce the same tensors in the "
            "same order"
        )


def _widened(request: Request) -> Request:
    """A request for half-precision values as one for float32 copies of them, rounded once at the end."""
    copies = tensors.widen_at(request.source, request.target, request.numel, request.dtype)

    def narrow(error: BaseException | None, on_done: OnDone = request.on_done) -> None:
        tensors.narrow_then(copies, error, on_done)

    return dataclasses.replace(
        request,
        source=copies.address,
        target=copies.address,
        dtype="float32",
        on_done=narrow,
        keep=(request.keep, copies),
    )
