"""A GPU whose tensors have shapes but no values. A dispatch mode intercepts torch's kernels: operators on device
tensors are recorded, and return tensors with the shapes computed by torch's meta kernels; all others run normally.

An operator's result depends only on the shapes, strides and dtypes of its inputs, so it is computed once for each
combination (an `Operator`) and then looked up: some 50 µs per operator, including autograd.

Host tensors are real, so that data and sampling are the script's own, except for large ones created to be filled with
random numbers (weights before they are moved): these have no values either, on "cpu".
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from emulator.peers.script import indices, masks, metas, packed, values
from emulator.peers.script.choices import decompose, is_composite, is_reshaping
from emulator.peers.script.operators import Operator, TensorShape
from emulator.peers.script.shapes import (
    Returns,
    bytes_of,
    changed_by,
    depends_on_values,
    key_of,
    on_host,
    on_meta,
    options_of,
    returns_of,
    shape_of,
    shapes_of,
)
from emulator.peers.script.tensors import DeviceTensor, is_ours, owner
from switchml.errors import EmulationError

aten = torch.ops.aten

_NBYTES = torch.UntypedStorage.nbytes
"""Torch's own, which ignores released memory."""

VALUELESS = 1 << 16
"""Elements from which on floating-point tensors created on the host get no memory."""


if TYPE_CHECKING:
    _Mode = Any  # torch's stubs have other signatures
else:
    _Mode = TorchDispatchMode


_current: list[Device] = []


def current() -> Device:
    """Return the device of this process."""
    return _current[0]


@dataclass
class _ShapeResult:
    """Result of an operator for one combination of input shapes."""

    operator: Operator
    shapes: Any
    """`TensorShape`s in the structure of the result; other values are returned as they are."""
    is_scalar: bool
    """Whether all input and output tensors have one element; then values are computed as well."""
    is_small: bool
    """Whether the result is a new small tensor whose values are computed if those of all inputs are known."""
    changed: tuple[int | str, ...]
    """Indexes or names of arguments that are modified."""


@dataclass
class Hooks:
    """Callbacks of the device. `launch`: an operator is launched, with its arguments; `allocate` and `free`: memory of
    a storage, by number; `read`: the host waits for a value; `share`: a collective uses tensors."""

    launch: Callable[[Operator, list[Any]], None]
    allocate: Callable[[int, int], None]
    free: Callable[[int], None]
    read: Callable[[], None]
    share: Callable[[Sequence[torch.Tensor]], None]


