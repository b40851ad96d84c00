"""The host agent: joins a job and all-reduces arrays through the aggregator, from one thread of its own.

    with HostAgent.join("127.0.0.1:50099", job="demo", rank=0, world_size=2) as agent:
        total = agent.allreduce(x)                       # waits
        handle = agent.allreduce(y, op="mean", async_op=True)
        handle.wait()

Calls are queued in the order they are made, from any thread, and every rank of the job must make the same ones in the
same order. The agent's thread starts them, runs the compiled loop (loop.py) and reports them done. Results have the
same bits on every rank.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from host_agent import density, joining, reach, recording, tensors
from host_agent import loop as compiled
from host_agent import tape as tapes
from host_agent.calls import Call, Handle
from host_agent.histories import Histories
from host_agent.joining import WIRES
from host_agent.watch import EVERY_S, Watch
from switchml.errors import (
    AggregatorLost,
    CollectiveTimeout,
    ConfigError,
    JobError,
    RanksDisagree,
    SumOverflow,
    SwitchMLError,
    UnsupportedTensor,
)
from switchml.net import shm
from switchml.net.tunnel import TunnelClient
from switchml.protocol import worker as rules
from switchml.protocol.sparse import Sparse
from switchml.runtime.memory import f32_at

_DENSE = density.Choice()


class HostAgent:
    """One rank of one job. Make it with `HostAgent.join`.

    What it does with packets and time is in `_before_loop`, the loop itself and `_after_loop`, in turn: on a thread of
    its own here, in virtual time in emulator/faults, which replaces `_clock`, `_open` and `_end_thread`.
    """

    _clock = staticmethod(time.monotonic)

    def __init__(
        self,
        session,
        way: reach.Way,
        *,
        rank: int,
        world_size: int,
        job: str,
        segment: shm.Segment | None = None,
        tunnel: TunnelClient | None = None,
        impaired: compiled.Impaired | None = None,
        sparse: density.Choice = _DENSE,
    ):
        info = session.info
        self.transport = "shm" if segment is not None else "udp" if way.name == "auto" else way.name
        self._segment, self._tunnel = segment, tunnel
        self.wire = next(name for name, code in WIRES.items() if code == info.wire)
        self.job, self.rank, self.world_size, self.sparse = job, rank, world_size, sparse
        self.tag = info.tag
        self.global_ranks: tuple[int, ...] = tuple(range(world_size))
        self.notes: recording.Notes | None = None
        self.takes_sparse = not info.dense_only
        """Whether what sums here knows sparse streams; switches in a tree don't."""
        self._session, self._way = session, way
        self._worker = rules.Worker(
            rank=rank,
            workers=world_size,
            slots=info.slots,
            tag=info.tag,
            isn=info.isn,
            window=info.window,
            payload_bytes=info.payload_bytes,
            packets=way.packet_rows(info.slots, info.payload_bytes)
            if segment is None
            else shm.packets_of(segment, rank),
            wide=way.sparse_rows(info.slots) if segment is None else None,
            lossless=segment is not None,
            padded=info.padded,
        )
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._impaired = impaired
        self._densities = density.Memory()
        self._compressors: dict = {}
        self._histories = Histories(self._worker)
        self._queue: collections.deque[Call] = collections.deque()
        self._running: collections.OrderedDict[int, Call] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._on_failure: list[Callable[[BaseException], None]] = []
        self._watch = Watch(self._worker, job, rank, info.data_address, self.transport == "udp")
        self._check_at = 0.0
        self._closing = False
        self._calls = 0
        self._bytes = 0
        self._busy_s = self._busy_since = 0.0
        self._reported = 0  # tasks known to be done
        self._open(tunnel.address if tunnel is not None else way.aggregator)
        session.events(self._on_event)
        if tunnel is not None:
            tunnel.on_lost(lambda reason: self._fail(AggregatorLost(f"job '{job}': aggregator lost: {reason}")))

    def _open(self, aggregator: tuple[str, int]) -> None:
        """Begin to work."""
        self._loop = compiled.new_loop(
            self._worker,
            self._way.socket,
            self._wake,
            aggregator,
            self._segment,
            self._way.kind,
            self._way.raw,
            self._impaired,
        )
        self._thread = threading.Thread(target=self._run, name=f"switchml-agent-{self.rank}", daemon=True)
        self._thread.start()
        recording.enter(self)

    def new_tape(self, packets: int) -> tapes.Tape:
        return tapes.new_tape(packets, len(self._worker.state.slots))

    def take_notes(self, notes: recording.Notes | None) -> None:
        """Note calls and packets from now on, or no more. `recording` calls this."""
        self.notes = notes
        self._loop = self._loop._replace(tape=self.new_tape(0) if notes is None else notes.tape)
        os.eventfd_write(self._wake, 1)  # the loop that runs still has the old tape

    # -- joining and leaving --

    @classmethod
    def join(
        cls,
        address: str | None = None,
        *,
        job: str,
        rank: int,
        world_size: int,
        secret: str | None = None,
        timeout_s: float = 60.0,
        peer_timeout_s: float = 10.0,
        payload_bytes: int = 1024,
        slots: int = 0,
        bind_ip: str | None = None,
        tls_ca: str | None = None,
        transport: str | None = None,
        wire: str | None = None,
        sparse: density.Choice | Sparse | bool | str | None = None,
    ) -> HostAgent:
        """Join `job` at the aggregator whose control port is `address` (host:port; default: $SWITCHML_AGGREGATOR).
        Several of them, separated by commas, share the work (sharded.py); every rank must list the same ones in the
        same order.

        Waits up to `timeout_s` for the aggregator and all ranks. `secret`: the job's (default: $SWITCHML_SECRET).
        `payload_bytes`: 256 or 1024 a packet. `slots`: a power of two, 0 for the aggregator's choice. `bind_ip`:
        address to receive on; by default 127.0.x.y, its own for each job and rank, if the aggregator is on this
        machine's loopback, else the address that routes to it. `transport`: "udp", "shm" (memory shared with an
        aggregator on this machine), "zmq" (the aggregator's tunnel, for networks that drop UDP), or "auto": shm where
        it can be had, else udp (default: $SWITCHML_TRANSPORT, or auto). A P4 switch (docs/p4.md) is reached by "udp"
        through an interface on one of its ports, by "raw" (frames made here, root), or by "frames" (Ethernet in UDP, no
        interface); auto takes the first that can be had. `wire`: lanes for float32 and half precision:
        "int32", or "int16" and "int8" for twice and four times as many values in a packet and precision to match
        (switchml/protocol/narrow.py). Other dtypes always take int32 lanes (default: $SWITCHML_WIRE, or int32).
        `sparse`: what all-reduces that say nothing of it do with blocks of zeros: "off" sends them, "on" skips those
        that are zero on every rank, "auto" skips them where the last tensor like this one had enough of them; with
        options, "on:block=64,threshold=1e-6" (elements, and the magnitude up to which an element counts as zero), or a
        `Sparse(…)` (default: $SWITCHML_SPARSE, or off). Raises JoinError if the aggregator refuses or can't be reached,
        ConfigError for arguments that make no sense.
        """
        asked = joining.Asked(
            job=job,
            rank=rank,
            world_size=world_size,
            secret=secret,
            timeout_s=timeout_s,
            peer_timeout_s=peer_timeout_s,
            payload_bytes=payload_bytes,
            slots=slots,
            bind_ip=bind_ip,
            tls_ca=tls_ca,
            transport=transport,
            wire=wire,
            sparse=sparse,
        )
        address = address or os.environ.get("SWITCHML_AGGREGATOR")
        if not address:
            raise ConfigError(
                "no aggregator: pass address='host:port' or set SWITCHML_AGGREGATOR (start one with `switchml "
                "aggregate`)"
            )
        if "," in address:
            from host_agent.sharded import ShardedAgent, split_addresses

            return ShardedAgent.join_all(split_addresses(address), **vars(asked))
        return joining.join(cls, address, asked)

    def __enter__(self) -> HostAgent:
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self.leave()

    def leave(self) -> None:
        """Leave the job and free everything; calls that are still under way fail. May be called twice."""
        if self._close(JobError(f"rank {self.rank} left job '{self.job}'")):
            self._session.leave()

    def abort(self, error: BaseException) -> None:
        """Fail every call under way, and every later one, with `error`; the agent stays joined until `leave`."""
        self._fail(error)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` with the error that ends this agent's part in the job, once; at once if that has happened.
        From any thread."""
        with self._lock:
            error = self._error
            if error is None:
                self._on_failure.append(callback)
        if error is not None:
            callback(error)

    def _close(self, error: BaseException) -> bool:
        with self._lock:
            if self._closing:
                return False
            self._closing = True
        self._fail(error)
        self._end_thread()
        recording.leave(self)
        if self._tunnel is not None:
            self._tunnel.close()
        self._way.close()
        os.close(self._wake)
        # Shared memory goes now, and not when the last error that names a frame of ours does.
        self._segment = self._loop = None
        nothing = np.zeros((0, 1), np.uint8)
        self._worker.state = self._worker.state._replace(packets=nothing, wide=nothing)
        return True

    def _end_thread(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- all-reduce --

    def allreduce(
        self,
        x,
        op: str = "sum",
        async_op: bool = False,
        out=None,
        timeout_s: float | None = None,
        sparse: density.Choice | Sparse | bool | str | None = None,
        *,
        wire: str | None = None,
        codec: str | None = None,
        memory: str | None = None,
        name: str = "",
    ):
        """Sum or mean of `x` over all ranks, with the same bits on each.

        `x`: NumPy array (float32, float64, float16, int32, int64) or CPU torch tensor (bfloat16 too), any shape, any
        strides, left as it is. The result is new, or in `out` (same shape and dtype, C-contiguous; may be `x`). Returns
        it, or with `async_op` a Handle whose `wait()` does. Until then neither `x` nor `out` may be changed or used in
        another call. Integer means truncate toward zero. `sparse`: as in `join`, whose word it overrides; the same on
        all ranks. Raises UnsupportedTensor; SumOverflow if an integer sum does not fit; PeerLost, AggregatorLost,
        RanksDisagree; CollectiveTimeout after `timeout_s` seconds without the result, and then the job is over for this
        rank.

        `wire`: "int32" in place of the job's narrow lanes. `codec`: compresses float32 ("topk:ratio=0.01", see
        docs/codecs.md) with `memory` for what is left out (None: the one that suits the codec); `name` tells tensors of
        one size apart, as each has a memory of its own. A compressed all-reduce is several exchanges in one order on
        all ranks, so it can't be `async_op`.
        """
        if op not in ("sum", "mean"):
            raise ConfigError(f"op {op!r}: expected 'sum' or 'mean'")
        if codec is not None:
            if async_op or timeout_s is not None or wire is not None:
                raise ConfigError(f"codec {codec!r} goes with none of async_op, timeout_s and wire")
            return self._compressed(x, op, out, codec, memory, name)
        if memory is not None:
            raise ConfigError(f"memory {memory!r} needs a codec")
        call = tensors.prepare(x, out)
        handle = Handle()

        def done(error: BaseException | None) -> None:
            result = None
            if error is None:
                try:
                    result = call.finish()
                except BaseException as problem:
                    error = problem
            handle.finish(error, result)

        self.allreduce_address(
            call.source,
            call.target,
            call.numel,
            call.dtype,
            op,
            done,
            timeout_s=timeout_s,
            keep=call,
            sparse=sparse,
            wire=wire,
        )
        return handle if async_op else handle.wait()

    def _compressed(self, x, op: str, out, codec: str, memory: str | None, name: str):
        """`allreduce` with a codec: float32 of any shape, NumPy or torch, as there."""
        from host_agent.compression.compressed import AgentReducer, Compressor

        call = tensors.prepare(x, out)
        if call.dtype != "float32":
            raise UnsupportedTensor(f"dtype {call.dtype}: codecs take float32")
        key = (codec, memory)
        if key not in self._compressors:
            self._compressors[key] = Compressor(AgentReducer(self), codec, memory)
        # A copy: `out` may be `x`, and an exchange reads it to its end.
        mean = self._compressors[key].allreduce(name, f32_at(call.source, call.numel).copy(), tuple(x.shape))
        f32_at(call.target, call.numel)[:] = mean if op == "mean" else mean * np.float32(self.world_size)
        return call.finish()

    def allreduce_address(
        self,
        source: int,
        target: int,
        numel: int,
        dtype: str,
        op: str,
        on_done: Callable[[BaseException | None], None],
        *,
        timeout_s: float | None = None,
        keep: object = None,
        sparse: density.Choice | Sparse | bool | str | None = None,
        wire: str | None = None,
    ) -> None:
        """Queue an all-reduce of `numel` elements from address `source` into `target` (may be equal); returns at once.

        `dtype`: float32, float64, float16, bfloat16, int32 or int64. `wire`: "int32" in place of the job's own.
        `on_done(None or error)` is called once, from the agent's thread, and must not wait for another call of this
        agent. The memory must stay alive until then (`keep` is held). `sparse`: as in `join`, whose word it overrides.
        """
        chosen = self.sparse if sparse is None else density.choice(sparse)
        nbytes = numel * tensors.ITEM_BYTES.get(dtype, 0)
        if not self.takes_sparse:
            if chosen.mode == "on":
                raise ConfigError(joining.DENSE_ONLY)
            chosen = _DENSE
        if dtype in tensors.HALVES:
            widened = tensors.widen_at(source, target, numel, dtype)
            inner, on_done = on_done, lambda error: tensors.narrow_then(widened, error, inner)
            source = target = widened.address
            dtype, keep = "float32", (keep, widened)
        elif dtype not in tensors.NATIVE:
            raise UnsupportedTensor(f"dtype {dtype}: expected one of {', '.join([*tensors.NATIVE, *tensors.HALVES])}")
        if wire not in (None, "int32", self.wire):
            raise ConfigError(f"wire {wire!r}: this job has {self.wire}, and any job has int32")
        if dtype == "float32" and (wire or self.wire) != "int32":
            dtype = f"float32/{self.wire}"
        if numel == 0:
            on_done(self._error)
            return
        deadline = self._clock() + timeout_s if timeout_s is not None else float("inf")
        divisor = self.world_size if op == "mean" else 1
        call = Call(source, target, numel, dtype, divisor, on_done, deadline, keep=keep, sparse=chosen)
        with self._lock:
            error = self._error or self._watch.departure
            if error is None:
                call.index = self._calls
                self._calls += 1
                if self.notes is not None:
                    self.notes.submitted(call.index, nbytes)
                self._queue.append(call)
                os.eventfd_write(self._wake, 1)
        if error is not None:
            on_done(error)

    def stats(self) -> dict[str, float]:
        """Counters since joining: packets sent (retransmissions included), received, retransmitted, refused, waits,
        spurious, repeats, streamed (rounds of sparse streams after their first); RTT and RTO in seconds; calls, bytes
        reduced, goodput in bits of tensor a second of the time
        that calls were under way."""
        me = self._worker.me
        counted = {
            name: int(me[name])
            for name in ("sent", "received", "retransmitted", "refused", "waits", "spurious", "repeats", "streamed")
        }
        return counted | {
            "rtt_s": int(me["srtt"]) / 1e9,
            "rto_s": int(me["rto"]) / 1e9,
            "window": int(me["window"]),
            "transport": self.transport,
            "calls": self._calls,
            "bytes": self._bytes,
            "busy_s": self._busy_s,
            "goodput_bps": 8 * self._bytes / self._busy_s if self._busy_s else 0.0,
        }

    # -- the agent's thread --

    def _run(self) -> None:
        while self._before_loop():
            self._after_loop(compiled.run(self._loop, self._reported, self._tick_ns))
        self._wind_up()

    @property
    def _tick_ns(self) -> int:
        """How long the loop may run before it is time to look at what Python watches over."""
        return int(EVERY_S * 1e9) if self._running else -1

    def _before_loop(self) -> bool:
        """Start what was submitted; False once something went wrong for good."""
        with self._lock:
            if self._error is not None:
                return False
            self._start_queued()
        if self._running and not self._busy_since:
            self._busy_since = self._clock()
        return True

    def _after_loop(self, why: int) -> None:
        """What the loop returned for: loop.py's WOKEN, TASK_DONE, FAILED or TICK."""
        if why == compiled.WOKEN:
            _drain(self._wake)
        elif why == compiled.FAILED:
            self._fail(self._disagreement())
        completed = int(self._worker.me["completed"])
        if completed != self._reported:
            self._reported = completed
            self._report()
        now = self._clock()
        if self._busy_since and not self._running:
            self._busy_s += now - self._busy_since
            self._busy_since = 0.0
        if now >= self._check_at:  # a busy loop has no quiet moment for a TICK
            self._check_at = now + EVERY_S
            self._check_progress(now)

    def _wind_up(self) -> None:
        """Fail every call that is left."""
        calls = list(self._running.values())
        with self._lock:
            calls += self._queue
            self._queue.clear()
        self._running.clear()
        for call in calls:
            call.end(self._error)
        if isinstance(self._error, (RanksDisagree, CollectiveTimeout)):
            self._session.leave()  # nothing more comes from this rank: the others need not find out by waiting

    def _start_queued(self) -> None:
        while self._queue and self._worker.outstanding < rules.TASKS:
            call = self._queue[0]
            is_sparse = call.sparse.mode == "on"
            if call.sparse.mode == "auto" and call.numel >= density.LEAST_BLOCKS * call.sparse.blocks.block:
                kind = self._densities.kind(call.dtype, call.numel, call.sparse.blocks)
                if kind.is_awaited:
                    return  # the result under way decides
                is_sparse = kind.is_sparse
                call.looked_at = kind if self._densities.start(kind) else None
            self._queue.popleft()
            call.number = self._worker.start(
                call.source,
                call.target,
                call.numel,
                call.dtype,
                call.divisor,
                None if is_sparse else self._histories.of(call),
                call.sparse.blocks if is_sparse else None,
            )
            self._running[call.number] = call
            if self.notes is not None:
                self.notes.started(call.index)

    def _report(self) -> None:
        tasks = self._worker.state.tasks
        numbers = np.fromiter(self._running, np.int64, len(self._running))
        for number in numbers[tasks["state"][numbers % rules.TASKS] == rules.DONE].tolist():
            call, task = self._running.pop(number), tasks[number % rules.TASKS]
            if call.looked_at is not None:
                self._densities.look(call.looked_at, call.target, call.numel, call.dtype, call.sparse.blocks)
            self._bytes += call.numel * rules.ITEM_BYTES[task["fmt"]]
            error = None
            if task["misfits"]:
                misfits = int(task["misfits"])
                error = SumOverflow(
                    f"{misfits} of {call.numel} sums do not fit {call.dtype}; use a wider dtype", misfits
                )
            if self.notes is not None:
                self.notes.done(call.index, error is not None)
            call.end(error)

    def _check_progress(self, now: float) -> None:
        if not self._running:
            return
        with self._lock:
            queued = list(self._queue)
        if (error := self._watch.look(now, self._running.values(), queued)) is not None:
            self._fail(error)

    def _disagreement(self) -> JobError:
        me = self._worker.me
        what = {
            rules.ERROR_MIXED: "the ranks' contributions differ in dtype",
            rules.ERROR_OVERFLOW: "a sum overflowed its lanes",
            rules.ERROR_AHEAD: "a chunk needs another exponent than was agreed",
            rules.ERROR_STREAM: "the aggregator names blocks that this rank does not expect",
        }[int(me["error"])]
        return RanksDisagree(
            f"job '{self.job}' chunk {int(me['error_chunk'])}: {what}; every rank must all-reduce the same tensors in "
            "the same order"
        )

    def _on_event(self, event) -> None:
        """From the session's thread: what happened to the others."""
        kind = type(event).__name__
        if kind == "AggregatorLost":
            self._fail(AggregatorLost(f"job '{self.job}': aggregator lost: {event.reason}"))
            return
        if kind not in ("PeerLost", "PeerLeft"):
            return
        if kind == "PeerLost":
            self._fail(self._watch.lost(event))
        else:
            with self._lock:
                self._watch.has_left(event, self._clock())

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            callbacks, self._on_failure = self._on_failure, []
            os.eventfd_write(self._wake, 1)
        for callback in callbacks:
            callback(error)


def _drain(wake: int) -> None:
    with suppress(BlockingIOError):  # somebody's write was read together with an earlier one
        os.eventfd_read(wake)


__all__ = ["WIRES", "Handle", "HostAgent", "SwitchMLError"]
