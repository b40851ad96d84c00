"""Tensors that autograd saves for the backward pass: selection for compression, deduplication by storage, and restoring
of views. Bounds come from `bounds.py`, the codecs from `codecs.py`, and their execution from `side_stream.py`."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from host_agent.memory.bounds import START, Fixed, Key, Measured
from host_agent.memory.codecs import FLOATS, Codec, CompressedTensor, Compression, narrowed
from host_agent.memory.operators import PLAIN, Operators, Rule
from host_agent.memory.outliers import MAX_NEAR, NEAR, WithOutliers, split_near, split_outliers
from host_agent.memory.parts import parts_of
from host_agent.memory.side_stream import SideStream, Task, at_once

WHOLE_NUMBERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    """Return the tensor if it has this version, else raise RuntimeError: torch itself does not check versions of
    tensors saved with hooks."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{tensor.dtype} {tuple(tensor.shape)} is at version {tensor._version}; expected version {version}"
        )
    return tensor


class RawTensor:
    """A saved tensor that is not compressed."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor, self._version = tensor, tensor._version

    def tensor(self) -> torch.Tensor:
        return unchanged(self._tensor, self._version)


@dataclass(frozen=True)
class WeightCast:
    """Autocast's conversion of a weight, which stays in memory anyway, so that the conversion is repeated."""

    weight: torch.Tensor
    version: int
    dtype: torch.dtype
    nbytes = 0

    def restore(self) -> torch.Tensor:
        return unchanged(self.weight, self.version).to(self.dtype)

    def tensors(self) -> list[torch.Tensor]:
        return []


class SharedVector:
    """One compressed vector and its users in the graph. A restored vector is kept until the last user has read it: an
    activation function's output is the next layer's input. `compressed` is None while a side stream works on it, and if
    it stays uncompressed."""

    def __init__(self, key: Key):
        self.key = key
        self.compressed: CompressedTensor | None = None
        self.task: Task | None = None
        self.raw: RawTensor | None = None
        self.users = 0
        self._waiting = 0
        self._restored: torch.Tensor | None = None

    def restore(self) -> torch.Tensor:
        vector = self._restored
        if vector is None:
            compressed = self.compressed if self.task is None else self.task.result()
            if compressed is None:
                assert self.raw is not None
                return self.raw.tensor()
            vector, self._waiting = compressed.restore(), self.users
        self._waiting -= 1
        self._restored = vector if self._waiting > 0 else None
        return vector


class View:
    """A saved tensor: a view of the vector restored by `shared`. `is_dense`: whether its elements are in memory order;
    otherwise they are in index order. `sum_dim`: dimension whose sums are restored to 1, if any."""

    def __init__(self, shared: SharedVector, tensor: torch.Tensor, offset: int, is_dense: bool, sum_dim: int | None):
        self._shared, self._offset, self._is_dense, self._sum_dim = shared, offset, is_dense, sum_dim
        self._size, self._stride = tensor.size(), tensor.stride()
        shared.users += 1

    def tensor(self) -> torch.Tensor:
        """The tensor with its original size and strides."""
        vector = self._shared.restore()
        if self._is_dense:
            tensor = vector.as_strided(self._size, self._stride, self._offset)
        else:
            tensor = torch.empty_strided(self._size, self._stride, dtype=vector.dtype, device=vector.device)
            tensor.copy_(vector.view(self._size))
        if self._sum_dim is not None and self._shared.raw is None:
            tensor = tensor / tensor.sum(self._sum_dim, keepdim=True)
        return tensor


class Counters:
    """Totals over all saved tensors: bytes before and after, of those compressed and of those not compressed, excluding
    weights and a model's inputs, which stay in memory anyway. Seconds of compression and restoration."""

    def __init__(self) -> None:
        self.tensors = self.bytes = self.compressed_bytes = self.left_bytes = 0
        self.compress_s = self.restore_s = 0.0


def ratio(counters: Mapping[str, float]) -> float:
    """All bytes before, over those after; infinite if nothing stays on the device."""
    before, after = (counters[name] + counters["left_bytes"] for name in ("bytes", "compressed_bytes"))
    return before / after if after else math.inf if before else 1.0


