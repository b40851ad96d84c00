"""Makes a torch without a GPU accept "cuda" as a device: tensors on it can be created, moved and differentiated, as
long as a dispatch mode implements their operators (`device.py`).

Torch's C++ fails without a driver in the guard that switches devices, and in queries: whether an accelerator was built
in, is available, has been used (by autograd), is initialized, and whether memory is pinned. Torch has a no-op guard,
meant for a GPU build on a machine without GPU (`ensureCUDADeviceGuardSet`, c10/core/impl/DeviceGuardImplInterface.h);
the queries are virtual functions of one object (ATen/detail/CUDAHooksInterface.h), some entries of whose table are
replaced. The entries are found by trial, so that this code does not depend on a version's order.
"""

import atexit
import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from switchml.errors import ConfigError

_CUDA = 1
"""c10::DeviceType::CUDA."""
_ENTRIES = 64
"""Copied entries of the hooks' function table: more than it has. The excess is never called."""
_FIRST_OF = 12
"""The queries are among the first functions, those of all accelerators (ATen/detail/AcceleratorHooksInterface.h)."""

_kept: list[Any] = []
"""Objects that C++ holds pointers to."""


def install(index: int = 0) -> None:
    """Enable "cuda" tensors in this process, on device `index` where a script names none. Idempotent. Raises
    ConfigError where this torch does not allow it."""
    if _kept:
        return
    torch.cuda._lazy_init = lambda: None
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        _install_guard()
        _replace_answers()
        if index:
            _choose(index)
    except (AttributeError, OSError) as error:
        raise ConfigError(f"torch {torch.__version__} can't emulate a GPU: {error}") from None


def _library(name: str) -> ctypes.CDLL:
    for suffix in ("so", "dylib"):
        path = Path(torch.__file__).parent / "lib" / f"lib{name}.{suffix}"
        if path.is_file():
            return ctypes.CDLL(str(path))
    raise OSError(f"it has no library {name}")


def _install_guard() -> None:
    """Install torch's no-op guard instead of one that reports no devices. Builds for CPUs have none at all and get one
    whose functions all return 0, including the device count."""
    if torch.version.cuda is None:
        none = ctypes.CFUNCTYPE(ctypes.c_longlong)(lambda: 0)
        table = (ctypes.c_void_p * _ENTRIES)(*[ctypes.cast(none, ctypes.c_void_p).value] * _ENTRIES)
        guard = ctypes.c_void_p(ctypes.addressof(table))
        register = _library("c10")[
            "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
        ]
        register.argtypes = [ctypes.c_int8, ctypes.c_void_p]
        register(_CUDA, ctypes.addressof(guard))
        _kept.extend((none, table, guard))
    torch._C._ensureCUDADeviceGuardSet()


def _replace_answers() -> None:
    """Make the hooks report that CUDA is available and in use."""
    hooks_of = _library("torch_cpu")["_ZN2at6detail12getCUDAHooksEv"]
    hooks_of.restype = ctypes.c_void_p
    hooks = ctypes.cast(hooks_of(), ctypes.POINTER(ctypes.c_void_p))
    original = hooks[0]
    functions = ctypes.cast(original, ctypes.POINTER(ctypes.c_void_p))
    table = (ctypes.c_void_p * _ENTRIES)(*[functions[entry] for entry in range(_ENTRIES)])
    yes = ctypes.CFUNCTYPE(ctypes.c_longlong)(lambda: 1)
    _kept.extend((table, yes))
    atexit.register(hooks.__setitem__, 0, original)
    hooks[0] = ctypes.addressof(table)
    for works in (_is_built, _is_available, _differentiates, _begins, _pins):
        for entry in range(_FIRST_OF):
            if works():
                break
            before, table[entry] = table[entry], ctypes.cast(yes, ctypes.c_void_p).value
            if not works():
                table[entry] = before
        if not works():
            raise OSError("it requests a driver in an unknown way")


def _choose(index: int) -> None:
    """Make the guard report device `index` as the current one."""
    registry = ctypes.c_void_p.in_dll(_library("c10"), "_ZN3c104impl26device_guard_impl_registryE")
    guards = (ctypes.c_void_p * (_CUDA + 1)).from_address(ctypes.addressof(registry))
    guard = ctypes.cast(ctypes.c_void_p(guards[_CUDA]), ctypes.POINTER(ctypes.c_void_p))
    original = ctypes.cast(guard[0], ctypes.POINTER(ctypes.c_void_p))
    table = (ctypes.c_void_p * _ENTRIES)(*[original[entry] for entry in range(_ENTRIES)])
    chosen = ctypes.CFUNCTYPE(ctypes.c_longlong)(lambda: _CUDA | index << 8)  # a c10::Device: type, index
    _kept.extend((table, chosen))
    atexit.register(guard.__setitem__, 0, guard[0])
    guard[0] = ctypes.addressof(table)
    for entry in range(_FIRST_OF):
        before, table[entry] = table[entry], ctypes.cast(chosen, ctypes.c_void_p).value
        if _current() == index:
            return
        table[entry] = before
    raise OSError("it requests the current device in an unknown way")


def _current() -> int | None:
    """Return the device that torch uses where none is specified."""
    tensor, _Seen.index = torch.empty(1), None
    with _Seen():
        tensor.to("cuda")
    return _Seen.index


def _is_built() -> bool:
    found = torch._C._accelerator_getAccelerator()
    return found is not None and found.type == "cuda"


def _is_available() -> bool:
    return torch._C._get_accelerator().type == "cuda"


def _differentiates() -> bool:
    def tensor() -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(_Probe, (1,), dtype=torch.float32, device=torch.device("cuda", 0))

    try:
        tensor().requires_grad_().backward(tensor())
    except RuntimeError:
        return False
    return True


if TYPE_CHECKING:
    _Tensor = Any  # their stubs have other signatures of __torch_dispatch__ than torch calls
    _Mode = Any
else:
    _Tensor = torch.Tensor
    _Mode = TorchDispatchMode


def _begins() -> bool:
    try:
        torch.empty(1).pin_memory()
    except RuntimeError as error:  # always raised, as there is no allocator
        return "initialize CUDA" not in str(error)
    return True


def _pins() -> bool:
    return torch.empty(1).is_pinned()


class _Seen(_Mode):
    """Records the target device of a copy."""

    index: int | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _Seen.index = kwargs["device"].index
        return args[0]


class _Probe(_Tensor):
    """A tensor without memory whose operators all return it."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0]
