"""What was put on the device: an operator with the shapes that went in and came out."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class TensorShape:
    """Of a tensor all but its values."""

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
        """What a kernel reads or writes of it: an element that a stride of 0 repeats counts once."""
        own = math.prod(length for length, step in zip(self.size, self.stride, strict=True) if step)
        return own * self.element_bytes


@dataclass(frozen=True, eq=False)
class Operator:
    """`number`: among those of a run. `name`: torch's, with its overload (aten.addmm.default). `options`: arguments
    that are no tensors, by name. `tf32`: whether products and convolutions in float32 may round to it."""

    number: int
    name: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    options: dict[str, Any]
    tf32: tuple[bool, bool]
    written_bytes: int
    has_kernel: bool
    """False: it changes how a tensor is looked at, or takes memory."""

    @cached_property
    def base(self) -> str:
        """The name without namespace and overload."""
        return self.name.split(".")[1]

    @cached_property
    def bytes(self) -> int:
        """What it reads and writes, each tensor once."""
        return sum(one.bytes for one in self.inputs) + self.written_bytes
