"""Compatibility with torch.compile: this package runs below compiled modules, and is not compiled itself."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def never_compiled(function: Function) -> Function:
    """Exclude this function, with all that it calls, from torch.compile.

    While a compiled module runs, Dynamo traces every Python frame, including those called from C++: DDP's broadcast of
    buffers, a comm hook. It does not support process groups there. `torch.compiler.disable` has the same effect, but
    imports the compiler, which takes seconds.
    """
    code = function.__code__
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
        return function
    import torch  # before 2.7

    disabled: Function = torch.compiler.disable(function)
    return disabled


def never_compiled_methods(cls: Class) -> Class:
    """Apply `never_compiled` to all functions in the body of `cls`."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, FunctionType):
            setattr(cls, name, never_compiled(value))
    return cls
