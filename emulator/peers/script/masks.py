"""How many elements of a mask are not zero, where that follows from the operators that made it, although nothing says
which: of a mask that is set at sampled places, as in detectors.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

aten = torch.ops.aten


class Known(Protocol):
    """What is known of tensors."""

    def selected(self, mask: torch.Tensor) -> int | None: ...

    def known_value(self, tensor: Any) -> Any: ...


def selected_by(known: Known, func: Any, args: Any, kwargs: dict[str, Any]) -> int | None:
    """Return how many elements of an operator's result are not zero; None: unknown."""
    rule = _rule(func)
    return None if rule is None else rule(known, *args, **kwargs)


@cache
def _rule(func: Any) -> Callable[..., int | None] | None:
    schema = func._schema
    return None if any(one.is_out for one in schema.arguments) else _RULES.get(schema.name.removesuffix("_"))


def _put(known: Known, mask: Any, indices: Any, value: Any, accumulate: bool = False) -> int | None:
    found = [one for one in indices if one is not None]
    places = math.prod(torch.broadcast_shapes(*(one.shape for one in found)))
    for index, length in zip(indices, mask.shape, strict=False):
        places *= length if index is None else 1
    return _set(known, mask, places * math.prod(mask.shape[len(indices) :]), value)


def _fill(known: Known, mask: Any, dim: int, index: Any, value: Any) -> int | None:
    return _set(known, mask, index.numel() * mask.numel() // max(1, mask.size(dim)), value)


def _scatter(known: Known, mask: Any, dim: int, index: Any, value: Any, **_: Any) -> int | None:
    return _set(known, mask, index.numel(), value)


def _set(known: Known, mask: Any, places: int, value: Any) -> int | None:
    """Return the number after 1 is written to `places` of a mask, which are taken to be different, and zero before."""
    before = known.selected(mask)
    return min(mask.numel(), before + places) if before is not None and known.known_value(value) == 1 else None


def _either(known: Known, left: Any, right: Any) -> int | None:
    """Return the number of a union: masks are taken to be disjoint."""
    both = _both(known, left, right)
    return None if both is None else min(left.numel(), sum(both))


def _each(known: Known, left: Any, right: Any) -> int | None:
    """Return the number of an intersection: masks are taken to be independent."""
    both = _both(known, left, right)
    return None if both is None else round(both[0] * both[1] / max(1, left.numel()))


def _both(known: Known, left: Any, right: Any) -> tuple[int, int] | None:
    if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.shape == right.shape):
        return None
    ours, theirs = known.selected(left), known.selected(right)
    return None if ours is None or theirs is None else (ours, theirs)


def _not(known: Known, mask: Any, *_: Any) -> int | None:
    found = known.selected(mask)
    return None if found is None else mask.numel() - found


def _same(known: Known, mask: Any, *_: Any, **__: Any) -> int | None:
    return known.selected(mask)


def _compared(to: int) -> Callable[..., int | None]:
    return lambda known, mask, other: known.selected(mask) if known.known_value(other) == to else None


def _is(known: Known, mask: Any, other: Any) -> int | None:
    value = known.known_value(other)
    return _not(known, mask) if value == 0 else known.selected(mask) if value == 1 else None


def _all(known: Known, parts: Any, *_: Any) -> int | None:
    found = [known.selected(one) for one in parts]
    return None if None in found else sum(one for one in found if one is not None)


_RULES: dict[str, Callable[..., int | None]] = {
    **dict.fromkeys(("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero"), lambda *_, **__: 0),
    "aten::index_put": _put,
    "aten::index_fill": _fill,
    "aten::scatter": _scatter,
    "aten::bitwise_or": _either,
    "aten::logical_or": _either,
    "aten::bitwise_and": _each,
    "aten::logical_and": _each,
    "aten::logical_not": _not,
    "aten::bitwise_not": lambda known, mask: _not(known, mask) if mask.dtype is torch.bool else None,
    "aten::_to_copy": _same,
    "aten::clone": _same,
    "aten::ne": _compared(0),
    "aten::gt": _compared(0),
    "aten::ge": _compared(1),
    "aten::eq": _is,
    "aten::cat": _all,
    "aten::stack": _all,
}
"""By operators' names, in place or not. A mask's elements are 0 and 1."""
