"""One rank of one job as a state machine: the queued and running calls, their completion, and failures of the job.

No thread, clock or socket: time is passed in, in seconds of any monotonic clock, and `wake` is called when there is
work for the driver. host_agent/agent.py drives a core from a thread with the compiled loop; fault runs drive it in
virtual time. One turn of a driver:

    while core.start_queued(now):
        ...                      # move packets between the network and core.worker (loop.run, or its like)
        core.finish_turn(now)
    core.end()
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from host_agent import density, tensors
from host_agent.calls import RAW, CallQueue, CallStart, PendingCall, Request, overflow
from host_agent.histories import Histories
from host_agent.recording import AgentLog
from host_agent.signatures import Signature
from host_agent.watch import INTERVAL_S, STALL_S, Watch, lost
from switchml.control import client, membership
from switchml.control.agreement import QueueReport, Report
from switchml.errors import (
    AggregatorLost,
    CollectiveTimeout,
    ConfigError,
    JobError,
    LeftBehind,
    RanksDisagree,
    UnsupportedTensor,
)
from switchml.protocol import worker_state
from switchml.protocol.collectives import Collective, all_reduce, sum_of_all
from switchml.protocol.fixedpoint import FORMATS
from switchml.protocol.halves import OPS
from switchml.protocol.packet import REACH_ALL
from switchml.protocol.sizes import EXACT, WIRES
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker
from switchml.protocol.worker_state import DONE, QUEUES, TASKS

DENSE_ONLY = "sparse on: this aggregator sums dense tensors only; expected off or auto"
EXACT_IS_DENSE = "sparse on: exact sums (this job's wire) are dense; expected off, auto, or wire='int32' beside it"

COUNTERS = ("sent", "received", "retransmitted", "refused", "waits", "spurious", "repeats", "streamed", "refused_auth",
            "expired", "partial", "late")  # fmt: skip
"""Names of the worker's counters in `Core.stats`."""
_DISAGREEMENTS = {
    worker_state.ERROR_MIXED: "the ranks' contributions differ in collective, size or dtype",
    worker_state.ERROR_OVERFLOW: "a sum overflowed its lanes",
    worker_state.ERROR_AHEAD: "a chunk needs another exponent than was agreed",
    worker_state.ERROR_STREAM: "the aggregator names blocks that this rank does not expect",
}


_MAX_TASKS = TASKS - 2
"""Maximum number of running tasks when a call begins, which adds two more, its data and its seal: so no task record is
reused before its call is reported."""
_EXPLAIN_S = 1.5
"""Seconds that a rank which detects a disagreement waits for the aggregator to name two calls that differ."""
_ONE_ORDER = "every rank must make the same calls in the same order"


def new_worker(info: client.JobInfo, rank: int, world_size: int, *, deadline_s: float = 0.0, **memory: Any) -> Worker:
    """Create the worker of a rank that has joined. `deadline_s`: seconds that sums called with `late` wait for late
    ranks, 0 for no limit; `memory`: packet buffers, as arguments of Worker."""
    return Worker(
        rank=rank,
        workers=world_size,
        slots=info.slots,
        job_tag=info.job_tag,
        isn=info.isn,
        window=info.window,
        payload_bytes=info.payload_bytes,
        padded=info.padded,
        two_queues=info.queues == QUEUES,
        deadline_ns=round(1e9 * deadline_s),
        **memory,
    )


def accepted(
    request: Request, *, wire: str, sparse: density.Choice, takes_sparse: bool
) -> tuple[Request, density.Choice]:
    """Validate a request and resolve its sparse mode; returns the request, with half precision widened to float32 where
    zero blocks may be skipped or sums are exact, and its handling of zero blocks. `wire`, `sparse` and `takes_sparse`
    are the agent's. Raises as `Agent.submit`."""
    sparse = sparse if request.sparse is None else request.sparse
    if not takes_sparse:
        if sparse.mode == "on":
            raise ConfigError(DENSE_ONLY)
        sparse = density.OFF
    is_exact = EXACT in (wire, request.wire) and request.wire != "int32"
    if is_exact:
        if sparse.mode == "on":
            raise ConfigError(EXACT_IS_DENSE)
        sparse = density.OFF
    if request.dtype not in tensors.ITEM_BYTES:
        raise UnsupportedTensor(f"dtype {request.dtype}: expected one of {', '.join(tensors.ITEM_BYTES)}")
    if request.wire not in (None, "int32", wire):
        raise ConfigError(f"wire {request.wire!r}: this job has {wire}, and any job has int32")
    return widened(request) if is_exact or sparse.mode != "off" else request, sparse


