"""Frequent calls from Python of a kernel with many arrays; separate from `jit.py`, on whose text all kernels depend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from switchml.runtime.jit import compile_once


def entry_point(kernel: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a callable equivalent to `kernel` for arguments of these types, without type dispatch: that takes thirty
    microseconds for a tuple of sixty arrays."""
    compile_once(kernel, *arguments)
    entry: Callable[..., Any] = kernel.overloads[tuple(numba.typeof(argument) for argument in arguments)].entry_point
    return entry
