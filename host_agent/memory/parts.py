"""How much of a vector is worked on at a time, which bounds what compressing takes besides, and what it comes to."""

from collections.abc import Sequence

import torch

ON_CPU, ON_DEVICE = 1 << 16, 1 << 24
"""Elements. A CPU's core has so many in its cache; a GPU needs many to be busy."""


class StoredVector:
    """A compressed vector that consists of tensors on the vector's own device."""

    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def part_of(tensor: torch.Tensor) -> int:
    """Elements of a part of it."""
    return ON_DEVICE if tensor.is_cuda else ON_CPU


def parts_of(vector: torch.Tensor) -> Sequence[torch.Tensor]:
    """Views of all parts, in order; at least one."""
    parts: Sequence[torch.Tensor] = vector.split(part_of(vector))
    return parts
