"""Conversion of arrays and tensors for the agent: address, length, a dtype of the protocol, and the result.

Accepts NumPy arrays and CPU torch tensors (torch is never imported here; tensors are recognized by their attributes).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from switchml.errors import UnsupportedTensor
from switchml.protocol.halves import KINDS, narrow, widen

HALVES = tuple(KINDS)
NATIVE = ("float32", "float64", "int32", "int64")
ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}


@dataclass
class Prepared:
    """`source` and `target`: addresses of `numel` elements of `dtype`. `result`: object returned to the caller. `keep`:
    owners of the memory."""

    source: int
    target: int
    numel: int
    dtype: str
    result: Any
    keep: object


def prepare(x: Any, out: Any = None) -> Prepared:
    """Check `x` and `out`, and copy input that can't be read in place. Raises UnsupportedTensor."""
    if hasattr(x, "data_ptr"):
        return _prepare_torch(x, out)
    x = np.asarray(x)
    if x.dtype.name not in (*NATIVE, "float16") or not x.dtype.isnative:
        raise UnsupportedTensor(
            f"dtype {x.dtype.str} ({x.dtype.name}): expected float32, float64, float16, int32 or int64 in native byte "
            "order"
        )
    if out is None:
        out = np.empty(x.shape, x.dtype)
    elif not isinstance(out, np.ndarray) or out.shape != x.shape or out.dtype != x.dtype:
        raise UnsupportedTensor(f"out: expected an array of shape {x.shape} and dtype {x.dtype.name}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UnsupportedTensor("out: expected a writeable C-contiguous array (omit it to get a new one)")
    source = np.ascontiguousarray(x)
    if source.ctypes.data != out.ctypes.data and np.may_share_memory(source, out):
        source = source.copy()  # partial overlap: an early result would overwrite unread input
    return Prepared(source.ctypes.data, out.ctypes.data, x.size, x.dtype.name, out, (source, out))


def _prepare_torch(x: Any, out: Any) -> Prepared:
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in (*NATIVE, *HALVES):
        raise UnsupportedTensor(f"dtype {dtype}: expected {', '.join((*NATIVE, *HALVES))}")
    if not _is_dense_on_cpu(x):
        what = x.device.type if x.device.type != "cpu" else str(x.layout).removeprefix("torch.")
        raise UnsupportedTensor(
            f"{what} tensor: expected a dense one in CPU memory (the torch backend takes CUDA tensors)"
        )
    x = x.detach().resolve_neg()  # torch may negate lazily
    if out is None:
        out = x.new_empty(x.shape)
    elif (
        not hasattr(out, "data_ptr")
        or not _is_dense_on_cpu(out)
        or out.shape != x.shape
        or out.dtype != x.dtype
        or out.is_neg()
        or not out.is_contiguous()
    ):
        raise UnsupportedTensor(
            f"out: expected a contiguous tensor of shape {tuple(x.shape)} and dtype {dtype} in CPU memory"
        )
    source = x.contiguous()
    if 0 < abs(source.data_ptr() - out.data_ptr()) < x.numel() * x.element_size():
        source = source.clone()
    return Prepared(source.data_ptr(), out.data_ptr(), x.numel(), dtype, out, (source, out))


def _is_dense_on_cpu(x: Any) -> bool:
    return bool(x.device.type == "cpu") and str(x.layout) == "torch.strided"


def widen_at(source: int, numel: int, dtype: str) -> np.ndarray:
    """float32 copies of `numel` float16 or bfloat16 numbers at `source`."""
    values = np.empty(numel, np.float32)
    widen(KINDS[dtype], source, values.ctypes.data, numel)
    return values


def narrow_at(values: np.ndarray, target: int, dtype: str) -> None:
    """Round float32 `values` to float16 or bfloat16 numbers at `target`; a sum beyond 65504 is infinity in float16."""
    narrow(KINDS[dtype], values.ctypes.data, target, values.size)
