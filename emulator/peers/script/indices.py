"""Below which number the integers of a tensor are, where an operator has chosen them among so many: experts of tokens,
tokens that were drawn. None is likelier than another, which says how many are equal to one of them.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch

aten = torch.ops.aten

INTEGERS = (torch.int64, torch.int32)
"""Types of indices."""


class Known(Protocol):
    """What is known of tensors."""

    def choices(self, tensor: torch.Tensor) -> int | None: ...

    def choose(self, tensor: torch.Tensor, count: int | None) -> None: ...


def record(known: Known, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Record the choices of an operator's result, which may be the last of a tuple."""
    rule = _RULES.get(func)
    if rule is None:
        return
    made = result[-1] if isinstance(result, (tuple, list)) else result
    if made.dtype in INTEGERS:
        known.choose(made, rule(known, *args, **kwargs))


def _last(known: Known, tensor: Any, dim: int = -1, *_: Any, **__: Any) -> int:
    return int(tensor.size(dim)) if tensor.dim() else 1


def _best(known: Known, tensor: Any, dim: int | None = None, *_: Any, **__: Any) -> int:
    return int(tensor.numel()) if dim is None else _last(known, tensor, dim)


def _top(known: Known, tensor: Any, count: int, dim: int = -1, *_: Any, **__: Any) -> int:
    return _last(known, tensor, dim)


def _drawn(known: Known, tensor: Any, *_: Any, **__: Any) -> int:
    return int(tensor.size(-1))


def _stable(known: Known, tensor: Any, *, dim: int = -1, **_: Any) -> int:
    return _last(known, tensor, dim)


def _same(known: Known, tensor: Any, *_: Any, **__: Any) -> int | None:
    return known.choices(tensor)


def _any(known: Known, parts: Any, *_: Any) -> int | None:
    return max((found for one in parts if (found := known.choices(one)) is not None), default=None)


def _either(known: Known, *operands: Any, **_: Any) -> int | None:
    return _any(known, [one for one in operands if isinstance(one, torch.Tensor)])


def _divided(known: Known, tensor: Any, by: Any, **_: Any) -> int | None:
    count = known.choices(tensor)
    return None if count is None or not isinstance(by, int) or by < 1 else -(-count // by)


def _rest(known: Known, tensor: Any, by: Any) -> int | None:
    count = known.choices(tensor)
    return None if count is None or not isinstance(by, int) or by < 1 else min(count, by)


_RULES: dict[Any, Callable[..., int | None]] = {
    **dict.fromkeys((aten.argmax.default, aten.argmin.default), _best),
    **dict.fromkeys((aten.max.dim, aten.min.dim, aten.sort.default, aten.argsort.default), _last),
    **dict.fromkeys((aten.sort.stable, aten.argsort.stable), _stable),
    aten.topk.default: _top,
    aten.multinomial.default: _drawn,
    **dict.fromkeys((aten.randint.default, aten.randint.generator), lambda known, high, *_, **__: int(high)),
    **dict.fromkeys((aten.clone.default, aten._to_copy.default, aten.index.Tensor), _same),
    **dict.fromkeys((aten.gather.default, aten.index_select.default), _same),
    **dict.fromkeys((aten.cat.default, aten.stack.default), _any),
    **dict.fromkeys((aten.where.self, aten.mul.Tensor, aten.add.Tensor), _either),
    **dict.fromkeys((aten.floor_divide.default, aten.div.Tensor_mode), _divided),
    aten.remainder.Scalar: _rest,
}
"""By operator."""
