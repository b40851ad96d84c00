"""CUDA tensors on their way through the aggregator: down to pinned host memory, reduced there, and up again.

A tensor goes in pieces (`cuts`), each a call of the agent's: while one is reduced, the next comes down and the one
before goes up. What keeps it in order:

1. `move` (the caller's thread) lets a side stream wait for what the caller's stream has queued, and queues the copies
   down, an event behind each.
2. One thread, first in first out, waits until a copy has landed and then calls the agent. All ranks so call it in the
   same order, also if CPU and CUDA tensors alternate: once a group has seen a CUDA tensor, its CPU tensors take this
   queue too.
3. When a piece is reduced, a callback thread queues its copy up on another side stream (copies down wait for kernels of
   the caller's, and copies up behind them would too), and behind the last piece an event.
4. `wait` blocks the caller until the copies are queued, and lets the caller's stream wait for the event. As with NCCL,
   the caller's kernels come after the result; unlike NCCL, the caller's thread waits for the network.
5. The future is completed with the side streams current and with the tensors as its value, so that it records the same
   point (futures.py). DDP waits for nothing else.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from host_agent.pytorch.compiling import never_compiled_methods
from host_agent.pytorch.work import NO_TIMEOUT, AllReduceWork, copy_back, in_order, is_in_order

Done = Callable[[BaseException | None], None]
CallAgent = Callable[[torch.Tensor, torch.Tensor, int, str, Done], None]
"""`call_agent(source, target, numel, note, done)`: a collective between contiguous tensors of the host, of `numel`
elements a rank. `note`: which piece of what, for the ranks to compare."""
PIECE_BYTES = 4 << 20
"""Of a rank. So long that a call's own work is small beside it; so short that the first copy down and the last one up,
with which nothing overlaps, are small beside a bucket's sum."""


def cuts(numel: int, item: int) -> list[tuple[int, int]]:
    """Where each piece of `numel` elements of `item` bytes begins and ends: alike on all ranks, as it depends on
    nothing else. One piece if there are none."""
    size = max(PIECE_BYTES // item, 1)
    return [(begin, min(begin + size, numel)) for begin in range(0, max(numel, 1), size)]


class CudaStaging:
    """The side streams and the queue of one process group."""

    def __init__(self, name: str):
        self._down: dict[torch.device, torch.cuda.Stream] = {}
        self._up: dict[torch.device, torch.cuda.Stream] = {}
        self._landed: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def work_type(self, tensors: list[torch.Tensor]) -> Callable[..., CudaAllReduceWork]:
        """Makes the Work for these tensors, with AllReduceWork's arguments."""
        devices = sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)
        streams = [_stream(self._up, device) for device in devices]
        return lambda *args, **named: CudaAllReduceWork(streams, *args, **named)

    def move(
        self, source: torch.Tensor, target: torch.Tensor, numel: int, work: AllReduceWork, call_agent: CallAgent
    ) -> None:
        """Queue a part of `work`: a collective from `source` into `target`, CUDA tensors or the same one, of `numel`
        elements a rank. A reduce-scatter's source and an all-gather's target have as many for each rank."""
        down, up = _stream(self._down, source.device), _stream(self._up, target.device)
        down.wait_stream(torch.cuda.current_stream(source.device))
        source.record_stream(down)
        target.record_stream(up)
        with torch.cuda.stream(down):
            taken = in_order(source)
        given = target.detach()
        if not is_in_order(target):
            with torch.cuda.stream(up):
                given = torch.empty(target.shape, dtype=target.dtype, device=target.device)
            work.before_finish.insert(0, partial(_copy_up, given, target, up))
        pieces = cuts(numel, source.element_size())
        work.split(len(pieces))
        shares, results = (each.view(-1, numel) if numel else each.view(1, 0) for each in (taken, given))
        for number, (begin, end) in enumerate(pieces, 1):
            with torch.cuda.stream(down):
                host = _pinned(shares[:, begin:end])
                host.copy_(shares[:, begin:end], non_blocking=True)
                landed = torch.cuda.Event()
                landed.record(down)
            into = host if target is source else _pinned(results[:, begin:end])
            note = f", piece {number} of {len(pieces)} of {numel:,} elements" if len(pieces) > 1 else ""
            done = work.part_with(partial(_copy_up, into, results[:, begin:end], up))
            self.when_landed(landed, work, partial(call_agent, host, into, end - begin, note, done))

    def when_landed(self, landed: torch.cuda.Event | None, work: AllReduceWork, call: Callable[[], None]) -> None:
        """Do `call` in its turn, once a copy has landed; if that fails, so has a part of `work`."""

        def task() -> None:
            try:
                if landed is not None:
                    landed.synchronize()
            except RuntimeError as error:  # a kernel of the caller's failed
                work.part_done(error)
            else:
                call()

        self._landed.put(task)

    def call(self, task: Callable[[], None]) -> None:
        """Do something of the caller's in its turn."""
        self._landed.put(task)

    def on_side(self, tensor: torch.Tensor) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """The context of the side stream that results go up to a tensor's device in."""
        stream = _stream(self._up, tensor.device)
        return lambda: torch.cuda.stream(stream)

    def on_stream(self, tensor: torch.Tensor) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Where a sparse tensor gets its result: a context on the side stream, whose memory the caller's stream may
        then use."""
        stream, callers = _stream(self._up, tensor.device), torch.cuda.current_stream(tensor.device)

        @contextlib.contextmanager
        def inside() -> Iterator[None]:
            with torch.cuda.stream(stream):
                yield
            for part in (tensor._indices(), tensor._values()):
                part.record_stream(callers)

        return inside

    def close(self) -> None:
        """Pass on what is queued and end the thread."""
        self._landed.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._landed.get()) is not None:
            call()
            del call


def _stream(streams: dict[torch.device, torch.cuda.Stream], device: torch.device) -> torch.cuda.Stream:
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]


def _pinned(like: torch.Tensor) -> torch.Tensor:
    """Of torch's cache of pinned memory, which knows when a copy has left a block of it."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def _copy_up(values: torch.Tensor, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(stream):
        copy_back(values, tensor, non_blocking=True)


@never_compiled_methods
class CudaAllReduceWork(AllReduceWork):
    """An AllReduceWork whose end is an event on each side stream."""

    def __init__(self, streams: list[torch.cuda.Stream], *args: Any, **named: Any):
        self._streams = streams
        self._copied_up: list[torch.cuda.Event] = []
        super().__init__(*args, **named)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        super().wait(timeout)
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Let the current streams wait for the sums; the work must be done."""
        for stream, event in zip(self._streams, self._copied_up, strict=False):
            torch.cuda.current_stream(stream.device).wait_event(event)

    def _finish(self) -> None:
        for stream in self._streams:
            event = torch.cuda.Event()
            event.record(stream)
            self._copied_up.append(event)
        super()._finish()

    def _complete_future(self) -> None:
        with contextlib.ExitStack() as stack:
            for stream in self._streams:
                stack.enter_context(torch.cuda.stream(stream))
            super()._complete_future()