class SavedTensors:
    """The pair of hooks for `torch.autograd.graph.saved_tensors_hooks`.

    `anyway`: `_cdata` of storages that stay in memory anyway. `weights`: of the current layer, which autocast may
    convert. `operators`: tells what saves a tensor, for codecs that change values.
    """

    def __init__(self, codec: Codec, least_bytes: int, bounds: Fixed | Measured):
        self._codec, self._least_bytes, self._bounds = codec, least_bytes, bounds
        self.operators = Operators()
        self.anyway: set[int] = set()
        self.weights: list[nn.Parameter] = []
        self._counters = Counters()
        self._sides: dict[torch.device, SideStream] = {}
        self._seen: dict[int, tuple[StorageWeakRef, dict[Any, SharedVector | None]]] = {}

    def forget(self) -> None:
        """End of a forward pass: no more views of its storages will be saved."""
        self._seen.clear()
        self.anyway.clear()
        self.weights = []

    def counters(self) -> Counters:
        """Totals so far; waits for compressions in progress."""
        for side in self._sides.values():
            side.finish()
        return self._counters

    def pack(self, tensor: torch.Tensor) -> View | RawTensor:
        """Hook for saving: returns a View, or the tensor uncompressed."""
        if not is_plain(tensor):
            return RawTensor(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata in self.anyway:
            return RawTensor(tensor)
        # The weak reference keeps the address from being reused by another storage while this entry exists.
        _, views = self._seen.setdefault(storage._cdata, (StorageWeakRef(storage), {}))
        is_whole = tensor.numel() * tensor.element_size() >= storage.nbytes()
        is_lossy = self._codec.floats_only and tensor.dtype in FLOATS
        rule = self.operators.rule(tensor) if is_lossy else Rule.LINEAR
        state = (tensor.dtype, tensor._version)
        part = (tensor.storage_offset(), tensor.size(), tensor.stride())
        for stricter in rule.stricter():
            if not is_whole and views.get((*state, stricter, ())) is not None:
                is_whole = True  # part of a storage that is compressed as a whole
            if (*state, stricter, () if is_whole else part) in views:
                rule = stricter
                break
        key = (*state, rule, () if is_whole else part)
        is_dense = is_whole or fills_its_memory(tensor)
        if key not in views:
            with torch.no_grad():
                width = self.operators.width(rule, tensor)
                views[key] = self._compressed(_vector(tensor.detach(), storage, is_whole, is_dense), rule, width)
        elif (known := views[key]) is not None:
            self._bounds.also(known.key)
        shared = views[key]
        if shared is None:
            return RawTensor(tensor)
        sum_dim = self.operators.sums_to_one() if is_lossy else None
        return View(shared, tensor, int(tensor.storage_offset()) if is_whole else 0, is_dense, sum_dim)

    def unpack(self, packed: View | RawTensor) -> torch.Tensor:
        """Hook for the backward pass."""
        if isinstance(packed, RawTensor):
            return packed.tensor()
        started = time.perf_counter()
        with torch.no_grad():
            tensor = packed.tensor()
        self._counters.restore_s += time.perf_counter() - started
        return tensor

    def _compressed(self, vector: torch.Tensor, rule: Rule, width: torch.Tensor | None) -> SharedVector | None:
        """Compress a vector; None if it stays uncompressed. `width`: see `Operators.width`."""
        counters, size = self._counters, vector.nbytes
        is_cast = rule is Rule.EXACT and any(_may_be_cast(weight, vector) for weight in self.weights)
        is_left = rule is Rule.EXACT and not is_cast
        if size < self._least_bytes or vector.dtype not in FLOATS + WHOLE_NUMBERS or is_left:
            counters.left_bytes += size
            return None
        started = time.perf_counter()
        is_bounded = self._codec.is_bounded and vector.dtype in FLOATS
        shared = SharedVector(self._bounds.claim() if is_bounded else ("", 0))
        compression = self._compression(vector, shared.key if is_bounded else None, rule, width)
        if vector.is_cuda:
            shared.raw = RawTensor(vector)

            def done(compressed: CompressedTensor | None) -> None:
                if self._count(compressed, size):
                    shared.raw = None

            shared.task = self._side(vector.device).start(compression, vector, done)
        else:
            shared.compressed = at_once(compression)
            self._count(shared.compressed, size)
        counters.compress_s += time.perf_counter() - started
        return shared if vector.is_cuda or shared.compressed is not None else None

    def _compression(
        self, vector: torch.Tensor, key: Key | None, rule: Rule, width: torch.Tensor | None
    ) -> Compression:
        """Coroutine that compresses a vector. `key`: that of its bound, if it needs one."""
        for weight in self.weights:
            if _may_be_cast(weight, vector):
                flat = weight.detach().as_strided((weight.numel(),), (1,))
                pairs = zip(parts_of(vector), parts_of(flat), strict=True)
                (differs,) = yield torch.stack([(a != b.to(a.dtype)).any() for a, b in pairs]).any().view(1)
                if not differs:
                    return WeightCast(flat, flat._version, vector.dtype)
        if rule is Rule.EXACT:
            return None
        if not self._codec.floats_only:
            compressed = yield from self._codec.compress(vector, 0.0)
        elif vector.dtype in FLOATS:
            compressed = yield from self._lossy(vector, key, rule, width)
        else:
            compressed = yield from narrowed(vector)
        return compressed if compressed is not None and compressed.nbytes < vector.nbytes else None

    def _lossy(self, vector: torch.Tensor, key: Key | None, rule: Rule, width: torch.Tensor | None) -> Compression:
        """Coroutine that compresses a vector of floats with as large an error as its rule allows."""
        codec = self._codec
        rest, outliers = yield from split_outliers(vector)
        limit = math.inf
        if width is not None:
            (limit,) = yield width
            if not limit > 0:
                return None
        bound = 0.0
        if key is not None:
            bound = yield from self._bounds.of(rest, key, limit, START if rule is Rule.PRECISE else math.inf)
        elif width is not None:
            (largest,) = yield torch.stack([part.abs().amax().float() for part in parts_of(rest)]).amax().view(1)
            if largest * codec.error > limit / NEAR:
                return None
        near = None
        if rule is Rule.PRECISE:
            reach = codec.near if key is None else (NEAR * bound, NEAR * bound)
            if reach is None:
                return None
            rest, near = yield from split_near(rest, *reach)
            if near is not None and near.count > MAX_NEAR * vector.numel():
                return None
        compressed = yield from codec.compress(rest, bound)
        for apart in (near, outliers):
            if compressed is not None and apart is not None:
                compressed = WithOutliers(compressed, apart)
        return compressed

    def _count(self, compressed: CompressedTensor | None, size: int) -> bool:
        """Update the totals; returns whether the vector is replaced by its compressed form."""
        counters = self._counters
        if compressed is None:
            counters.left_bytes += size
        elif not isinstance(compressed, WeightCast):
            counters.tensors += 1
            counters.bytes += size
            counters.compressed_bytes += compressed.nbytes
        return compressed is not None

    def _side(self, device: torch.device) -> SideStream:
        if device not in self._sides:
            self._sides[device] = SideStream(device)
        return self._sides[device]


def _may_be_cast(weight: nn.Parameter, vector: torch.Tensor) -> bool:
    return (
        weight.numel() == vector.numel()
        and weight.dtype == torch.float32 != vector.dtype
        and vector.dtype in FLOATS
        and weight.device == vector.device
        and fills_its_memory(weight)
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense and its memory has its values: not a subclass, not wrapped by `torch.func`, not negated
    or conjugated lazily, and no forward-mode differentiation is active."""
    return (
        type(tensor) in PLAIN
        and has_storage(tensor)
        and not (tensor._is_zerotensor() or tensor.is_neg() or tensor.is_conj() or tensor.is_quantized)
        and forward_ad._current_level < 0
    )


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor is strided in device memory, with one storage for the tensor and its views."""
    return (
        tensor.device.type in ("cpu", "cuda")
        and tensor.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are contiguous in memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _vector(tensor: torch.Tensor, storage: torch.UntypedStorage, is_whole: bool, is_dense: bool) -> torch.Tensor:
    """Contiguous one-dimensional vector of the storage, or of the tensor's elements; shares the tensor's version unless
    it is a copy."""
    if is_whole:
        return tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
    if is_dense:
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)
