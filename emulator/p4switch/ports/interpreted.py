"""Interpreted kernels: the plain Python functions from which kernels are compiled, used by ports until their kernels
are compiled, which takes a while on a machine's first start.

Operations that plain Python can't do, or does very slowly (memory access by address, system calls, sums over bytes),
are replaced.
"""

import builtins
import ctypes
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher

from switchml.net import checksum, libc
from switchml.runtime import memory
from switchml.runtime.jit import compile_once

_libc = ctypes.CDLL(None, use_errno=True)


class Kernel:
    """A kernel that is interpreted until `compile` has finished. `example`: arguments with the types
    it is called with."""

    def __init__(self, kernel: Any, *example: Any) -> None:
        self._kernel, self._example = kernel, example
        self._function = interpreted(kernel)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def compile(self) -> None:
        """Compile the kernel, or load it from disk."""
        compile_once(self._kernel, *self._example)
        self._function = self._kernel


def interpreted(kernel: Any) -> Callable[..., Any]:
    """A kernel's Python function; kernels that it calls are interpreted, too."""
    function = kernel.py_func
    return _REPLACED.get(kernel) or FunctionType(
        function.__code__, _globals(function.__globals__), closure=function.__closure__
    )


def _of(value: Any) -> Any:
    """Replacement for the value of a global name."""
    if isinstance(value, Dispatcher):
        return interpreted(value)
    if isinstance(value, ModuleType) and value.__name__.startswith("switchml."):
        return SimpleNamespace(**_globals(vars(value)))
    return next((function for intrinsic, function in _INTRINSICS if intrinsic is value), value)


_twins: dict[str, dict[str, Any]] = {}


def _globals(names: dict[str, Any]) -> dict[str, Any]:
    """The globals of a module, with all kernels interpreted."""
    module = names["__name__"]
    if module not in _twins:
        _twins[module] = {"__builtins__": builtins}  # added before it is filled, as functions refer to each other
        _twins[module].update({name: _of(value) for name, value in names.items() if not name.startswith("__")})
    return _twins[module]


def _u8_at(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * int(count)).from_address(int(address)))


def _store(address: int, value: int) -> None:
    ctypes.c_uint64.from_address(int(address)).value = int(value)


def _ones_sum(at: int, count: int, start: int) -> int:
    data = ctypes.string_at(int(at), int(count)) + bytes(int(count) % 2)
    total = int.from_bytes(data, "big") + int(start)
    return total % 0xFFFF or (0xFFFF if total else 0)


def _recvmmsg(fd: int, headers: np.ndarray, count: int, flags: int) -> int:
    return int(_libc.recvmmsg(int(fd), ctypes.c_void_p(headers.ctypes.data), int(count), flags, None))


def _sendmmsg(fd: int, headers: np.ndarray, first: int, count: int, flags: int) -> int:
    return int(_libc.sendmmsg(int(fd), ctypes.c_void_p(headers[first:].ctypes.data), int(count), flags))


_REPLACED: dict[Any, Callable[..., Any]] = {
    memory.u8_at: _u8_at,
    memory.copy_bytes: lambda to, source, count: ctypes.memmove(int(to), int(source), int(count)),
    checksum.ones_sum: _ones_sum,
    libc.recvmmsg: _recvmmsg,
    libc.sendmmsg: _sendmmsg,
    libc.errno: ctypes.get_errno,
}
_INTRINSICS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (memory.load_acquire, lambda address: ctypes.c_uint64.from_address(int(address)).value),
    (memory.store_release, _store),
)
