"""CUDA tensors on their way through the aggregator: down to pinned host memory, reduced there, and up again.

What keeps it in order:

1. `stage` (the caller's thread) lets a side stream wait for what the caller's stream has queued, and queues the copy
   down.
2. One thread, first in first out, waits until a copy has landed and then calls the agent. All ranks so call it in the
   same order, also if CPU and CUDA tensors alternate: once a group has seen a CUDA tensor, its CPU tensors take this
   queue too.
3. When the sum is there, a callback thread queues the copy up on the side stream and an event behind it.
4. `wait` blocks the caller until that copy is queued, and lets the caller's stream wait for the event. As with NCCL,
   the caller's kernels come after the sum; unlike NCCL, the caller's thread waits for the network.
5. The future is completed with the side streams current and with the tensors as its value, so that it records the same
   point (futures.py). DDP waits for nothing else.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch

from host_agent.pytorch.compiling import never_compiled_methods
from host_agent.pytorch.work import NO_TIMEOUT, AllReduceWork, copy_back, flat_memory

Done = Callable[[BaseException | None], None]
CallAgent = Callable[[torch.Tensor, Done], None]


class CudaStaging:
    """The side streams and the queue of one process group."""

    def __init__(self, name: str):
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._landed: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def work_type(self, tensors: list[torch.Tensor]) -> Callable[..., CudaAllReduceWork]:
        """Makes the Work for these tensors, with AllReduceWork's arguments."""
        streams = [
            self._stream(device) for device in sorted({tensor.device for tensor in tensors if tensor.is_cuda}, key=str)
        ]
        return lambda *args, **named: CudaAllReduceWork(streams, *args, **named)

    def stage(self, tensor: torch.Tensor, work: AllReduceWork, call_agent: CallAgent) -> None:
        """Queue `tensor` for summing: `call_agent(host_copy, done)` when its turn has come, then back into `tensor`."""
        if not tensor.is_cuda:
            flat = flat_memory(tensor, work)
            self._landed.put(lambda: call_agent(flat, work.part_done))
            return
        host, landed = self.down(tensor)
        work.before_finish.append(self.up(host, tensor))
        self.when_landed(landed, work, lambda: call_agent(host, work.part_done))

    def down(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Queue a copy of a CUDA tensor into pinned host memory; the event comes after it."""
        stream = self._stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            host = torch.empty(dense.shape, dtype=dense.dtype, pin_memory=True)
            host.copy_(dense, non_blocking=True)
            landed = torch.cuda.Event()
            landed.record(stream)
        tensor.record_stream(stream)
        return host, landed

    def up(self, host: torch.Tensor, tensor: torch.Tensor) -> Callable[[], None]:
        """What queues the copy from host memory into a CUDA tensor of the same shape, behind all that the caller's
        stream has queued by now."""
        stream = self._stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        tensor.record_stream(stream)

        def copy_up() -> None:
            with torch.cuda.stream(stream):
                copy_back(host, tensor, non_blocking=True)

        return copy_up

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
        """The context of the side stream of a tensor's device."""
        stream = self._stream(tensor.device)
        return lambda: torch.cuda.stream(stream)

    def on_stream(self, tensor: torch.Tensor) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Where a sparse tensor gets its result: a context on the side stream, whose memory the caller's stream may
        then use."""
        stream, callers = self._stream(tensor.device), torch.cuda.current_stream(tensor.device)

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

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _run(self) -> None:
        while (call := self._landed.get()) is not None:
            call()
            del call


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
