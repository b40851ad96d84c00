"""`ReduceOp.PREMUL_SUM`, with which FSDP2 divides gradients (`set_gradient_divide_factor`): each rank multiplies its
own tensors, followed by a plain sum. Of torch's backends only NCCL supports it."""

from typing import Any

import torch
import torch.distributed as dist

from host_agent.pytorch.gloo import tensors_in

_PREMUL_SUM: Any = dist.ReduceOp.PREMUL_SUM
"""Constant that a ReduceOp can be compared with."""


def plain(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], rank: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert a call of ProcessGroup's method `name` to a plain sum: tensors are multiplied in place if they receive
    the result, else in copies. Unchanged are calls with other ops, and those with tensors as keyword arguments, which
    torch does not make: Gloo refuses the op."""
    found = next((each for each in map(_op_of, (*args, *kwargs.values())) if each is not None), None)
    if found is None or tensors_in(list(kwargs.values())):
        return args, kwargs
    _, factor = found.__getstate__()

    def multiplied(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [multiplied(each) for each in value]
        return value * factor if isinstance(value, torch.Tensor) else value

    args = tuple(_summed(each) for each in args)
    kwargs = {key: _summed(value) for key, value in kwargs.items()}
    first, *others = args
    if "reduce_scatter" in name:
        return (first, *multiplied(others)), kwargs
    if name == "reduce" and rank != getattr(others[0] if others else None, "rootRank", rank):
        return (multiplied(first), *others), kwargs
    with torch.no_grad():
        for tensor in [first] if isinstance(first, torch.Tensor) else first:
            tensor.mul_(factor)
    return args, kwargs


def _op_of(value: Any) -> Any:
    """The op in an argument, if it is a PREMUL_SUM."""
    op = getattr(value, "reduceOp", value)
    return op if isinstance(op, dist.ReduceOp) and op == _PREMUL_SUM else None


def _summed(value: Any) -> Any:
    """An argument with PREMUL_SUM replaced by SUM; options are copied, so that the caller's are unchanged."""
    if _op_of(value) is None:
        return value
    if not hasattr(value, "reduceOp"):
        return dist.ReduceOp.SUM
    options = type(value)()
    for name in dir(value):
        if not name.startswith("_"):
            setattr(options, name, getattr(value, name))
    options.reduceOp = dist.ReduceOp.SUM
    return options
