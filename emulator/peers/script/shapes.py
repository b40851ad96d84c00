"""Inputs and outputs of operators, without values: shapes, modified arguments, and results that are or alias
arguments."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from emulator.peers.script.operators import TensorShape
from switchml.errors import EmulationError


@dataclass(frozen=True)
class Returns:
    """Relation of a returned tensor to an argument: its index and name, and whether it is the same tensor (or a
    view)."""

    place: int
    name: str
    is_same: bool


def key_of(one: Any) -> Any:
    """Return the cache key of an argument: for a tensor, everything except values."""
    if isinstance(one, torch.Tensor):
        return (one.size(), one.stride(), one.storage_offset(), one.dtype, one.device.type)
    return (type(one), None) if isinstance(one, torch.Generator) else (type(one), one)


def on_meta(one: Any) -> Any:
    """Return the argument for meta kernels."""
    if isinstance(one, torch.Generator):
        return None
    if not isinstance(one, torch.Tensor):
        return one
    with torch.utils._python_dispatch._disable_current_modes():
        if not one.storage_offset():
            return torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="meta")
        extent = sum((length - 1) * step for length, step in zip(one.size(), one.stride(), strict=True)) + 1
        whole = torch.empty(one.storage_offset() + extent, dtype=one.dtype, device="meta")
        return whole.as_strided(one.size(), one.stride(), one.storage_offset())


def depends_on_values(func: Any) -> EmulationError:
    """Return the error for an operator whose result has a size that depends on values."""
    return EmulationError(
        f"{func} can't be emulated: its result is as long as values say, which emulated tensors don't have"
    )


def on_host(func: Any, plain: list[Any], spec: Any, error: Exception) -> Any:
    """Return the result where torch has no meta kernel: that of the host's kernel, for zeros. Raises EmulationError if
    there is none either, or if the result's size depends on values."""
    if torch.Tag.dynamic_output_shape in func.tags:
        raise depends_on_values(func) from None
    zeros = [torch.zeros_like(one, device="cpu") if isinstance(one, torch.Tensor) else one for one in plain]
    args, kwargs = tree_unflatten(zeros, spec)
    if "device" in kwargs:
        kwargs["device"] = "cpu"
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise EmulationError(f"{func} can't be emulated: torch gives no shape of its result ({reason})") from None


def shape_of(tensor: torch.Tensor) -> TensorShape:
    """Return the shape of a tensor."""
    return TensorShape(
        tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype, tensor.element_size()
    )


def shapes_of(given: Any) -> Any:
    """Return the shapes of tensors in the structure of a result."""
    if isinstance(given, torch.Tensor):
        return shape_of(given)
    if isinstance(given, (tuple, list)):
        return (list if isinstance(given, list) else tuple)(map(shapes_of, given))
    return given


def changed_by(func: Any, flat: list[Any], spec: Any) -> dict[int | str, Any]:
    """Return the modified arguments: index or name → shapes."""
    args, kwargs = tree_unflatten([shape_of(one) if isinstance(one, torch.Tensor) else one for one in flat], spec)
    found: dict[int | str, Any] = {}
    for place, argument in enumerate(func._schema.arguments):
        if argument.is_write and place < len(args):
            found[place] = args[place]
        elif argument.is_write and argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
    return found


def bytes_of(shapes: Any) -> int:
    """Return the bytes of all `TensorShape`s in a structure."""
    return sum(one.bytes for one in tree_flatten(shapes)[0] if isinstance(one, TensorShape))


class _Tensorless:
    """Placeholder for a tensor, to avoid keeping references."""


def options_of(func: Any, flat: list[Any], spec: Any) -> dict[str, Any]:
    """Return the non-tensor arguments, by name."""
    args, kwargs = tree_unflatten([_Tensorless if isinstance(one, torch.Tensor) else one for one in flat], spec)
    names = (argument.name for argument in func._schema.arguments)
    given = dict(zip(names, args, strict=False)) | kwargs
    return {name: value for name, value in given.items() if value is not _Tensorless}


def returns_of(func: Any) -> list[Returns | None]:
    """Return, for each returned value, the argument that it is or aliases."""
    arguments = func._schema.arguments
    found: list[Returns | None] = []
    for one in func._schema.returns:
        alias = one.alias_info
        relation = None
        if alias is not None and alias.before_set:
            for place, argument in enumerate(arguments):
                if argument.alias_info is not None and argument.alias_info.before_set & alias.before_set:
                    relation = Returns(place, argument.name, alias.is_write)
                    break
        if relation is None and func.is_view:  # a list of views: its schema's aliases are not accessible
            relation = Returns(0, arguments[0].name, False)
        found.append(relation)
    return found
