"""A future of torch that another thread completes: the one way in which results of ours become ready for those who
chain on a future in place of waiting for a Work, as DDP does.

Two rules of torch's C++ futures stand behind it (ATen/core/ivalue_inl.h):

1. A future made for devices records an event on their current streams, for the devices of the tensors *in its value*;
   who waits for it, or chains on it, comes after these events. A future of None orders nothing. So the value is what
   was computed, and whoever completes the future does so with the streams current that computed it.
2. Only an exception inside a `then` becomes an error that C++ sees; `Future.set_exception` is a notion of Python's.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

Value = TypeVar("Value")


class Promise(Generic[Value]):
    """`future`, until `complete` is called, once, with these tensors in its value."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._given: torch.futures.Future[Value] = torch.futures.Future(devices=sorted(devices, key=str))
        self._error: BaseException | None = None
        self.future: torch.futures.Future[Value] = self._given.then(self._outcome)

    def complete(self, value: Value, error: BaseException | None = None) -> None:
        """Runs what was chained on the future, on this thread."""
        self._error = error
        self._given.set_result(value)

    def _outcome(self, given: torch.futures.Future[Value]) -> Value:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return given.value()
