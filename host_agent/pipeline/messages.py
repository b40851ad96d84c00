"""Messages between the stages of a pipeline: a micro-batch's activations forward, their gradients backward.

A rank processes messages in order of arrival, so one thread per neighbor waits for its next message and puts it into
the inbox; waiting takes no processor time. Gloo moves data only once the receiver has posted a receive, so that thread
posts the next one as soon as a message has arrived, while the stage computes.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch.distributed as dist

from switchml.errors import PeerLost

BACKWARD, FORWARD = 0, 1
"""Directions by priority: of several messages received, a backward pass runs first, since it frees memory and lets
another micro-batch start."""
NAMES = {BACKWARD: "gradients", FORWARD: "activations"}
_FAILED = -1


class Inbox:
    """Micro-batches that have arrived at a stage and are still to be processed."""

    def __init__(self) -> None:
        self._waiting: queue.PriorityQueue[tuple[int, int]] = queue.PriorityQueue()
        self._failure: Exception | None = None
        self._threads: list[threading.Thread] = []

    def put(self, direction: int, micro_batch: int) -> None:
        self._waiting.put((direction, micro_batch))

    def receive(self, direction: int, count: int, receive: Callable[[int], None]) -> None:
        """Put micro-batches 0 to `count` - 1, each when `receive`, called in another thread, has returned."""

        def loop() -> None:
            try:
                for micro_batch in range(count):
                    receive(micro_batch)
                    self.put(direction, micro_batch)
            except Exception as error:
                self._failure = error
                self.put(_FAILED, 0)

        thread = threading.Thread(target=loop, daemon=True, name=f"switchml-pipeline-{NAMES[direction]}")
        thread.start()
        self._threads.append(thread)

    def take(self) -> tuple[int, int]:
        """Wait for a message; returns its direction and micro-batch. Raises what `receive` raised."""
        direction, micro_batch = self._waiting.get()
        if direction == _FAILED:
            assert self._failure is not None
            raise self._failure
        return direction, micro_batch

    def close(self) -> None:
        """Join the threads, once all messages have been taken."""
        for thread in self._threads:
            thread.join()


def receive(ops: Sequence[dist.P2POp], micro_batch: int, direction: int) -> None:
    """Wait until a micro-batch's tensors have been received into the memory of `ops`, allocated by torch's stage.

    Raises PeerLost if the sender is lost or silent for longer than the group's timeout."""
    works = [
        (op, dist.irecv(op.tensor, group=op.group, tag=micro_batch, group_src=op.group_peer)) for op in ops
    ]  # one tag for all tensors of a message: they arrive in order
    for op, work in works:
        try:
            if work is not None:
                work.wait()
        except RuntimeError as error:
            text = f"{NAMES[direction]} of micro-batch {micro_batch} did not come from rank {op.peer}: {error}"
            raise PeerLost(text, (op.peer,)) from error


class Outbox:
    """Messages being sent. With more than `limit`, sending waits for the oldest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._works: deque[tuple[dist.P2POp, dist.Work]] = deque()

    def send(self, ops: Sequence[dist.P2POp], micro_batch: int) -> None:
        for op in ops:
            work = dist.isend(op.tensor.contiguous(), group=op.group, tag=micro_batch, group_dst=op.group_peer)
            if work is not None:
                self._works.append((op, work))
        while len(self._works) > self._limit:
            self._wait()

    def wait(self) -> None:
        """Wait until everything has been sent. Raises PeerLost."""
        while self._works:
            self._wait()

    def _wait(self) -> None:
        op, work = self._works.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise PeerLost(f"a message to rank {op.peer} could not be sent: {error}", (op.peer,)) from error
