"""The codec `host`: vectors are moved off the device until the backward pass, losslessly. Vectors on a GPU are copied
to pinned memory and back on the stream that offloaded them, ahead of their use; those on a CPU are written to a file.
"""

from __future__ import annotations

import tempfile
import weakref
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import numpy as np
import torch

AHEAD_BYTES = 256 << 20
"""Maximum bytes of vectors being copied back, or copied back and not used yet, excluding the one in use."""


class OnHost:
    """A copy of a GPU's vector in pinned memory. `before`: the vector offloaded before it, which the backward pass
    usually needs next."""

    nbytes = 0

    def __init__(self, pinned: torch.Tensor, vector: torch.Tensor, before: OnHost | None):
        self._stream = torch.cuda.current_stream(vector.device)
        self._pinned, self._device = pinned, vector.device
        self._before = weakref.ref(before) if before is not None else lambda: None
        self._coming: tuple[torch.Tensor, torch.cuda.Event] | None = None
        self._was_restored = False
        pinned.copy_(vector, non_blocking=True)

    def restore(self) -> torch.Tensor:
        self._fetch()
        assert self._coming is not None
        vector, landed = self._coming
        self._coming, self._was_restored = None, True
        torch.cuda.current_stream(self._device).wait_event(landed)
        budget, before = AHEAD_BYTES, self._before()
        while before is not None and budget > 0:
            if not before._was_restored:
                before._fetch()
                budget -= before._pinned.nbytes
            before = before._before()
        return vector

    def tensors(self) -> list[torch.Tensor]:
        return []

    def _fetch(self) -> None:
        """Start the copy back to the device. Its memory is allocated on the caller's stream, so that it can be reused
        as soon as that stream is done."""
        if self._coming is not None:
            return
        vector = torch.empty(self._pinned.shape, dtype=self._pinned.dtype, device=self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            vector.copy_(self._pinned, non_blocking=True)
            landed = torch.cuda.Event()
            landed.record(self._stream)
        vector.record_stream(self._stream)
        self._coming = vector, landed


class InFile:
    """A vector on the CPU, stored in the file of `Host`."""

    nbytes = 0

    def __init__(self, host: Host, vector: torch.Tensor):
        self._dtype = vector.dtype
        self._data = host.write(vector.view(torch.uint8).numpy())
        weakref.finalize(self, host.release)

    def restore(self) -> torch.Tensor:
        vector = torch.empty(self._data.size, dtype=torch.uint8)
        vector.numpy()[:] = self._data
        return vector.view(self._dtype)

    def tensors(self) -> list[torch.Tensor]:
        return []


class Host:
    """Offloading: vectors on a GPU to reused pinned memory; those on a CPU to a memory-mapped file in `folder`
    (default: the folder for temporary files), which has no name and so disappears with the process. Lossless."""

    is_bounded = floats_only = False
    error = 0.0
    near: tuple[float, float] | None = None

    def __init__(self, folder: str | None = None):
        self._folder = folder
        self._file: Any = None
        self._end = self._users = 0
        self._pinned: defaultdict[tuple[torch.device, int], list[torch.Tensor]] = defaultdict(list)
        self._last: weakref.ref[OnHost] | None = None

    def compress(self, vector: torch.Tensor, bound: float) -> Generator[torch.Tensor, list[Any], OnHost | InFile]:
        """Codec coroutine, which needs no numbers."""
        if not vector.is_cuda:
            return InFile(self, vector)
        size = _rounded(vector.nbytes)
        free = self._pinned[vector.device, size]
        buffer = free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=True)
        before = self._last() if self._last is not None else None
        kept = OnHost(buffer[: vector.nbytes].view(vector.dtype), vector, before)
        self._last = weakref.ref(kept)
        # The next copy into it runs after the last one out of it: all copies of a device are on one stream.
        weakref.finalize(kept, free.append, buffer)
        return kept
        yield

    def write(self, data: np.ndarray) -> np.ndarray:
        """Append bytes to the file and return them memory-mapped."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._users += 1
        self._file.seek(self._end)
        data.tofile(self._file)
        mapped = np.memmap(self._file, np.uint8, "r", offset=self._end, shape=data.shape)
        self._end += -(-data.size // 4096) * 4096
        return mapped

    def release(self) -> None:
        """Release one vector; the file is truncated when none is left."""
        self._users -= 1
        if not self._users:
            self._end = 0
            self._file.truncate(0)


def _rounded(size: int) -> int:
    """Round up to one of eight sizes between powers of two, so that tensors of similar size share buffers."""
    step = max(1 << (size.bit_length() - 4), 4096)
    return -(-size // step) * step
