"""One rank of a v1 session: calls in the order of their submission, one tensor after the other, as in p4app-switchML's
client. Created by `joining.join`."""

import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from host_agent import density
from host_agent.base import Agent
from host_agent.calls import CallQueue, PendingCall, Request
from host_agent.core import COUNTERS, accepted, widened
from host_agent.loop import TASK_DONE, Impaired
from host_agent.v1 import loop
from host_agent.watch import INTERVAL_S, StallWarning
from switchml.errors import CollectiveTimeout, ConfigError, UnsupportedTensor
from switchml.protocol.worker_v1 import FORMATS, ITEM_BYTES, WorkerV1
from switchml.runtime.entry import entry_point

DTYPES = (*FORMATS, "float16", "bfloat16")
"""Dtypes that v1 sums; half precision is sent as float32."""
_TICK_NS = int(INTERVAL_S * 1e9)
_NOBODY_KNOWS = "v1 does not tell whether a rank is late or gone, or the switch was restarted"


class V1Agent(Agent):
    """One rank of a v1 session. `sock` is bound to the address to which the switch sends results; `switch` (IPv4, port)
    is the destination of packets."""

    wire, takes_sparse, takes_collectives = "int32", False, False
    transport = "udp"
    global_ranks: tuple[int, ...] = ()

    def __init__(
        self,
        worker: WorkerV1,
        sock: socket.socket,
        switch: tuple[str, int],
        *,
        job: str,
        rank: int,
        world_size: int,
        impaired: Impaired | None = None,
    ):
        self._calls: CallQueue[PendingCall] = CallQueue(self._wake)
        super().__init__(self._calls)
        self.job, self.rank, self.world_size, self.global_ranks = job, rank, world_size, tuple(range(world_size))
        self._worker, self._socket, self._switch = worker, sock, "{}:{}".format(*switch)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._loop: loop.Loop | None = loop.new_loop(worker, sock, self._wake_fd, switch, impaired)
        self._turn = entry_point(loop.run, self._loop, _TICK_NS)
        self._warn = StallWarning(job, rank)
        self._thread = threading.Thread(target=self._run, name=f"switchml-v1-agent-{rank}", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        if not self._ends(self._thread):
            return
        self._loop = None
        self._socket.close()
        os.close(self._wake_fd)

    def submit(self, request: Request) -> None:
        if request.collective is not None or request.dtype not in DTYPES:
            raise UnsupportedTensor(f"{request.name} of {request.dtype}: v1 sums {', '.join(DTYPES)}")
        if request.sparse is not None and request.sparse.mode == "on":
            raise ConfigError("sparse on: v1 sums dense tensors only; expected off or auto")
        request, sparse = accepted(request, wire=self.wire, sparse=density.OFF, takes_sparse=False)
        call = PendingCall(
            widened(request), sparse, request.divisor(self.world_size), request.deadline(time.monotonic())
        )
        self._calls.add(call, lambda: None)

    def missing_ranks(self) -> tuple[int, ...]:
        return ()

    def stats(self) -> dict[str, Any]:
        me = self._worker.state.me[0]
        counted = {name: int(me[name]) for name in ("sent", "received", "retransmitted", "refused")}
        return (
            dict.fromkeys(COUNTERS, 0)
            | counted
            | {"rtt_s": 0.0, "rto_s": int(me["timeout"]) / 1e9, "window": int(me["window"])}
            | self._calls.totals()
            | {"transport": self.transport}
        )

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    # The agent's thread

    def _run(self) -> None:
        calls = self._calls
        call: PendingCall | None = None
        try:
            while calls.error is None:
                call = calls.take()
                calls.note_busy(time.monotonic(), call is not None)
                if call is None:
                    select.select([self._wake_fd], [], [])
                    self._clear_wake()
                elif self._reduce(call):
                    calls.bytes += ITEM_BYTES * call.request.numel
                    call.end(None)
                    call = None
        except Exception as error:
            self._died(error)
        calls.end_calls([call] if call is not None else [])

    def _reduce(self, call: PendingCall) -> bool:
        """Reduce a call; returns False if the job has ended."""
        request = call.request
        self._worker.begin(request.source, request.target, request.numel, request.dtype, call.divisor)
        me, progress, progress_at = self._worker.state.me[0], -1, 0.0
        while self._calls.error is None:
            if self._turn(self._loop, _TICK_NS) == TASK_DONE:
                return True
            self._clear_wake()
            now = time.monotonic()
            if me["done"] != progress:
                progress, progress_at = int(me["done"]), now
            if now >= call.deadline:
                self._calls.fail(CollectiveTimeout(self._late(call)))
            else:
                self._warn(now, now - progress_at, call, f"results from {self._switch}; {_NOBODY_KNOWS}")
        return False

    def _late(self, call: PendingCall) -> str:
        me = self._worker.state.me[0]
        return (
            f"job '{self.job}': {call.name} not done after {call.request.timeout_s:g} s: {me['done']} of "
            f"{me['packets']} results came from {self._switch}; {_NOBODY_KNOWS}"
        )

    def _clear_wake(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
