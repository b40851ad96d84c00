"""Operators launched on the device, with the shapes of inputs and outputs."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

_OF_TORCH = ("aten", "prims", "fsdp", "c10d", "_c10d_functional", "torch_attn", "switchml")
"""Namespaces of operators of torch, and of `flex.py`'s."""


@dataclass(frozen=True)
class TensorShape:
    """Metadata of a tensor, without values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    element_bytes: int

    @cached_property
    def elements(self) -> int:
        return math.prod(self.size)

    @cached_property
    def bytes(self) -> int:
        """Bytes that a kernel reads or writes; elements repeated by a stride of 0 count once."""
        own = math.prod(length for length, step in zip(self.size, self.stride, strict=True) if step)
        return own * self.element_bytes


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator. `number`: index within a run. `name`: torch's, with its overload (aten.addmm.default). `options`:
    non-tensor arguments, by name. `tf32`: whether GEMMs and convolutions in float32 may use TF32."""

    number: int
    name: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    options: dict[str, Any]
    tf32: tuple[bool, bool]
    written_bytes: int
    has_kernel: bool
    """False: it only changes a tensor's metadata, or allocates memory."""
    crosses: bool = False
    """Whether it copies from host to device or back."""

    @cached_property
    def base(self) -> str:
        """Name without overload, and for operators of torch without namespace."""
        return self.name.rpartition(".")[0] if self.is_of_package else self.name.split(".")[1]

    @cached_property
    def is_of_package(self) -> bool:
        """Whether the operator is neither torch's nor `flex.py`'s."""
        return self.name.partition(".")[0] not in _OF_TORCH

    @cached_property
    def bytes(self) -> int:
        """Bytes read and written, each tensor once."""
        return sum(one.bytes for one in self.inputs) + self.written_bytes
