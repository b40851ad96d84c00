"""Staging of CUDA tensors for the aggregator: copied to pinned host memory, reduced there, and copied back.

A tensor is divided into pieces (`cuts`), each a call of the agent: while one is reduced, the next is copied to the host
and the previous one back. Synchronization:

1. `move` (on the caller's thread) makes a side stream wait for the work queued on the caller's stream, and queues the
   copies to the host, each followed by an event.
2. One FIFO thread waits until a copy has completed and then calls the agent. So all ranks make these calls in the same
   order, even if CPU and CUDA tensors alternate: once a group has reduced a CUDA tensor, its CPU tensors use this queue
   too.
3. When a piece is reduced, a callback thread queues its copy to the device on another side stream (copies to the host
   wait for the caller's kernels, and copies to the device on the same stream would too), and an event after the last
   piece.
4. `wait` blocks the caller until the copies are queued, and makes the caller's stream wait for the event. As with NCCL,
   the caller's kernels run after the result; unlike NCCL, the caller's thread waits for the network.
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

from host_agent import recording
from host_agent.pytorch.compiling import never_compiled_methods
from host_agent.pytorch.work import NO_TIMEOUT, AllReduceWork, copy_back, in_order, is_in_order

Done = Callable[[BaseException | None], None]
CallAgent = Callable[[torch.Tensor, torch.Tensor, int, str, Done], None]
"""`call_agent(source, target, numel, note, done)`: a collective between contiguous tensors on the host, of `numel`
elements per rank. `note`: describes the piece, to be compared between ranks."""
PIECE_BYTES = 8 << 20
"""Size of a piece per rank. Large enough that the overhead of a call is small in comparison; small enough that the
first copy to the host and the last one back, which do not overlap, are short compared with a bucket's sum."""


def cuts(numel: int, item: int) -> list[tuple[int, int]]:
    """Bounds of the pieces of `numel` elements of `item` bytes: equal on all ranks, since they depend on nothing else.
    One piece if there are no elements."""
    size = max(PIECE_BYTES // item, 1)
    return [(begin, min(begin + size, numel)) for begin in range(0, max(numel, 1), size)]


class CudaStaging:
    """The side streams and the call queue of one process group."""

    def __init__(self, name: str):
        self._down: dict[torch.device, torch.cuda.Stream] = {}
        self._up: dict[torch.device, torch.cuda.Stream] = {}
        self._landed: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def work_type(self, tensors: list[torch.Tensor]) -> Callable[..., CudaAllReduceWork]:
        """Factory of the Work for these tensors, with AllReduceWork's arguments."""
        devices = sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)
        streams = [_stream(self._up, device) for device in devices]
        return lambda *args, **named: CudaAllReduceWork(streams, *args, **named)

    def move(
        self, source: torch.Tensor, target: torch.Tensor, numel: int, work: AllReduceWork, call_agent: CallAgent
    ) -> None:
        """Queue a part of `work`: a collective from `source` into `target`, CUDA tensors or the same one, of `numel`
        elements per rank. A reduce-scatter's source and an all-gather's target have that many for each rank."""
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
            call = partial(call_agent, host, into, end - begin, note, done)
            self.when_landed(landed, work, call, continues=number > 1)

    def when_landed(
        self, landed: torch.cuda.Event, work: AllReduceWork, call: Callable[[], None], continues: bool
    ) -> None:
        """Make `call` in order, once a copy has completed; if the copy fails, report the failure of a part of `work`.
        `continues`: in recordings, it belongs to the call before."""

        def task() -> None:
            try:
                landed.synchronize()
            except RuntimeError as error:  # a kernel of the caller's failed
                work.part_done(error)
            else:
                call()

        self.call(task, continues)

    def call(self, task: Callable[[], None], continues: bool = False) -> None:
        """Run a task of the caller in order; in recordings, what it submits belongs to the caller's span."""
        launch = recording.launch()

        def resumed() -> None:
            with recording.resumed(launch, continues):
                task()

        self._landed.put(resumed)

    def on_side(self, tensor: torch.Tensor) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Context in which the side stream for results on a tensor's device is current."""
        stream = _stream(self._up, tensor.device)
        return lambda: torch.cuda.stream(stream)

    def on_stream(self, tensor: torch.Tensor) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Context for storing the result of a sparse tensor: on the side stream, with its memory marked as used by the
        caller's stream."""
        stream, callers = _stream(self._up, tensor.device), torch.cuda.current_stream(tensor.device)

        @contextlib.contextmanager
        def inside() -> Iterator[None]:
            with torch.cuda.stream(stream):
                yield
            for part in (tensor._indices(), tensor._values()):
                part.record_stream(callers)

        return inside

    def close(self) -> None:
        """Process the queued calls and end the thread."""
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
    """Buffer from torch's cache of pinned memory, which tracks when copies out of a block have completed."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def _copy_up(values: torch.Tensor, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(stream):
        copy_back(values, tensor, non_blocking=True)


@never_compiled_methods
class CudaAllReduceWork(AllReduceWork):
    """An AllReduceWork that completes with an event on each side stream."""

    def __init__(self, streams: list[torch.cuda.Stream], *args: Any, **named: Any):
        self._streams = streams
        self._copied_up: list[torch.cuda.Event] = []
        super().__init__(*args, **named)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        super().wait(timeout)
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Make the current streams wait for the results; the work must be done."""
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
