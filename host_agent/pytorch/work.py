"""The Work of an all-reduce: several threads may wait for it, poll it, or chain on its future.

The agent's I/O thread reports that a tensor is summed, and must continue with its packets at once. Other threads may
wait in `Work.wait()`. And DDP has chained callbacks on the Work's future, some of which (PowerSGD's hook) wait for a
further all-reduce. So the I/O thread only stores the result and wakes the waiting threads; futures are completed by
`CallbackThreads`, of which at least one is never blocked in a callback.
"""

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C import _autograd
from torch._C._distributed_c10d import Work

from host_agent import recording
from host_agent.calls import words
from host_agent.pytorch.compiling import never_compiled_methods
from host_agent.pytorch.futures import Promise
from host_agent.pytorch.modes import CallersModes
from switchml.errors import CollectiveTimeout

NO_TIMEOUT = timedelta(0)
"""Value that torch passes to `wait` when the caller specified no timeout."""
SPAN = "switchml:all_reduce"
"""Name of the profiler span, like Gloo's `gloo:all_reduce`."""


class CallbackThreads:
    """Runs functions on daemon threads. A thread that takes a function first makes sure that another thread waits for
    the next one.

    So a function may wait for a later one, while a burst of short functions needs only two or three threads.
    """

    def __init__(self, name: str):
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._closed = False

    def submit(self, task: Callable[[], None]) -> None:
        """Run `task()` soon. It must not raise. After `close` it runs in the calling thread."""
        with self._lock:
            if not self._closed:
                if not self._threads:
                    self._add_thread()
                self._tasks.put(task)
                return
        task()

    def close(self) -> None:
        """Finish submitted tasks and end the threads. A thread blocked in a callback is abandoned after a second."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._tasks.put(None)
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._waiting += 1
        thread.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0 and not self._closed:
                    self._add_thread()
            task()
            del task  # otherwise its tensors would live until the next task
            with self._lock:
                self._waiting += 1


@never_compiled_methods
class AllReduceWork(Work):
    """The Work of one in-place all-reduce of one or several tensors, or of another collective.

    `wait` raises the original error (`PeerLost` with its ranks). The future can't: a C++ future carries a RuntimeError,
    whose text has the name and the message of the original. Its value is a Python list of tensors, which DDP and hooks
    written in Python accept; torch's two built-in C++ hooks require a typed list, which only C++ can put into a future
    (host_agent/pytorch/torch_patches.py has Python equivalents of these hooks).

    In a torch profile it has a span `switchml:all_reduce`, from its creation to its end.
    """

    def __init__(
        self,
        tensors: list[torch.Tensor],
        parts: int,
        callbacks: CallbackThreads,
        span: str = SPAN,
        inputs: list[torch.Tensor] | None = None,
    ):
        """`parts`: number of calls of `part_done` to wait for. `span`: its name in a profile, which shows the shapes of
        `inputs`, by default those of `tensors`; a name without `:` is not shown."""
        super().__init__()
        self._modes = CallersModes()
        self.tensors = tensors
        self.before_finish: list[Callable[[], object]] = []
        """Steps between the last part and the end (copies out of staging buffers), run on a callback thread in the
        caller's modes."""
        self._callbacks = callbacks
        self._name = words(span.rpartition(":")[2])
        self._parts = parts
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._promise: Promise[list[torch.Tensor]] | None = None
        self._end_span = _begin_span(tensors if inputs is None else inputs, span)
        if parts == 0:
            self._finish()

    def part_done(self, error: BaseException | None) -> None:
        """Report that one part is done, or has failed. Called by the agent's I/O thread; never blocks."""
        with self._lock:
            self._error = self._error or error
            self._parts -= 1
            if self._parts > 0:
                return
        if self.before_finish and self._error is None:
            self._callbacks.submit(self._run_last_steps)
        else:
            self._finish()

    def split(self, parts: int) -> None:
        """Replace one pending part by `parts` parts."""
        with self._lock:
            self._parts += parts - 1

    def part_with(self, step: Callable[[], object]) -> Callable[[BaseException | None], None]:
        """A callback in place of `part_done`, for a part that ends with a step on a callback thread in the caller's
        modes."""

        def last() -> None:
            self.part_done(self._error_of([step]))

        return lambda error: self._callbacks.submit(last) if error is None else self.part_done(error)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until done and return True, or raise the error; CollectiveTimeout after a positive `timeout`, while the
        collective continues."""
        seconds = timeout.total_seconds()
        with recording.waiting():
            finished = self._finished.wait(seconds if seconds > 0 else None)
        if not finished:
            raise CollectiveTimeout(f"the {self._name} has not finished after {seconds:g} s; it continues")
        if self._error is not None:
            # Several Work objects may share the error, whose traceback should not accumulate.
            raise self._error.with_traceback(None)
        return True

    def is_completed(self) -> bool:
        return self._finished.is_set()

    def is_success(self) -> bool:
        return self._finished.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self._finished.is_set() else None

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def synchronize(self) -> None:
        self.wait()

    def has_future(self) -> bool:
        """Whether `get_future` has been called."""
        return self._promise is not None

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the list of tensors; always the same one."""
        with self._lock:
            is_new = self._promise is None
            if self._promise is None:
                self._promise = Promise(self.tensors)
            promise, finished = self._promise, self._finished.is_set()
        if is_new and finished:
            self._complete_future()
        return promise.future

    def _run_last_steps(self) -> None:
        self._error = self._error_of(self.before_finish)
        self._finish()

    def _error_of(self, steps: list[Callable[[], object]]) -> Exception | None:
        """Run steps in the caller's modes; returns the error of the first one that fails."""
        try:
            with self._modes():
                for step in steps:
                    step()
        except Exception as error:
            return error
        return None

    def _finish(self) -> None:
        self._end_span()
        with self._lock:
            self._finished.set()
            has_future = self._promise is not None
        self.before_finish = []
        if has_future:
            self._callbacks.submit(self._complete_future)

    def _complete_future(self) -> None:
        assert self._promise is not None
        with self._modes():
            self._promise.complete(self.tensors, self._error)


def _begin_span(tensors: list[torch.Tensor], name: str) -> Callable[[], object]:
    """Begin the profiler's span if a profiler is running; returns a function that ends it, on any thread. Skipped
    during a recording, which has a more precise span of the same name."""
    if ":" not in name or not torch.autograd._profiler_enabled() or recording.is_on():
        return lambda: None
    span = _autograd._record_function_with_args_enter(name, *tensors)
    return lambda: _autograd._record_function_with_args_exit(span)


def is_in_order(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values are in memory in index order, without gaps or lazy operations."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy in index order."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def flat_memory(tensor: torch.Tensor, work: AllReduceWork) -> torch.Tensor:
    """The tensor itself if it is in index order or staged anyway (CUDA), else a copy that is copied back before `work`
    is done."""
    if tensor.is_cuda or is_in_order(tensor):
        return tensor
    copy = in_order(tensor)
    work.before_finish.append(lambda: copy_back(copy, tensor))
    return copy


def copy_back(values: torch.Tensor, tensor: torch.Tensor, non_blocking: bool = False) -> None:
    """Copy `values` into `tensor`, of the same shape. Of elements that share memory because of expansion (stride 0),
    only the first is written: all are equal if they were on every rank."""
    tensor = tensor.detach()
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor, values = tensor.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    tensor.copy_(values, non_blocking=non_blocking)
