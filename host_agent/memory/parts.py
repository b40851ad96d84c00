"""Division of vectors into parts, which bounds the temporary memory of compression, and the base class of compressed
vectors."""

from collections.abc import Sequence

import torch

ON_CPU, ON_DEVICE = 1 << 16, 1 << 24
"""Number of elements of a part: as many as fit the cache of a CPU core, or keep a GPU busy."""


class StoredVector:
    """A compressed vector that consists of tensors on the original vector's device."""

    def tensors(self) -> list[torch.Tensor]:
        """All tensors that it consists of."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def part_elements(tensor: torch.Tensor) -> int:
    """Number of elements of a part of this tensor."""
    return ON_DEVICE if tensor.is_cuda else ON_CPU


def parts_of(vector: torch.Tensor) -> Sequence[torch.Tensor]:
    """Views of all parts, in order; at least one."""
    parts: Sequence[torch.Tensor] = vector.split(part_elements(vector))
    return parts
