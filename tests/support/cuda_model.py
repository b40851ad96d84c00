"""A GPU without a GPU: tensors of device "cuda" whose kernels and copies run when a schedule says so, so that whatever
is read before its stream got there is read wrong.

`GpuModel(lazy=…)` has streams that hold back their work until somebody must wait for it (an event, a copy to the host
that blocks), or run it at once; `lazy` says which streams do which. Held back on a side stream, a copy up that nobody
waits for never lands; held back on the caller's, a kernel is overtaken by a copy down that does not wait for it. Values
are real, in CPU memory, so an order that is wrong shows as a wrong number. So does memory that is used again while a
stream that `record_stream` was not told of still reads it: it is overwritten as soon as its own stream may.

`Future` has the rules of torch's C++ futures (ATen/core/ivalue_inl.h): completing one records an event on the current
stream only if its value holds a tensor of the GPU, callbacks run on fresh streams behind these events, and waiting lets
the current stream wait for them.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda", 0)
_of_torch_empty = torch.empty


class Stream:
    def __init__(self, model: GpuModel, is_side: bool = True):
        self.model, self.device = model, DEVICE
        self.is_lazy = model.lazy == ("side" if is_side else "caller")
        self._queue: deque[Callable[[], None]] = deque()
        self._queued = self._done = 0

    def enqueue(self, operation: Callable[[], None]) -> None:
        with self.model.lock:
            self._queue.append(operation)
            self._queued += 1
            if not self.is_lazy:
                self.run_until(self._queued)

    def run_until(self, number: int) -> None:
        with self.model.lock:
            while self._done < number:
                self._done += 1
                self._queue.popleft()()

    def mark(self) -> int:
        return self._queued

    def mark_done(self) -> int:
        return self._done

    def wait_event(self, event: Event) -> None:
        stream, number = event.point
        if stream is not self:
            self.enqueue(lambda: stream.run_until(number))

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self) -> Event:
        event = Event(self.model)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.run_until(self._queued)


class Event:
    def __init__(self, model: GpuModel):
        self._model = model
        self.point: tuple[Stream, int]

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._model.current_stream()
        self.point = stream, stream.mark()

    def synchronize(self) -> None:
        stream, number = self.point
        stream.run_until(number)

    def query(self) -> bool:
        stream, number = self.point
        return stream.mark_done() >= number


class Memory:
    """The allocator's block under a tensor and its views. When the last of them is gone, the next kernel of the stream
    that it belongs to may write there, and one does; only the streams of `record_stream` come to an end before."""

    def __init__(self, model: GpuModel, held: torch.Tensor):
        self.streams: set[Stream] = set()
        weakref.finalize(self, _reused, model.current_stream(), held, self.streams).atexit = False


def _reused(stream: Stream, held: torch.Tensor, users: set[Stream]) -> None:
    marks = [(user, user.mark()) for user in users if user is not stream]

    def write() -> None:
        for user, mark in marks:
            user.run_until(mark)
        _garbage(held)

    stream.enqueue(write)


class GpuTensor(torch.Tensor):
    """`held`: its values, in CPU memory, as the kernels so far have left them. Only Python sees a device "cuda": in C++
    a build of torch without CUDA refuses one."""

    held: torch.Tensor
    model: GpuModel
    memory: Memory
    device, is_cuda, is_cpu = DEVICE, True, False
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor, model: GpuModel, memory: Memory | None = None) -> GpuTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device="cpu"
        )
        made.held, made.model, made.memory = held, model, memory or Memory(model, held)
        return made

    def cpu(self) -> torch.Tensor:
        host = _of_torch_empty(self.shape, dtype=self.dtype)
        return host.copy_(self)

    def record_stream(self, stream: Stream) -> None:
        self.memory.streams.add(stream)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        model = next(each.model for each in tree_flatten((args, kwargs))[0] if isinstance(each, GpuTensor))
        return model.dispatch(function, args, kwargs or {})


def _held(tree: Any) -> Any:
    return tree_map(lambda each: each.held if isinstance(each, GpuTensor) else each, tree)


class GpuModel:
    """`lazy`: "side" or "caller", the streams that hold back their work."""

    def __init__(self, lazy: str):
        self.lazy, self.lock = lazy, threading.RLock()
        self._thread = threading.local()

    # torch.cuda

    def current_stream(self, device: object = None) -> Stream:
        if not hasattr(self._thread, "stream"):
            self._thread.stream = Stream(self, is_side=False)
        return self._thread.stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._thread.stream = stream
        try:
            yield
        finally:
            self._thread.stream = before

    def install(self, monkeypatch: Any) -> None:
        """In place of torch's own, on all threads."""
        monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: Stream(self))
        monkeypatch.setattr(torch.cuda, "Event", lambda: Event(self))
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "current_stream", self.current_stream)
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch, "empty", self._empty)
        monkeypatch.setattr(torch, "zeros", lambda *size, **options: self._empty(*size, **options).zero_())
        monkeypatch.setattr(torch.futures, "Future", lambda *, devices=(): Future(self, bool(devices)))

    def tensor(self, values: torch.Tensor) -> GpuTensor:
        """A tensor that a kernel of the current stream will have filled."""
        made = GpuTensor(_garbage(torch.empty_like(values)), self)
        copy = values.clone()
        self.current_stream().enqueue(lambda: made.held.copy_(copy))
        return made

    def _empty(self, *size: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda":
            return _of_torch_empty(*size, device=device, **options)
        return GpuTensor(_garbage(_of_torch_empty(*size, **options)), self)

    # Kernels and copies

    def dispatch(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        # A queued kernel knows addresses, and keeps no memory from being used again.
        held_args, held_kwargs = _held(args), _held(kwargs)
        arguments = function._schema.arguments
        aliases = [each.alias_info for each in arguments]
        given = [
            *zip(args, arguments, strict=False),
            *((kwargs.get(each.name), each) for each in arguments[len(args) :]),
        ]
        written = [value for value, each in given if each.alias_info is not None and each.alias_info.is_write]
        written = [value for value in written if value is not None]
        blocks = not kwargs.get("non_blocking") and not any(each is True for each in args)
        if written:
            self.current_stream().enqueue(lambda: function(*held_args, **held_kwargs))
            if blocks and any(not isinstance(each, GpuTensor) for each in args if isinstance(each, torch.Tensor)):
                self.current_stream().synchronize()
            return written[0]
        if any(alias is not None for alias in aliases):  # a view
            [memory] = {each.memory for each in tree_flatten((args, kwargs))[0] if isinstance(each, GpuTensor)}
            return self._wrap(function(*held_args, **held_kwargs), memory)
        made = tree_map(_unfilled, function(*_meta(held_args), **_meta(held_kwargs)))
        results = tree_flatten(made)[0]

        def fill() -> None:
            for result, value in zip(results, tree_flatten(function(*held_args, **held_kwargs))[0], strict=True):
                result.copy_(value)

        if function.overloadpacket not in (torch.ops.aten.empty_like, torch.ops.aten.new_empty):
            self.current_stream().enqueue(fill)
        return self._wrap(made)

    def _wrap(self, tree: Any, memory: Memory | None = None) -> Any:
        return tree_map(lambda each: GpuTensor(each, self, memory) if isinstance(each, torch.Tensor) else each, tree)


def _meta(tree: Any) -> Any:
    """For an operator's shapes: what tensors hold may not be there yet."""

    def there(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return each.to("meta")
        return torch.device("meta") if isinstance(each, torch.device) else each

    return tree_map(there, tree)


def _unfilled(each: Any) -> Any:
    if not isinstance(each, torch.Tensor):
        return each
    return _garbage(torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cpu"))


def _garbage(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(torch.nan if tensor.is_floating_point() else 113)


class Future:
    """torch.futures.Future, of Python values."""

    def __init__(self, model: GpuModel, has_device: bool):
        self._model, self._has_device = model, has_device
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._event: Event | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def set_result(self, value: Any, error: Exception | None = None) -> None:
        self._value, self._error = value, error
        if self._has_device and any(isinstance(each, GpuTensor) for each in tree_flatten(value)[0]):
            self._event = self._model.current_stream().record_event()
        with self._lock:
            self._ended.set()
        for callback in self._callbacks:
            callback()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        child = Future(self._model, self._has_device)

        def run() -> None:
            with self._model.stream(Stream(self._model)):
                self._order()
                try:
                    child.set_result(callback(self))
                except Exception as error:
                    child.set_result(None, error)

        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(run)
                return child
        run()
        return child

    def value(self) -> Any:
        return self._value

    def wait(self) -> Any:
        assert self._ended.wait(60), "nobody completed the future"
        self._order()
        if self._error is not None:
            raise RuntimeError(f"{type(self._error).__name__}: {self._error}")
        return self._value

    def _order(self) -> None:
        if self._event is not None:
            self._model.current_stream().wait_event(self._event)
