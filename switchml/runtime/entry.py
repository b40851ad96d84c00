"""Calling a kernel of many arrays from Python often; apart from `jit.py`, on whose text all kernels depend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from switchml.runtime.jit import compile_once


def entry_point(kernel: Any, *arguments: Any) -> Callable[..., Any]:
    """What does the same as `kernel` for arguments of these types, without looking at their types first: that takes
    thirty microseconds for a tuple of sixty arrays."""
    compile_once(kernel, *arguments)
    entry: Callable[..., Any] = kernel.overloads[tuple(numba.typeof(argument) for argument in arguments)].entry_point
    return entry
