"""Tensors that autograd saves for the backward pass: which are compressed, each storage once, and how views of it come
back. The bound of each comes from `bounds.py`, the compressed form from `codecs.py`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from host_agent.memory.bounds import Fixed, Key, Measured
from host_agent.memory.codecs import FLOATS, Codec, Kept, narrowed

WHOLE_NUMBERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Shared:
    """One compressed vector and its users in the graph. What was restored for one stays until the last has had it: an
    activation function's output is the next layer's input."""

    def __init__(self, kept: Kept, key: Key):
        self.kept, self.key = kept, key
        self.users = 0
        self._waiting = 0
        self._restored: torch.Tensor | None = None

    def restore(self) -> torch.Tensor:
        vector = self._restored
        if vector is None:
            vector, self._waiting = self.kept.restore(), self.users
        self._waiting -= 1
        self._restored = vector if self._waiting > 0 else None
        return vector


class View:
    """A saved tensor: a view of what `shared` restores. `is_dense`: of its elements in the order of memory; else they
    are in the order of indices."""

    def __init__(self, shared: Shared, tensor: torch.Tensor, offset: int, is_dense: bool):
        self._shared, self._offset, self._is_dense = shared, offset, is_dense
        self._size, self._stride = tensor.size(), tensor.stride()
        shared.users += 1

    def tensor(self) -> torch.Tensor:
        """With the size and strides that it had."""
        vector = self._shared.restore()
        if self._is_dense:
            return vector.as_strided(self._size, self._stride, self._offset)
        tensor = torch.empty_strided(self._size, self._stride, dtype=vector.dtype, device=vector.device)
        return tensor.copy_(vector.view(self._size))


class Left:
    """A tensor that stays as it is, and its version: torch itself does not check that where there are hooks."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor, self._version = tensor, tensor._version

    def tensor(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self._tensor.dtype} {tuple(self._tensor.shape)} is at version {self._tensor._version}; expected "
                f"version {self._version}"
            )
        return self._tensor


class Counters:
    """Of all tensors that were saved: bytes before and after, of those compressed and of those left as they were;
    weights and a model's inputs, which are there anyway, are not among them. Seconds of compressing and restoring."""

    def __init__(self) -> None:
        self.tensors = self.bytes = self.compressed_bytes = self.left_bytes = 0
        self.compress_s = self.restore_s = 0.0


def ratio(counters: Mapping[str, float]) -> float:
    """All bytes before, over those after; infinite where nothing stays on the device."""
    before, after = (counters[name] + counters["left_bytes"] for name in ("bytes", "compressed_bytes"))
    return before / after if after else math.inf if before else 1.0


class SavedTensors:
    """The pair of hooks for `torch.autograd.graph.saved_tensors_hooks`.

    `anyway`: `_cdata` of storages that are in memory anyway.
    """

    def __init__(self, codec: Codec, least_bytes: int, bounds: Fixed | Measured):
        self._codec, self._least_bytes, self._bounds = codec, least_bytes, bounds
        self.anyway: set[int] = set()
        self.counters = Counters()
        self._seen: dict[int, tuple[StorageWeakRef, dict[Any, Shared | None]]] = {}

    def forget(self) -> None:
        """A forward pass has ended: no more views of its storages come."""
        self._seen.clear()
        self.anyway.clear()

    def pack(self, tensor: torch.Tensor) -> View | Left:
        """The hook for saving: a View, or the tensor as it is."""
        if tensor.layout != torch.strided or tensor.dtype not in FLOATS + WHOLE_NUMBERS:
            return Left(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata in self.anyway:
            return Left(tensor)
        # The reference keeps the address from being taken by another storage while this one's entry exists.
        _, views = self._seen.setdefault(storage._cdata, (StorageWeakRef(storage), {}))
        is_whole = tensor.numel() * tensor.element_size() >= storage.nbytes()
        part = () if is_whole else (tensor.storage_offset(), tensor.size(), tensor.stride())
        key = (tensor.dtype, tensor._version, part)
        is_dense = is_whole or fills_its_memory(tensor)
        if key not in views:
            with torch.no_grad():
                views[key] = self._compressed(_vector(tensor.detach(), is_whole, is_dense))
        elif (known := views[key]) is not None:
            self._bounds.also(known.key)
        shared = views[key]
        if shared is None:
            return Left(tensor)
        return View(shared, tensor, int(tensor.storage_offset()) if is_whole else 0, is_dense)

    def unpack(self, packed: View | Left) -> torch.Tensor:
        """The hook for backward."""
        if isinstance(packed, Left):
            return packed.tensor()
        started = time.perf_counter()
        with torch.no_grad():
            tensor = packed.tensor()
        self.counters.restore_s += time.perf_counter() - started
        return tensor

    def _compressed(self, vector: torch.Tensor) -> Shared | None:
        counters, size = self.counters, vector.nbytes
        kept: Kept | None = None
        key: Key = ("", 0)
        if size >= self._least_bytes:
            started = time.perf_counter()
            if vector.dtype in FLOATS or not self._codec.floats_only:
                bound, key = self._bounds.of(vector) if self._codec.is_bounded else (0.0, key)
                kept = self._codec.keep(vector, bound)
            else:
                kept = narrowed(vector)
            counters.compress_s += time.perf_counter() - started
        if kept is None or kept.nbytes >= size:
            counters.left_bytes += size
            return None
        counters.tensors += 1
        counters.bytes += size
        counters.compressed_bytes += kept.nbytes
        return Shared(kept, key)


def fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether its elements are neighbours in memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _vector(tensor: torch.Tensor, is_whole: bool, is_dense: bool) -> torch.Tensor:
    """Contiguous, of one dimension: the storage, or the tensor's elements."""
    if is_whole:
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))
    if is_dense:
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)
