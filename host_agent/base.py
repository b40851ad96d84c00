"""The interface common to all agents, whether they reduce at one aggregator (agent.py) or at several (sharded.py)."""

from __future__ import annotations

import abc
import functools
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from host_agent import collectives, density, tensors
from host_agent.calls import FailureState, Handle, LateContributions, OnDone, Request, log
from host_agent.signatures import Signature
from switchml.errors import ConfigError, JobError, UnsupportedTensor
from switchml.protocol.sparse import Sparse
from switchml.runtime.memory import f32_at

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

SparseOption = density.Choice | Sparse | bool | str | None
"""Values that callers may pass as `sparse` (density.choice)."""


class Agent(collectives.CollectivesMixin):
    """One rank of one job."""

    job: str
    rank: int
    world_size: int
    wire: str
    """Lanes for float32 and half precision: int32, int16 or int8; or exact, which takes further rounds of int32."""
    transport: str
    takes_sparse: bool
    """Whether the aggregator accepts sparse streams."""
    sums_halves: bool = False
    """Whether half precision is sent unconverted, unless a call overrides that."""
    deadline_s: float = 0.0
    """Seconds that sums called with `late` wait for a rank; 0: the job has no deadline."""

    def __init__(self, failure: FailureState) -> None:
        self._failure_state = failure
        self._pid = os.getpid()
        self._closing, self._close_lock = False, threading.Lock()
        self._compressors: dict[tuple[str, str | None], Any] = {}

    def __enter__(self) -> Self:
        return self

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child, which neither runs the agent's threads nor takes part in
        the job."""
        return os.getpid() != self._pid

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.leave()

    @property
    @abc.abstractmethod
    def global_ranks(self) -> tuple[int, ...]:
        """The job's ranks as numbered in the caller's default process group."""

    @global_ranks.setter
    @abc.abstractmethod
    def global_ranks(self, ranks: tuple[int, ...]) -> None: ...

    @abc.abstractmethod
    def submit(self, request: Request) -> None:
        """Queue an all-reduce and return at once. `request.on_done` is called from a thread of the agent and must not
        wait for another call of the same agent.

        Raises UnsupportedTensor for the dtype; ConfigError for sparse streams that the aggregator does not support, and
        for a wire that is neither the job's nor int32.
        """

    @abc.abstractmethod
    def leave(self) -> None:
        """Leave the job and free all resources; running calls fail. May be called twice. Does nothing in a forked
        child."""

    def _ends(self, thread: threading.Thread) -> bool:
        """For `leave`: fail all calls and join the agent's thread. Returns False if the agent is closing already, or in
        a forked child: then there is nothing left to do."""
        if self.is_forked:
            return False
        with self._close_lock:
            if self._closing:
                return False
            self._closing = True
        self.abort(JobError(f"rank {self.rank} left job '{self.job}'"))
        if threading.current_thread() is not thread:
            thread.join()
        return True

    def _died(self, error: Exception) -> None:
        """Called by the agent's thread when an internal error ends it: fail all calls, so that none waits forever."""
        log.exception("job '%s' rank %d", self.job, self.rank)
        self.abort(JobError(f"job '{self.job}': rank {self.rank} failed: {error!r}"))

    def abort(self, error: BaseException) -> None:
        """Fail every running and every later call with `error`; the agent stays joined until `leave`."""
        self._failure_state.fail(error)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` once, from any thread, with the error that ends this rank's participation in the job."""
        self._failure_state.on_failure(callback)

    def report_counts(self, calls: dict[str, int], loading: dict[str, float]) -> None:
        """Report to `switchml status` the number of collectives called so far by name, and the counters of the
        program's planned data loader; returns at once. Ignored where ranks share hosts."""

    @abc.abstractmethod
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that stalled calls are currently waiting for; empty if unknown."""

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Counters since joining (`Core.stats`), and the transport."""

    def allreduce(
        self,
        x: Any,
        op: str = "sum",
        async_op: bool = False,
        out: Any = None,
        timeout_s: float | None = None,
        sparse: SparseOption = None,
        *,
        wire: str | None = None,
        codec: str | None = None,
        memory: str | None = None,
        name: str = "",
        late: LateContributions | None = None,
    ) -> Any:
        """Sum or mean of `x` over all ranks, with identical bits on each; or another operation of collectives.OPS.

        `x`: NumPy array (float32, float64, float16, int32, int64) or CPU torch tensor (bfloat16 too), of any shape and
        strides; it is not changed. The result is a new array, or `out` (same shape and dtype, C-contiguous; may be
        `x`). Returns the result, or with `async_op` a Handle whose `wait()` returns it. Until then neither `x` nor
        `out` may be changed or used in another call. Integer means truncate toward zero. `sparse`: overrides that of
        `join`; the same on all ranks. Raises UnsupportedTensor; SumOverflow if an integer sum does not fit; PeerLost,
        AggregatorLost, RanksDisagree; CollectiveTimeout after `timeout_s` seconds, which ends the job for this rank.

        Floats are added in fixed point: values smaller than about 2^-24 (float32) of the largest value in their block
        are lost (docs/protocol.md, section 5), unless the job's wire is "exact".

        `wire`: "int32" in place of the job's narrow or exact lanes. `codec`: compresses float32 ("topk:ratio=0.01", see
        docs/codecs.md); `memory` selects the error feedback for what compression drops (None: the codec's default);
        `name` distinguishes tensors of equal size, since each has its own error feedback. A compressed all-reduce
        consists of several exchanges in the same order on all ranks, so it can't be `async_op`.

        `late`: in a job with a deadline (`join`), do not wait for late ranks; the same on all ranks. Sums and means are
        then scaled to all ranks, and contributions of this rank that arrived too late are in `late.values`. Raises
        LeftBehind if the other ranks are too far ahead.
        """
        if op not in collectives.OPS:
            raise ConfigError(f"op {op!r}: expected one of {', '.join(collectives.OPS)}")
        if codec is not None:
            if async_op or timeout_s is not None or wire is not None or late is not None:
                raise ConfigError(f"codec {codec!r} can't be combined with async_op, timeout_s, wire or late")
            return self._compressed(x, op, out, codec, memory, name)
        if memory is not None:
            raise ConfigError(f"memory {memory!r} needs a codec")
        tensor = tensors.prepare(x, out)
        handle = Handle()
        if op not in collectives.SUMS:
            if late is not None:
                raise ConfigError(f"late: op {op!r} waits for every rank; expected sum or mean")
            at, item = (tensor.source, tensor.target), tensors.ITEM_BYTES[tensor.dtype]
            collective = collectives.CollectiveCall("all_reduce", *at, tensor.numel, tensor.dtype, item, op)
            done = functools.partial(handle.finish, result=tensor.result)
            submit = functools.partial(self.submit_collective, collective, done, timeout_s=timeout_s, keep=tensor)
            return self._carry_out(submit, handle, async_op)
        submit = functools.partial(
            self.allreduce_address,
            tensor.source,
            tensor.target,
            tensor.numel,
            tensor.dtype,
            op,
            lambda error: handle.finish(error, tensor.result),
            timeout_s=timeout_s,
            keep=tensor,
            sparse=sparse,
            wire=wire,
            late=late,
        )
        return self._carry_out(submit, handle, async_op)

    def _compressed(self, x: Any, op: str, out: Any, codec: str, memory: str | None, name: str) -> Any:
        """`allreduce` with a codec: `x` and `out` are float32 arrays or tensors as there."""
        from host_agent.compression.compressed import AgentReducer, Compressor  # importing the codecs takes a while

        tensor = tensors.prepare(x, out)
        if tensor.dtype != "float32":
            raise UnsupportedTensor(f"dtype {tensor.dtype}: codecs take float32")
        key = (codec, memory)
        if key not in self._compressors:
            self._compressors[key] = Compressor(AgentReducer(self), codec, memory)
        # A copy, since `out` may be `x`, and an exchange reads its input until it ends.
        mean = self._compressors[key].allreduce(name, f32_at(tensor.source, tensor.numel).copy(), tuple(x.shape))
        f32_at(tensor.target, tensor.numel)[:] = mean if op == "mean" else mean * np.float32(self.world_size)
        return tensor.result

    def allreduce_as(self, dtype: str, x: np.ndarray) -> np.ndarray:
        """Sum of `x`, float32[n], over all ranks, with values converted to the half-precision `dtype`; returns
        float32[n]."""
        halves, handle = np.empty(x.size, np.uint16), Handle()
        at = halves.ctypes.data
        tensors.narrow_at(np.ascontiguousarray(x), at, dtype)
        self.allreduce_address(at, at, x.size, dtype, "sum", functools.partial(handle.finish, result=None), keep=halves)
        handle.wait()
        return tensors.widen_at(at, x.size, dtype)

    def allreduce_address(
        self,
        source: int,
        target: int,
        numel: int,
        dtype: str,
        op: str,
        on_done: OnDone,
        *,
        timeout_s: float | None = None,
        keep: object = None,
        sparse: SparseOption = None,
        wire: str | None = None,
        late: LateContributions | None = None,
        note: str = "",
    ) -> None:
        """Queue an all-reduce of `numel` elements from address `source` into `target` (may be equal); returns at once.

        `dtype`: float32, float64, float16, bfloat16, int32 or int64. `wire`: "int32" in place of the job's lanes.
        `on_done(None or error)` is called once, from the agent's thread or a thread that waits for a call, and must not
        wait for another call of this agent. The memory must stay alive until then (`keep` holds a reference). `sparse`:
        overrides that of `join`. `late`: as in `allreduce`. `note`: a further property that must be equal on all ranks,
        human-readable.
        """
        if late is not None:
            late.check(numel, dtype)
            if not self.deadline_s:
                raise ConfigError("late: this job has no deadline, so every sum waits for every rank")
        if self.is_forked:
            raise JobError(
                f"rank {self.rank} of job '{self.job}' is process {self._pid}, from which this one was forked: a child "
                "can't use its parent's agent; start processes before joining, or with the method spawn"
            )
        choice = None if sparse is None else density.choice(sparse)
        called = Signature("all_reduce", numel, dtype, op, note=note + (f" in {wire} lanes" if wire else ""))
        self.submit(
            Request(source, target, numel, dtype, op, on_done, timeout_s, keep, choice, wire, late=late, called=called)
        )
