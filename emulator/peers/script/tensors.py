"""The tensors of an emulated GPU, and how they are printed, read and copied; `device.py` runs their operators."""

import copy
import functools
import multiprocessing.context
from typing import TYPE_CHECKING, Any, Protocol

import torch

from switchml.errors import EmulationError

if TYPE_CHECKING:
    _Tensor = Any  # torch's stubs have other signatures
else:
    _Tensor = torch.Tensor


class Owner(Protocol):
    """The device, for its tensors."""

    known: Any

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any: ...

    def values_of(self, tensor: torch.Tensor) -> torch.Tensor: ...


owner: list[Owner] = []
"""That of this process."""


class DeviceTensor(_Tensor):
    """A tensor without values. Its storage object is real, so that views share it, and it ends with its last view."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, data: Any, requires_grad: bool = True, **marks: Any) -> Any:
        """Return a parameter: packages write `type(parameter)(data, …)`, where the type is usually Parameter."""
        return torch.nn.Parameter(data, requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(map(is_ours, types)):
            return NotImplemented
        return owner[0].run(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"tensor(..., device='{self.device}', size={tuple(self.shape)}, dtype={self.dtype})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def data_ptr(self) -> int:
        return int(self.untyped_storage().data_ptr() + self.storage_offset() * self.element_size())

    def tolist(self) -> Any:
        if self.numel() == 1:
            return torch.full(self.shape, self.item()).tolist()
        return owner[0].values_of(self).tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if self.device.type == "cuda" and not force:  # torch's message
            raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")
        return owner[0].values_of(self).numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return owner[0].values_of(self).numpy().__array__(dtype)

    @property
    def __cuda_array_interface__(self) -> Any:
        if self.device.type == "cuda":
            raise _shared()
        return torch.Tensor.__cuda_array_interface__.__get__(self)  # torch's message

    def __dlpack__(self, **options: Any) -> Any:
        if self.device.type == "cuda":
            raise _shared()
        return owner[0].values_of(self).__dlpack__(**options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not self.is_leaf:  # torch's message
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        if id(self) not in memo:
            memo[id(self)] = made = self.detach().clone().requires_grad_(self.requires_grad)
            vars(made).update(copy.deepcopy(vars(self), memo))  # with the mark of a parameter
            made.grad = copy.deepcopy(self.grad, memo)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.device.type == "cuda" and multiprocessing.context.get_spawning_popen() is not None:
            raise EmulationError(
                "a tensor on the GPU is an argument of a Process: processes that share a GPU can't be emulated"
            )
        known = owner[0].known.payload(self)
        return _remake, (tuple(self.shape), self.dtype, str(self.device), self.requires_grad, known)


def _shared() -> EmulationError:
    return EmulationError(
        "a tensor on the GPU is given to another library (Numba, CuPy, DLPack), whose kernels can't be emulated: "
        "expected operators of torch"
    )


def is_ours(kind: type) -> bool:
    """Return whether the device runs operators of such tensors: others (DTensor, nested tensors) decompose first."""
    return kind in (torch.Tensor, torch.nn.Parameter) or issubclass(kind, DeviceTensor)


@functools.cache
def _combined(cls: Any) -> Any:
    """Return the class of a package's tensors that are the device's, too."""
    return type(cls)(cls.__name__, (cls, DeviceTensor), {"__module__": cls.__module__})


def _making(make: Any) -> Any:
    """Return Tensor._make_subclass also for tensors without values."""

    def made(cls: Any, data: torch.Tensor, requires_grad: bool = False, **kwargs: Any) -> torch.Tensor:
        if not isinstance(data, DeviceTensor) or cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            made_here: torch.Tensor = make(cls, data, requires_grad, **kwargs)
            return made_here
        tensor: torch.Tensor = torch.Tensor._make_wrapper_subclass(
            cls if issubclass(cls, DeviceTensor) else _combined(cls),
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=data.device,
        )
        torch._functionalize_unsafe_set(tensor, data)
        tensor.requires_grad_(requires_grad)
        return tensor

    return staticmethod(made)


_map_locations: list[Any] = []
"""Arguments `map_location` of the running calls of torch.load."""


def _remake(shape: Any, dtype: Any, device: str, requires_grad: bool, known: bytes | None) -> torch.Tensor:
    device = _mapped(_map_locations[-1], device) if _map_locations else device
    made = torch.empty(shape, dtype=dtype, device=device)
    owner[0].known.receive(made, known)
    return made.requires_grad_(requires_grad)


def _mapped(location: Any, device: str) -> Any:
    """Return the device that `map_location` chooses for a tensor saved on `device`."""
    if callable(location):
        storage = location(torch.UntypedStorage(0), device)
        return device if storage is None else storage.device
    return location.get(device, device) if isinstance(location, dict) else location or device


def _loading(load: Any) -> Any:
    """Return torch.load with `map_location` also for tensors without values."""

    @functools.wraps(load)
    def loaded(f: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        _map_locations.append(map_location)
        try:
            return load(f, map_location, *arguments, **options)
        finally:
            _map_locations.pop()

    return loaded


def install() -> None:
    """Let torch.load read what torch.save wrote, and packages make tensors of classes of their own."""
    torch.Tensor._make_subclass = _making(torch.Tensor._make_subclass)  # type: ignore[method-assign]
    torch.serialization.add_safe_globals([_remake])
    torch.load = torch.serialization.load = _loading(torch.load)