def format_of(dtype: str, wire: str) -> str:
    """Format (a key of fixedpoint.FORMATS) of a tensor of `dtype` in a call with these `wire` lanes."""
    if f"{dtype}/{wire}" in FORMATS:
        return f"{dtype}/{wire}"
    return dtype


@dataclass
class TaskCall(PendingCall):
    """A call that runs as tasks of the worker. `dtype`: a key of fixedpoint.FORMATS. `kind`: under `sparse="auto"`, the
    kind of tensor whose density is measured on the result (density.py). `number`: number of the call in its `queue`.
    `tasks`: numbers of the worker's tasks for its data and its seal."""

    dtype: str
    queue: int
    signature: Signature
    seal: Collective | None
    kind: density.Kind | None = None
    number: int = 0
    tasks: tuple[int, ...] = ()


class Core(CallQueue[TaskCall]):
    """The calls of one rank and their progress. `submit`, `fail`, `on_failure` and `on_event` may be called from any
    thread, all other methods by the driver only."""

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
        exact: bool = False,
        halves: bool = False,
        report: Callable[[Report], None] = lambda report: None,
    ):
        """`report`: sends this rank's calls to the aggregator when a call stalls; `udp`: the network may drop all
        packets (for messages); `sparse`: default for requests that do not specify it; `exact`: sums of floats are exact
        (docs/protocol.md, section 5); `halves`: half precision is sent unconverted (section 11)."""
        super().__init__(wake)
        self.worker, self.job, self.rank, self.world_size, self.sparse = worker, job, rank, world_size, sparse
        self.wire = EXACT if exact else next(name for name, code in WIRES.items() if code == info.wire)
        self.has_deadline = bool(worker.identity["deadline"])
        self.takes_sparse = not info.dense_only
        """Whether the aggregator accepts sparse streams; switches in a tree do not."""
        self.takes_collectives, self.only_sums = info.collectives, info.only_sums
        """Whether the aggregator accepts addressed packets, and whether only sums of these."""
        self.sums_halves = halves
        """Whether half precision is sent unconverted, unless a request specifies otherwise."""
        self.call_log: AgentLog | None = None
        self.completed = 0
        """Number of the worker's completed tasks whose calls have been reported."""
        self._running: list[TaskCall] = []
        self._explains_until: float | None = None
        """Time until which this rank, having detected a disagreement, waits for the aggregator's explanation; None
        without one."""
        scalars, tasks = worker.state.scalars, worker.state.tasks
        # Reading a column is ten times as fast as reading a field of a record.
        self._failure, self._completed = scalars["failure"]["code"], scalars["counters"]["completed"]
        self._task_state, self._task_item, self._task_misfits = tasks["state"], tasks["item"], tasks["misfits"]
        self._densities, self._histories = density.Memory(), Histories(worker)
        self._watch = Watch(worker, job, rank, info.data_address, udp)
        self._check_at = self._report_at = 0.0
        self._calls_of = [0] * len(worker.queues)
        self._report, self._reported = report, Report(())

    # Called from any thread

    def submit(self, request: Request, now: float) -> None:
        """Queue an all-reduce. `request.on_done` is called from the driver's thread, or at once if the job has ended or
        the tensor is empty.

        Raises UnsupportedTensor for the dtype; ConfigError for sparse streams that the aggregator does not support, and
        for a wire that is neither the job's nor int32.
        """
        signature, takes_seals = request.signature, self.takes_collectives and not request.late
        nbytes, scheme = request.numel * tensors.ITEM_BYTES.get(request.dtype, 1), request.collective
        nbytes *= max(scheme.shares, 1) if scheme is not None else 1
        dtype, sparse = format_of(request.dtype, request.wire or self.wire), density.OFF
        if request.collective is None:
            request, sparse = accepted(request, wire=self.wire, sparse=self.sparse, takes_sparse=self.takes_sparse)
            if self.has_deadline:  # dense sums would not wait in such a job
                sparse = density.OFF
                request = request if request.late else dataclasses.replace(request, collective=sum_of_all())
            scheme = request.collective
        if self.sums_halves and sparse.mode == "off" and adds_halves(request):
            request, dtype = as_halves(request), RAW
            signature = dataclasses.replace(signature, note=f"{signature.note} in two bytes each")
            scheme = request.collective
        if sparse.mode != "off":  # format of the float32 copies of half precision
            dtype = format_of(request.dtype, request.wire or self.wire)

        def log_call(index: int) -> None:
            call.number = self._calls_of[call.queue]
            self._calls_of[call.queue] += 1
            if self.call_log is not None:
                self.call_log.submitted(index, nbytes, scheme.kind if scheme is not None else "all_reduce")

        queue = self.worker.queue_of(request.collective)
        is_barrier = scheme is not None and scheme.kind == "barrier"
        seal = signature.seal(scheme.reach if scheme else REACH_ALL) if takes_seals and not is_barrier else None
        deadline = request.deadline(now)
        call = TaskCall(request, sparse, request.divisor(self.world_size), deadline, dtype, queue, signature, seal)
        self.add(call, lambda: None if request.late else self._watch.departure, log_call, seals=seal is not None)

    def moved(self, info: client.JobInfo) -> None:
        """Continue the job at another aggregator. Call only while the driver is paused."""
        self._watch.moved(info.data_address)
        self._reported, self._report_at = Report(()), 0.0

    def missing_ranks(self, now: float) -> tuple[int, ...]:
        """Ranks that a round currently stalled is waiting for."""
        return self._watch.missing_ranks(now)

    def on_event(self, event: client.SessionEvent, now: float) -> None:
        """Handle an event of the session about the aggregator or other ranks."""
        if isinstance(event, client.AggregatorLost):
            self.fail(AggregatorLost(f"job '{self.job}': aggregator lost: {event.reason}"))
        elif isinstance(event, membership.Disagreement):
            self.fail(RanksDisagree(f"job '{self.job}': {event.reason}; {_ONE_ORDER}"))
        elif isinstance(event, membership.PeerLost):
            if self.is_stopped:  # the peer has detected the same and failed first
                self.fail(self._disagreement())
            self.fail(lost(self.job, event.ranks, event.reason))
        else:
            with self._lock:
                self._watch.peer_left(event, now)

    # Called by the driver

    @property
    def is_stopped(self) -> bool:
        """Whether the worker has failed and must not be used any more, while `finish_turn` waits for the aggregator's
        explanation."""
        return self._explains_until is not None

    @property
    def is_idle(self) -> bool:
        """Whether no call is running."""
        return not self._running

    @property
    def has_queued(self) -> bool:
        """Whether calls wait to be started."""
        return bool(self._queue)

    @property
    def tick_ns(self) -> int:
        """Nanoseconds after which `finish_turn` must be called even without packets; -1: no limit."""
        return int(INTERVAL_S * 1e9) if self._running else -1

    def start_queued(self, now: float) -> bool:
        """Start queued calls on the worker. Returns False once `error` is set."""
        with self._lock:
            if self.error is not None:
                return False
            while (
                self._queue
                and not self.is_stopped
                and self.worker.outstanding < _MAX_TASKS
                and self._start(self._queue[0], now)
            ):
                self._queue.popleft()
        self.note_busy(now, bool(self._running))
        return True

    def finish_turn(self, now: float) -> None:
        """After packets have moved: report completed calls, and fail the job if the ranks disagree, a needed peer has
        left or a call is late."""
        if self._failure[0]:
            self._explain(now)
        completed = int(self._completed[0])
        if completed != self.completed:
            self.completed = completed
            self._report_done()
        self.note_busy(now, bool(self._running))
        if now >= self._check_at:  # by time, since a busy loop is never idle
            self._check_at = now + INTERVAL_S
            self._check_progress(now)

    def idle(self, now: float) -> None:
        """While no packets move because the aggregator is lost: fail the job if a call is late."""
        self._check_progress(now)

    def end(self) -> bool:
        """Fail every remaining call with `error`. Returns whether this rank should leave the job at once, so that the
        others do not wait for it in vain, since the error is its own."""
        self.end_calls(self._running)
        self._running.clear()
        return isinstance(self.error, (RanksDisagree, CollectiveTimeout, LeftBehind))

    def stats(self) -> dict[str, float]:
        """Counters since joining: packets sent (including retransmissions), received, retransmitted, refused, waits,
        spurious, repeats, streamed (rounds of sparse streams after their first), refused_auth (without a valid
        authentication tag), expired (expiries, which end rounds without late ranks), partial (results of such rounds),
        late (chunks without this rank's contribution); round-trip time and retransmission timeout in seconds; the
        window in rounds; and `totals`."""
        worker = self.worker
        return {name: int(worker.counters[name]) for name in COUNTERS} | {
            "rtt_s": int(worker.rtt["srtt"]) / 1e9,
            "rto_s": int(worker.rtt["rto"]) / 1e9,
            "window": int(worker.window["size"]),
            **self.totals(),
        }

    def _start(self, call: TaskCall, now: float) -> bool:
        """Start a call on the worker; False if it must wait for the density or the exponents of an earlier result."""
        if call.request.late and self._follows_running(call):
            return False
        request, blocks = call.request, call.sparse.blocks
        is_sparse = call.sparse.mode == "on"
        if call.sparse.mode == "auto" and request.numel >= density.MIN_BLOCKS * blocks.block:
            kind = self._densities.kind(call.dtype, request.numel, blocks)
            if kind.is_awaited:
                return False
            is_sparse = kind.is_sparse
            call.kind = kind if self._densities.start(kind) else None
        tasks = []
        if not request.is_empty:
            tasks.append(self._start_data(call, blocks if is_sparse else None))
        if call.seal is not None:
            tasks.append(self.worker.start(0, 0, 0, "raw", collective=call.seal))
        call.tasks = tuple(tasks)
        counters = self.worker.counters
        call.begun = CallStart(tasks[0], now, int(counters["sent"]), int(counters["retransmitted"]))
        self._running.append(call)
        if self.call_log is not None:
            chunks = int(self.worker.state.tasks[tasks[0] % TASKS]["chunks"])
            self.call_log.started(call.index, dict(zip(tasks, (0, chunks), strict=False)))
        return True

    def _start_data(self, call: TaskCall, blocks: Sparse | None) -> int:
        """Start the task that moves a call's elements; returns its number. `blocks`: how to skip zero blocks,
        or None."""
        request, scheme = call.request, call.request.collective
        shares = max(scheme.shares, 1) if scheme is not None else 1
        remembers = blocks is None and call.dtype != "raw"
        return self.worker.start(
            request.source,
            request.target,
            request.numel,
            call.dtype,
            call.divisor,
            self._histories.of(call.dtype, request.numel * shares) if remembers else None,
            blocks,
            scheme,
            request.late.values.ctypes.data if request.late else 0,
        )

    def _follows_running(self, call: TaskCall) -> bool:
        """Whether a tensor of the same shape is in progress, from whose exponents this one's will be predicted. A rank
        that missed a sum must predict as the others did, so all ranks have to predict from the same results."""
        shape = call.dtype, call.request.numel
        return any((other.dtype, other.request.numel) == shape for other in self._running)

    def _report_done(self) -> None:
        state = self._task_state
        running, self._running = self._running, []
        done: list[TaskCall] = []
        for call in running:
            is_done = all(state[task % TASKS] == DONE for task in call.tasks)
            (done if is_done else self._running).append(call)
        for call in done:
            at = call.tasks[0] % TASKS
            numel = call.request.numel
            if call.kind is not None:
                self._densities.look(call.kind, call.request.target, numel, call.dtype, call.sparse.blocks)
            self.bytes += numel * int(self._task_item[at])
            if late := call.request.late:
                task = self.worker.state.tasks[at]
                late.ranks, late.late_chunks, late.chunks = int(task["least"]), int(task["late"]), int(task["chunks"])
            error = overflow(int(self._task_misfits[at]), numel, call.dtype)
            if self.call_log is not None:
                self.call_log.done(call.index, error is not None)
            call.end(error)

    def _check_progress(self, now: float) -> None:
        if self._running and (error := self._watch.check(now, self._running, self.queued())) is not None:
            self.fail(error)
        if len(self.worker.queues) > 1 and self._watch.stands_still(now):
            self._report_calls(now)

    def _report_calls(self, now: float, failed: list[TaskCall] | None = None) -> None:
        """Report this rank's calls to the aggregator if they have changed. `failed`: the calls on which the ranks
        differ, reported in place of the running ones."""
        first: dict[int, TaskCall] = {}
        with self._lock:
            counts = list(self._calls_of)
            for call in (*(failed or ()), *self._running, *self._queue):
                first.setdefault(call.queue, call)
        report = Report(
            tuple(
                QueueReport(calls, first[at].number, first[at].index, str(first[at].signature))
                if at in first
                else QueueReport(calls, calls)
                for at, calls in enumerate(counts)
            )
        )
        if report != self._reported and now >= self._report_at:
            self._reported, self._report_at = report, now + STALL_S
            self._report(report)

    def _explain(self, now: float) -> None:
        """Handle a failed worker. If the ranks disagree, each reports its calls, and the aggregator names two that
        differ; without its answer, this rank fails by itself."""
        if self._explains_until is None:
            behind = self._failure[0] == worker_state.ERROR_BEHIND
            self._explains_until = now if behind else now + _EXPLAIN_S
            if not behind:
                self._report_at = 0.0
                self._report_calls(now, self._failed_calls())
        if now >= self._explains_until:
            self.fail(self._disagreement())

    def _failed_calls(self) -> list[TaskCall]:
        """Running calls that contain the chunk where the worker failed: one, or one of each queue."""
        chunk, tasks = int(self.worker.failure["chunk"]), self.worker.state.tasks
        rows = [(call, tasks[number % TASKS]) for call in self._running for number in call.tasks]
        return [call for call, task in rows if 0 <= chunk - int(task["first"]) < int(task["chunks"])]

    def _disagreement(self) -> JobError:
        if self._failure[0] == worker_state.ERROR_BEHIND:
            return LeftBehind(
                f"job '{self.job}': rank {self.rank} was late for so long that results it missed are no longer kept: "
                f"it may be {self.worker.identity['slots']} chunks behind (slots). It can join anew, with the others' "
                "parameters"
            )
        return RanksDisagree(
            f"job '{self.job}' chunk {self.worker.failure['chunk']}: "
            f"{_DISAGREEMENTS[int(self.worker.failure['code'])]}; rank {self.rank} called "
            f"{' or '.join(str(call.signature) for call in self._failed_calls())}; {_ONE_ORDER}"
        )


def adds_halves(request: Request) -> bool:
    """Whether a request sums half precision (or takes the mean) and may be sent unconverted; other collectives move
    bytes."""
    is_plain = request.numel > 0 and request.wire is None and request.late is None
    return request.dtype in tensors.HALVES and is_plain


def as_halves(request: Request) -> Request:
    """Convert the request to one for bytes, which the aggregator adds as half precision (docs/protocol.md,
    section 11)."""
    op = OPS[request.dtype, request.op]
    scheme = dataclasses.replace(request.collective or all_reduce(op), op=op, mark=2)
    return dataclasses.replace(request, numel=2 * request.numel, dtype=RAW, op="sum", collective=scheme)


def widened(request: Request) -> Request:
    """Convert a request for half-precision values to one for float32 copies of them, rounded once at the end; other
    requests are returned unchanged."""
    if request.dtype not in tensors.HALVES:
        return request
    values = tensors.widen_at(request.source, request.numel, request.dtype)
    at = values.ctypes.data

    def done(error: BaseException | None) -> None:
        if error is None:
            tensors.narrow_at(values, request.target, request.dtype)
        request.on_done(error)

    return dataclasses.replace(
        request, source=at, target=at, dtype="float32", on_done=done, keep=(request.keep, values)
    )
