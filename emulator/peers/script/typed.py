"""torch.cuda.FloatTensor and the like: old names of dtypes on the GPU, which torch has only if it was built for one."""

import functools
from typing import Any

import torch

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
_PREFIX = "torch.cuda."


class _Typed(type):
    """The class of these names: called with sizes or values it creates a tensor."""

    dtype: torch.dtype

    def __call__(cls, *arguments: Any, **_: Any) -> torch.Tensor:
        first = arguments[0] if arguments else 0
        if isinstance(first, int):
            return torch.empty(arguments or (0,), dtype=cls.dtype, device="cuda")
        if isinstance(first, torch.Size):
            return torch.empty(first, dtype=cls.dtype, device="cuda")
        return torch.as_tensor(first, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, torch.Tensor) and one.is_cuda and one.dtype is cls.dtype


def _dtype_of(name: Any) -> torch.dtype | None:
    """Return the dtype that one of these names stands for; None for others."""
    if isinstance(name, _Typed):
        return name.dtype
    return _DTYPES.get(name.removeprefix(_PREFIX)) if isinstance(name, str) and name.startswith(_PREFIX) else None


def install() -> None:
    """Define the names, also as arguments of Tensor.type and torch.set_default_tensor_type."""
    for name, dtype in _DTYPES.items():
        setattr(torch.cuda, name, _Typed(name, (), {"dtype": dtype}))
    convert, choose = torch.Tensor.type, torch.set_default_tensor_type

    @functools.wraps(convert)
    def converted(tensor: torch.Tensor, dtype: Any = None, *arguments: Any, **options: Any) -> Any:
        found = _dtype_of(dtype)
        return tensor.to("cuda", found) if found else convert(tensor, dtype, *arguments, **options)

    @functools.wraps(choose)
    def chosen(name: Any) -> None:
        found = _dtype_of(name)
        if found is None:
            choose(name)
        else:
            torch.set_default_device("cuda")
            torch.set_default_dtype(found)

    torch.Tensor.type = converted  # type: ignore[method-assign, assignment]
    torch.set_default_tensor_type = chosen
