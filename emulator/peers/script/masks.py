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

    def choices(self, tensor: torch.Tensor) -> int | None: ...

    even_counts: int


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
    if (count := known.choices(mask)) is not None:
        known.even_counts += 1
        return _equal(known, count, _elements(mask, other), value)
    return _not(known, mask) if value == 0 else known.selected(mask) if value == 1 else None


def _equal(known: Known, count: int, elements: int, value: Any) -> int:
    """Return how many elements equal a value, of integers that are evenly distributed below `count`: those that are
    left over are in the middle."""
    each, more = divmod(elements, count)
    if value is None:
        return round(elements / count)
    return 0 if not 0 <= value < count else each + ((value - count // 2) % count < more)


def _is_not(known: Known, mask: Any, other: Any) -> int | None:
    if known.choices(mask) is None:
        return _compared(0)(known, mask, other)
    equal = _is(known, mask, other)
    return None if equal is None else _elements(mask, other) - equal


def _elements(mask: Any, other: Any) -> int:
    """Return how many elements a comparison of the two has."""
    return math.prod(torch.broadcast_shapes(mask.shape, getattr(other, "shape", ())))


def _reduced(known: Known, mask: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> int | None:
    """Return how many of a mask's rows have elements that are not zero: each has at most one, if there are enough."""
    found = known.selected(mask)
    dims = range(mask.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return None if found is None else min(found, mask.numel() // max(1, math.prod(mask.size(one) for one in dims)))


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
    "aten::ne": _is_not,
    **dict.fromkeys(("aten::any", "aten::amax"), _reduced),
    "aten::gt": _compared(0),
    "aten::ge": _compared(1),
    "aten::eq": _is,
    "aten::cat": _all,
    "aten::stack": _all,
}
"""By operators' names, in place or not. A mask's elements are 0 and 1."""
