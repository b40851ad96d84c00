"""torch futures that are completed by another thread, for code that chains on a future instead of waiting for a Work,
such as DDP.

The implementation follows from two rules of torch's C++ futures (ATen/core/ivalue_inl.h):

1. A future created for devices records an event on their current streams, for the devices of the tensors *in its
   value*; code that waits for it, or chains on it, runs after these events. A future of None orders nothing. So the
   value is the result, and the future is completed while the streams that computed the result are current.
2. Only an exception raised in a `then` callback becomes an error in C++; `Future.set_exception` only affects Python.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

Value = TypeVar("Value")


class Promise(Generic[Value]):
    """`future`, which is pending until `complete` is called, once; `tensors` are those in its value."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._given: torch.futures.Future[Value] = torch.futures.Future(devices=sorted(devices, key=str))
        self._error: BaseException | None = None
        self.future: torch.futures.Future[Value] = self._given.then(self._outcome)

    def complete(self, value: Value, error: BaseException | None = None) -> None:
        """Complete the future; runs its callbacks on this thread."""
        self._error = error
        self._given.set_result(value)

    def _outcome(self, given: torch.futures.Future[Value]) -> Value:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return given.value()