@dataclass(repr=False)
class Device(_Mode):
    """The dispatch mode. `index`: of the device."""

    hooks: Hooks
    index: int = 0
    operators: list[Operator] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.known = values.KnownValues()
        self._device = torch.device("cuda", self.index)
        self._shape_results: dict[Any, _ShapeResult] = {}
        self._returns: dict[Any, list[Returns | None]] = {}
        self._wholes: dict[Any, bool] = {}
        self._storages: dict[int, tuple[int, Any]] = {}
        self._made = 0
        self._emptied: set[int] = set()
        self._lock = threading.RLock()
        _current[:], owner[:] = [self], [self]
        threading.Thread._bootstrap_inner = _with(self, threading.Thread._bootstrap_inner)  # type: ignore[attr-defined]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **(kwargs or {}))  # torch only needs shapes, as DTensor does of whole tensors
        if not all(map(is_ours, types)):
            return NotImplemented
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator, of one thread at a time."""
        with self._lock:
            return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator: emulated if it involves the device, else for real. Without autograd (inference mode) torch
        passes operators that it would otherwise have decomposed."""
        whole = self._wholes.get(func)
        if whole is None:
            whole = self._wholes[func] = is_composite(func)
        if whole:
            with self:
                return decompose(func, args, kwargs)
        if kwargs.get("pin_memory"):  # needs the driver, which does not exist
            kwargs = kwargs | {"pin_memory": False}
        flat, spec = tree_flatten((args, kwargs))
        device = None
        for one in flat:
            if isinstance(one, DeviceTensor) and (device is None or one.device.type == "cuda"):
                device = one.device
        where = kwargs.get("device")
        if where is not None:
            where = torch.device(where)
            if where.type == "meta":
                args, kwargs = tree_unflatten([on_meta(one) for one in flat], spec)
                return func(*args, **kwargs)
            if where.type == "cuda":
                device = self._here(where)
            elif device is not None:
                device = where
        if device is None:
            if func in _FILLED and self._is_large(func, args, kwargs):
                device = torch.device("cpu")
            else:
                return func(*args, **kwargs)
        if func in values.READ:
            return self._read(func, args, kwargs)
        if func is aten.set_.source_Tensor:
            torch._C.TensorBase.data.__set__(*args)  # type: ignore[attr-defined]
            return args[0]
        if func is aten.resize_.default:
            return self._resized(*args, **kwargs)
        rule = values.RULES.get(func)
        if rule is not None:
            with self:
                args, kwargs = rule(args, kwargs, self.known)
            flat, spec = tree_flatten((args, kwargs))
        return self._emulate(func, args, kwargs, flat, spec, device)

    def _here(self, where: torch.device) -> torch.device:
        if where.index not in (None, self.index):
            raise EmulationError(
                f"a tensor on {where}, but several GPUs in one process are not emulated: expected {self._device}, "
                "and a process for each GPU, as torchrun starts"
            )
        return self._device

    def _resized(self, tensor: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
        """Change a tensor's size, within its storage if that is large enough."""
        wanted = torch.empty(size, dtype=tensor.dtype, device="meta")
        if memory_format not in (None, torch.preserve_format):
            wanted = wanted.contiguous(memory_format=memory_format)
        shape = replace(shape_of(wanted), offset=int(tensor.storage_offset()))
        storage = tensor.untyped_storage()
        self.known.forget(storage._cdata)
        fits = (shape.offset + wanted.numel()) * shape.element_bytes <= _NBYTES(storage)
        of_storage = Returns(0, "self", is_same=False) if fits else None
        data = self._one(shape, of_storage, (tensor,), {}, tensor.device)
        torch._C.TensorBase.data.__set__(tensor, data)  # type: ignore[attr-defined]
        return tensor

    def _emulate(self, func: Any, args: Any, kwargs: dict[str, Any], flat: list[Any], spec: Any, device: Any) -> Any:
        selected = self.known.selected(args[values.MASKS[func]]) if func in values.MASKS else None
        of_attention = packed.options_of(self.known, func, args, kwargs)
        lengths = of_attention and of_attention["lengths"]
        key = (func, spec, device.type, _allow_tf32(), selected, lengths, *map(key_of, flat))
        inferred = self._shape_results.get(key)
        is_sized_by_values = torch.Tag.dynamic_output_shape in func.tags or func.name() in metas.OF_PACKAGES
        if is_sized_by_values and self.known.are_known(flat):
            return self._run_on_host(func, flat, spec, device)
        if inferred is None:
            inferred = self._shape_results[key] = self._infer_shapes(func, flat, spec, device, selected)
            inferred.operator.options.update(of_attention or {})
        crosses = inferred.operator.crosses
        if device.type == "cuda" or crosses:
            self.hooks.launch(inferred.operator, flat)
        if crosses and not inferred.operator.options.get("non_blocking"):
            self.hooks.read()
        result = self._shaped(func, inferred.shapes, args, kwargs, device)
        if torch.Tag.inplace_view in func.tags and is_reshaping(func):
            with no_dispatch():  # changes the metadata of the tensor itself
                func(*args, **kwargs)
            return result
        ones = masks.selected_by(self.known, func, args, kwargs)
        if inferred.is_scalar or (inferred.is_small and self.known.are_known(flat)):
            self.known.compute(func, flat, spec, result)
        elif (inferred.is_small and self.known.decide(func, flat, result)) or self.known.count(func, args, result):
            pass
        elif func in values.TRUE:
            self.known.assume(result, True)
        elif func in values.MASKS or func.name() in metas.OF_PACKAGES:
            self.known.assumed_masks += selected is None
            self.hooks.read()  # of the number of elements
        elif func in values.COUNTS:
            self.known.assume_even(result, args[0].numel())
        elif inferred.changed and func not in values.KEPT and not self._compute_in_place(func, flat, spec, inferred):
            self._changed(args, kwargs, inferred.changed)
        self.known.select(result, ones)
        indices.record(self.known, func, args, kwargs, result)
        if func in _COPIES and isinstance(result, DeviceTensor):
            source = args[1] if func is aten.copy_.default else args[0]
            if not isinstance(source, DeviceTensor):
                self.known.copied(result, source)
        if device.type == "cpu" and func is aten._to_copy.default:
            result = self._down(args[0], result)
        if isinstance(result, DeviceTensor) and result.device.type == "cpu" and any(map(_is_of_device, flat)):
            result.untyped_storage().is_of_device = True
        return result

    def _run_on_host(self, func: Any, flat: list[Any], spec: Any, device: torch.device) -> Any:
        """Run an operator whose output size depends on known values: the host waits for it."""
        args, kwargs = tree_unflatten(
            [self.known.real(one) if isinstance(one, torch.Tensor) else one for one in flat], spec
        )
        with torch.utils._python_dispatch._disable_current_modes():
            given = func(*args, **kwargs)
        inferred = self._shape_result(
            func, [one for one in flat if isinstance(one, torch.Tensor)], flat, spec, shapes_of(given), device
        )
        if device.type == "cuda":
            self.hooks.launch(inferred.operator, flat)
            self.hooks.read()
        result = self._shaped(func, inferred.shapes, args, kwargs, device)
        for one, host_values in zip(tree_flatten(result)[0], tree_flatten(given)[0], strict=True):
            if isinstance(one, torch.Tensor):
                self.known.store(one, host_values)
        return result

    def _compute_in_place(self, func: Any, flat: list[Any], spec: Any, inferred: _ShapeResult) -> bool:
        """Compute an in-place operator of the device whose inputs are known; return False if it isn't one."""
        if not isinstance(flat[0], DeviceTensor):
            return False
        return self.known.compute_in_place(func, flat, spec, inferred.changed) or self.known.decide(func, flat, flat[0])

    def _changed(self, args: Any, kwargs: dict[str, Any], changed: tuple[int | str, ...]) -> None:
        """Mark the outputs of an operator as unknown; a host tensor that it copied to gets plausible values."""
        for place in changed:
            for one in tree_flatten(args[place] if isinstance(place, int) else kwargs[place])[0]:
                if isinstance(one, DeviceTensor):
                    self.known.forget(one.untyped_storage()._cdata)
                elif isinstance(one, torch.Tensor) and not self._is_host_copy(one, args):
                    self.known.assumed_reads += 1
                    one.fill_(values.plausible(one.dtype))

    def _is_host_copy(self, here: torch.Tensor, args: Any) -> bool:
        """Return whether a device tensor copied to the host originally came from there, and restore its values."""
        source = args[1] if len(args) > 1 else None
        copy = self.known.copy_of(source) if isinstance(source, DeviceTensor) else None
        if copy is not None:
            here.copy_(copy)
        return copy is not None

    def _infer_shapes(
        self, func: Any, flat: list[Any], spec: Any, device: torch.device, selected: int | None
    ) -> _ShapeResult:
        tensors = [one for one in flat if isinstance(one, torch.Tensor)]
        plain = [on_meta(one) for one in flat]
        args, kwargs = tree_unflatten(plain, spec)
        if "device" in kwargs:
            kwargs["device"] = "meta"
        if selected is not None:
            kwargs["selected"] = selected
        rule = metas.SHAPES.get(func) or metas.OF_PACKAGES.get(func.name(), func)
        try:
            with torch.utils._python_dispatch._disable_current_modes():
                given = rule(*args, **kwargs)
        except (NotImplementedError, torch._subclasses.fake_tensor.DynamicOutputShapeException) as error:
            if not func._schema.returns:
                return self._shape_result(func, tensors, flat, spec, None, device)
            given = on_host(func, plain, spec, error)
        except RuntimeError as error:
            if "data-dependent shape" in str(error):  # of a package's operator, which torch can't mark as such
                raise depends_on_values(func) from None
            raise
        if any(isinstance(one, torch.Tensor) and one.layout is not torch.strided for one in tree_flatten(given)[0]):
            raise EmulationError(f"{func} can't be emulated: its result is a sparse tensor; expected dense ones")
        return self._shape_result(func, tensors, flat, spec, shapes_of(given), device)

    def _shape_result(
        self, func: Any, tensors: list[torch.Tensor], flat: list[Any], spec: Any, shapes: Any, device: torch.device
    ) -> _ShapeResult:
        out = [one for one in tree_flatten(shapes)[0] if isinstance(one, TensorShape)]
        changed = changed_by(func, flat, spec)
        operator = Operator(
            len(self.operators),
            str(func),
            tuple(map(shape_of, tensors)),
            tuple(out),
            options_of(func, flat, spec),
            _allow_tf32(),
            bytes_of(list(changed.values()) or shapes),
            not (func.is_view or func in _WITHOUT_KERNEL),
            func in _COPIES and len({device.type, *(one.device.type for one in tensors)}) > 1,
        )
        self.operators.append(operator)
        is_scalar = len(out) == 1 and all(one.elements == 1 for one in (*operator.inputs, *out))
        has_values = operator.has_kernel or "empty" in operator.base
        is_small = isinstance(shapes, TensorShape) and out[0].elements <= values.COPIED and has_values
        return _ShapeResult(operator, shapes, is_scalar, is_small and not changed, tuple(changed))

    def _shaped(self, func: Any, shapes: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
        """Return the result: new tensors, views of arguments or arguments."""
        returns = self._returns.get(func)
        if returns is None:
            returns = self._returns[func] = returns_of(func)
        if isinstance(shapes, (tuple, list)):
            return type(shapes)(
                self._one(shape, returns[min(place, len(returns) - 1)], args, kwargs, device, place)
                for place, shape in enumerate(shapes)
            )
        return self._one(shapes, returns[0] if returns else None, args, kwargs, device)

    def _one(
        self, shape: Any, relation: Returns | None, args: Any, kwargs: Any, device: torch.device, place: int = 0
    ) -> Any:
        if isinstance(shape, (tuple, list)):
            return type(shape)(self._one(one, relation, args, kwargs, device, at) for at, one in enumerate(shape))
        if not isinstance(shape, TensorShape):
            return shape
        base = None
        if relation is not None:
            base = args[relation.place] if relation.place < len(args) else kwargs.get(relation.name)
            if isinstance(base, (tuple, list)):
                base = base[place]
            if relation.is_same and base is not None:
                return base
        # A view is an inference tensor if its base is one, whatever the mode.
        is_inference = torch.is_inference_mode_enabled() and (base is None or base.is_inference())
        with torch.inference_mode(is_inference):
            made = torch.Tensor._make_wrapper_subclass(
                DeviceTensor,
                shape.size,
                strides=shape.stride,
                storage_offset=shape.offset,
                dtype=shape.dtype,
                device=device if base is None else base.device,
            )
        if isinstance(base, DeviceTensor):
            torch._functionalize_unsafe_set(made, base)
        elif device.type == "cuda":
            self._own(made)
        return made

    def _own(self, tensor: torch.Tensor) -> None:
        """Track a new storage: its memory is freed when the last tensor using it ends."""
        storage = tensor.untyped_storage()
        number, self._made = self._made, self._made + 1
        address = storage._cdata
        self.hooks.allocate(number, storage.nbytes())
        self._storages[address] = (number, weakref.ref(storage, lambda _: self._release(address, number)))

    def _release(self, address: int, number: int) -> None:
        if self._storages.get(address, (None,))[0] == number:
            del self._storages[address]
            self.known.forget(address)
        if number in self._emptied:
            self._emptied.remove(number)
        else:
            self.hooks.free(number)

    def resize(self, storage: torch.UntypedStorage, size: int) -> bool:
        """Free a storage's memory (0) or allocate it again, as FSDP does with gathered weights. Return False for
        storages of other devices."""
        found = self._storages.get(storage._cdata)
        if found is None:
            return False
        number = found[0]
        if number in self._emptied:
            self._emptied.remove(number)
        else:
            self.hooks.free(number)
        if size:
            self.hooks.allocate(number, size)
        else:
            self._emptied.add(number)
        return True

    def size(self, storage: torch.UntypedStorage) -> int | None:
        """Return the bytes of a storage; None for storages of other devices."""
        found = self._storages.get(storage._cdata)
        return None if found is None else 0 if found[0] in self._emptied else int(_NBYTES(storage))

    def values_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return all values of a tensor for the host: known ones, random ones for tensors created on the host (an image
        of a random data set), and plausible ones for results of the device."""
        if tensor.device.type == "cuda":
            self.hooks.read()
        known = self.known.copy_of(tensor)
        if known is not None:
            return known
        if not _is_of_device(tensor):
            return self.known.drawn(tensor)
        self.known.assumed_reads += 1
        with torch.utils._python_dispatch._disable_current_modes():
            return torch.full(tensor.shape, self.known.plausible(tensor), dtype=tensor.dtype)

    def storage_number(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's storage, as passed to `allocate`."""
        found = self._storages.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[0]

    def _read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if tensor.device.type == "cuda":
            self.hooks.read()
        return self.known.read(func, args, kwargs)

    def _down(self, source: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host: with values if they are known or there is only one."""
        if source.device.type != "cuda":
            return copy
        copied = self.known.copy_of(source)
        if copied is not None:
            return copied.to(copy.dtype, copy=True)
        if copy.numel() != 1:
            return copy
        return torch.full(copy.shape, self.known.value(source), dtype=copy.dtype)

    def _is_large(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Return whether a factory call on the host creates weights: many floating-point numbers."""
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if not dtype.is_floating_point or kwargs.get("layout") not in (None, torch.strided):
            return False
        return bool(math.prod(args[0]) >= VALUELESS)


def _with(device: Device, begin: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what a thread begins with, so that it has the mode, too: transformers loads weights in several."""

    def begun(thread: threading.Thread) -> None:
        with device:
            begin(thread)

    return begun


def _allow_tf32() -> tuple[bool, bool]:
    """Return whether products and convolutions in float32 may use TF32, however the script has chosen it."""
    if not hasattr(torch._C, "_get_fp32_precision_getter"):  # before torch 2.9
        return torch.get_float32_matmul_precision() != "highest", torch.backends.cudnn.allow_tf32
    of = torch._C._get_fp32_precision_getter
    return of("cuda", "matmul") == "tf32", of("cuda", "conv") == "tf32"


def _is_of_device(tensor: Any) -> bool:
    """Return whether a tensor's values come from the device, even if it is on the host by now."""
    if not isinstance(tensor, DeviceTensor):
        return False
    return tensor.device.type == "cuda" or getattr(tensor.untyped_storage(), "is_of_device", False)


_FILLED = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.randn.default,
    aten.rand.default,
    aten.randn.generator,
    aten.rand.generator,
}


_COPIES = {aten._to_copy.default, aten.copy_.default}

_WITHOUT_KERNEL = {
    aten._unsafe_view.default,
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.lift_fresh.default,
    aten._reshape_alias.default,
    aten.set_.source_Storage_storage_offset,
    *metas.CHOICES,
}
