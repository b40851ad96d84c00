"""Capture of torch's thread-local modes, for code that runs later on another thread on behalf of the caller. Gloo's
Work objects do the same in C++ (`at::ThreadLocalState`)."""

import contextlib
from collections.abc import Iterator

import torch

_AUTOCAST = ("cpu", "cuda")


class CallersModes:
    """Modes of the thread that creates this object: inference mode, grad mode, autocast, and the current CUDA stream.
    (Deterministic algorithms are a process-wide setting.)"""

    def __init__(self) -> None:
        self._inference, self._grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self._autocast = [
            (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
            for device in _AUTOCAST
            if torch.is_autocast_enabled(device)
        ]
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Context in which the current thread has these modes."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for device, dtype, cache in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=cache))
            if self._stream is not None:
                stack.enter_context(torch.cuda.stream(self._stream))
            yield
