"""Error-bounded encodings of vectors on a CPU, in chunks that are distributed over torch's threads: `levels`, and SZx
with zeros stored separately. The loops are in `levels.py` and `switchml.codecs.szx`; both run without the GIL."""

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from host_agent.memory import levels
from host_agent.memory.parts import StoredVector
from switchml.codecs.szx import Szx
from switchml.runtime.jit import compile_once, kernel

CHUNK = 1 << 18
"""Number of elements that a thread compresses at a time: 1 MB, which stays in its core's cache."""


class Coder(Protocol):
    """An encoding of chunks. `encode`: converts a part of x, float32[n], to uint8 and further data that `decode` needs
    to fill float32[n] so that no element is off by more than `bound`, and zeros are zeros."""

    def encode(self, x: np.ndarray, bound: float) -> tuple[np.ndarray, Any]: ...
    def decode(self, body: np.ndarray, extra: Any, bound: float, x: np.ndarray) -> None: ...


@dataclass(frozen=True)
class Stream(StoredVector):
    """A vector of `count` floats on the CPU, encoded by `coder`."""

    coder: Coder
    bound: float
    count: int
    dtype: torch.dtype
    body: torch.Tensor
    ends: list[int]
    extras: list[Any]

    def restore(self) -> torch.Tensor:
        vector = torch.empty(self.count, dtype=self.dtype)
        body = self.body.numpy()

        def decode(chunk: int) -> None:
            part = body[self.ends[chunk - 1] if chunk else 0 : self.ends[chunk]]
            there = vector[chunk * CHUNK : (chunk + 1) * CHUNK]
            x = there.numpy() if self.dtype == torch.float32 else np.empty(there.numel(), np.float32)
            self.coder.decode(part, self.extras[chunk], self.bound, x)
            if self.dtype != torch.float32:
                there.copy_(torch.from_numpy(x))

        _each(decode, range(len(self.ends)))
        return vector

    def tensors(self) -> list[torch.Tensor]:
        return [self.body]


def write(coder: Coder, vector: torch.Tensor, bound: float) -> Stream:
    """Encode a contiguous vector of floats on the CPU."""
    parts = _each(lambda chunk: coder.encode(chunk.float().numpy(), bound), vector.split(CHUNK))
    ends = np.cumsum([part.size for part, _ in parts]).tolist()
    body = torch.empty(ends[-1], dtype=torch.uint8)
    np.concatenate([part for part, _ in parts], out=body.numpy())
    return Stream(coder, bound, vector.numel(), vector.dtype, body, ends, [extra for _, extra in parts])


def _each(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Apply a function to items with as many threads as torch uses for its operators; returns the results."""
    items = list(items)
    threads = min(torch.get_num_threads(), len(items))
    if threads < 2:
        return [function(item) for item in items]
    return list(_threads(threads).map(function, items))


@functools.lru_cache(1)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="activations")


class Levels:
    """Integers of quantization steps, in as few bits as each block of 128 needs (`levels.py`). Chunks of only 0 and one
    magnitude, such as dropout's masks, are exact: all their errors would be equal, and not average out."""

    def __init__(self) -> None:
        x, body = np.empty(1, np.float32), np.empty(1, np.uint8)
        compile_once(levels.encode, x, 1.0, body)
        compile_once(levels.decode, body, 1.0, x)

    def encode(self, x: np.ndarray, bound: float) -> tuple[np.ndarray, Any]:
        magnitude = _only_magnitude(x)
        out = np.empty(levels.most_bytes(x.size), np.uint8)
        return out[: levels.encode(x, magnitude or bound, out)].copy(), magnitude

    def decode(self, body: np.ndarray, extra: Any, bound: float, x: np.ndarray) -> None:
        levels.decode(body, extra or bound, x)
        if extra:
            np.multiply(np.sign(x), extra, out=x)


def _only_magnitude(x: np.ndarray) -> float | None:
    """Magnitude of all nonzero elements if they have only one, else None."""
    for some in (x[:256], x):
        magnitudes = np.abs(some)
        magnitude = magnitudes.max()
        if not 0 < magnitude < np.inf or not ((magnitudes == magnitude) | (magnitudes == 0)).all():
            return None
    return float(magnitude)


class SzxOfOthers:
    """A bit per element that tells whether it is nonzero, if any is zero, and the SZx stream of the others.

    SZx by itself would change zeros by up to the bound. Restored elements are at least the lowest one encoded, so that
    positive ones stay positive, as a ReLU's derivative requires.
    """

    def encode(self, x: np.ndarray, bound: float) -> tuple[np.ndarray, Any]:
        others = np.empty(x.size, np.float32)
        bitmap = np.zeros((x.size + 7) // 8, np.uint8)
        count = _without_zeros(x, bitmap, others)
        if count == x.size:
            bitmap = bitmap[:0]
        others = others[:count]
        body = Szx(bound=bound, mode="abs").compress(None, others).body
        least = others.min() if count else 0.0
        return np.concatenate([bitmap, body]), (count, np.float32(least))

    def decode(self, body: np.ndarray, extra: Any, bound: float, x: np.ndarray) -> None:
        count, least = extra
        size = (x.size + 7) // 8 if count < x.size else 0
        others = Szx(bound=bound, mode="abs").decode(body[size:], count)
        if not np.isnan(least):
            np.maximum(others, least, out=others)
        if size:
            _with_zeros(others, body[:size], x)
        else:
            x[:] = others


@kernel
def _without_zeros(x: np.ndarray, bitmap: np.ndarray, others: np.ndarray) -> int:
    """Write the nonzero elements of x to `others`, and their positions to the bitmap; returns their number."""
    count = 0
    for i in range(x.size):
        some = x[i] != 0
        others[count] = x[i]
        bitmap[i >> 3] |= np.uint8(some) << (i & 7)
        count += some
    return count


@kernel
def _with_zeros(others: np.ndarray, bitmap: np.ndarray, x: np.ndarray) -> None:
    """Inverse of `_without_zeros`."""
    at = 0
    for i in range(x.size):
        some = (bitmap[i >> 3] >> (i & 7)) & 1
        x[i] = others[at] if some else np.float32(0)
        at += some
