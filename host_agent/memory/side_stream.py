"""Execution of the codecs' coroutines: synchronously for vectors on a CPU, on a side stream for those on a GPU.

Synchronization on a GPU:

1. The side stream waits for the work queued on the caller's stream, which computes the vector, and `record_stream`
   keeps the vector's memory from being reused until the side stream is done with it, whoever drops the reference.
2. Numbers that the coroutine needs on the host are copied to pinned memory, followed by an event. The caller continues;
   the coroutine is resumed in a later call, after the event has completed.
3. The vector itself is referenced until the side stream has completed, and then its version is compared: a kernel of
   the caller that changes it in place might have run first.
4. The host is ahead of the GPU, and memory in use cannot be reused: with more than `IN_FLIGHT_BYTES` of vectors in
   flight the caller waits for the oldest.
5. Waiting for a result (`Task.result`) also waits for all earlier tasks. The result's memory belongs to the side
   stream; `record_stream` marks its use by the caller's stream, so that it is not reused before that use is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from host_agent.memory.codecs import CompressedTensor, Compression

IN_FLIGHT_BYTES = 256 << 20
Done = Callable[[CompressedTensor | None], None]


def at_once(compression: Compression) -> CompressedTensor | None:
    """Run a coroutine synchronously and return its result."""
    try:
        numbers = next(compression)
        while True:
            numbers = compression.send(numbers.tolist())
    except StopIteration as end:
        compressed: CompressedTensor | None = end.value
        return compressed


class Task:
    """The compression of one vector."""

    def __init__(self, side: SideStream, compression: Compression, vector: torch.Tensor, done: Done):
        self._side, self._compression = side, compression
        self._done: Done | None = done
        self._vector: torch.Tensor | None = vector
        self.nbytes, self._version = vector.nbytes, vector._version
        self._numbers: torch.Tensor | None = None
        self._event = torch.cuda.Event()
        self._compressed: CompressedTensor | None = None
        self.has_ended = self.was_changed = False

    def start(self) -> None:
        """Run the first part on the current stream."""
        self._step(partial(next, self._compression))

    def advance(self, *, wait: bool) -> bool:
        """Resume the coroutine if the event has completed, or wait for it; returns whether the task has ended."""
        while wait or self._event.query():
            self._event.synchronize()
            numbers, self._numbers = self._numbers, None
            if numbers is None:
                self._end()
                return True
            with torch.cuda.stream(self._side.stream):
                self._step(partial(self._compression.send, numbers.tolist()))
        return False

    def result(self) -> CompressedTensor | None:
        """The compressed vector, for use on the current stream; None if it stays uncompressed. Raises RuntimeError if
        it was changed meanwhile."""
        if not self.has_ended:
            self._side.finish(self)
        if self.was_changed:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation, while "
                "it was compressed: expected nothing to change what a forward pass has saved"
            )
        if self._compressed is not None:
            for tensor in self._compressed.tensors():
                tensor.record_stream(self._side.callers())
        return self._compressed

    def _step(self, step: Callable[[], torch.Tensor]) -> None:
        try:
            asked = step()
            self._numbers = torch.empty(asked.shape, dtype=asked.dtype, pin_memory=True)
            self._numbers.copy_(asked, non_blocking=True)
        except StopIteration as end:
            self._compressed = end.value
        self._event.record(self._side.stream)

    def _end(self) -> None:
        assert self._vector is not None and self._done is not None
        self.was_changed = self._vector._version != self._version
        self.has_ended = True
        self._done(self._compressed)
        self._vector = self._done = None  # `done` refers to the owner of the task


class SideStream:
    """Side stream of one device, for one thread of the caller."""

    def __init__(self, device: torch.device):
        self._device = device
        self.stream = torch.cuda.Stream(device)
        self._tasks: deque[Task] = deque()
        self._bytes = 0

    def start(self, compression: Compression, vector: torch.Tensor, done: Done) -> Task:
        """Compress a vector after the current stream has computed it. `done` is called with the result, in a later call
        of this object's methods, in the order of starts."""
        self.stream.wait_stream(self.callers())
        vector.record_stream(self.stream)
        task = Task(self, compression, vector, done)
        with torch.cuda.stream(self.stream):
            task.start()
        self._tasks.append(task)
        self._bytes += task.nbytes
        while len(self._tasks) > 1 and self._first(wait=self._bytes > IN_FLIGHT_BYTES):
            pass
        return task

    def finish(self, last: Task | None = None) -> None:
        """Wait for a task and earlier ones, or for all tasks."""
        while self._tasks and (last is None or not last.has_ended):
            self._first(wait=True)

    def callers(self) -> Any:
        """The current stream of the device."""
        return torch.cuda.current_stream(self._device)

    def _first(self, *, wait: bool) -> bool:
        """Advance the oldest task; returns whether it has ended."""
        if not self._tasks[0].advance(wait=wait):
            return False
        self._bytes -= self._tasks.popleft().nbytes
        return True
