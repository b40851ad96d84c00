"""The codec `levels` on a GPU, with torch operators: the numbers, bits and values of `levels.py`, in another layout.
Each block's bits and least number are stored together, and so are all planes of one size, block by block. A vector of
only 0 and one magnitude is exact as a whole, not by chunks."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from host_agent.memory.device_bits import places
from host_agent.memory.levels import BLOCK, MARGIN, MOST, PLAIN
from host_agent.memory.parts import StoredVector, parts_of

PLANES = (8, 4, 2, 1)


@dataclass(frozen=True)
class Part:
    """The blocks of a part: uint8 bits and int16 least number of each, planes by size: uint8[blocks with this plane, 16
    * size], and the float32[blocks, 128] of uncompressed blocks."""

    bits: torch.Tensor
    least: torch.Tensor
    planes: dict[int, torch.Tensor]
    plain: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        return [self.bits, self.least, *self.planes.values(), self.plain]


@dataclass(frozen=True)
class DeviceLevels(StoredVector):
    """A vector of `count` elements. `magnitude`: that of all nonzero elements if they have only one, else 0."""

    parts: list[Part]
    step: float
    magnitude: float
    dtype: torch.dtype
    count: int

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for part in self.parts for tensor in part.tensors()]

    def restore(self) -> torch.Tensor:
        vector = self.parts[0].bits.new_empty(self.count, dtype=self.dtype)
        for part, to in zip(self.parts, parts_of(vector), strict=True):
            to.copy_(self._values(part).view(-1)[: to.numel()])
        return vector

    def _values(self, part: Part) -> torch.Tensor:
        """Decode a part to float32[blocks, 128]."""
        bits = part.bits.to(torch.int32)
        numbers = part.least.to(torch.int32).unsqueeze(1).repeat(1, BLOCK)
        for size, plane in part.planes.items():
            rows = places((bits & size) != 0, len(plane))
            above = numbers.new_empty((len(plane), 8 // size, 16 * size))
            for k in range(8 // size):
                above[:, k] = (plane >> (k * size)) & ((1 << size) - 1)
            shifts = (bits & (16 - 2 * size)).index_select(0, rows).unsqueeze(1)
            numbers.index_add_(0, rows, above.view(-1, BLOCK) << shifts)
        if self.magnitude:
            return numbers.sign() * self.magnitude
        values = numbers.sign() * ((numbers.abs() - 0.5) * self.step)
        if len(part.plain):
            values.index_copy_(0, places(bits == PLAIN, len(part.plain)), part.plain)
        return values


def compress(vector: torch.Tensor, bound: float) -> Generator[torch.Tensor, list[Any], DeviceLevels]:
    """Codec coroutine: no element changes by more than `bound`."""
    largest = torch.stack([part.abs().amax() for part in parts_of(vector)]).amax().float()
    alike = torch.stack([((part.abs() == largest) | (part == 0)).all() for part in parts_of(vector)]).all()
    magnitude, are_alike = yield torch.stack([largest, alike.float()])
    if not are_alike or not 0 < magnitude < float("inf"):
        magnitude = 0.0
    step = float(np.float32(2.0 * MARGIN * (magnitude or bound)))
    counts = yield torch.stack([_counts(_numbers(part, step)[1]) for part in parts_of(vector)]).view(-1)
    kept = []
    for part in parts_of(vector):
        here, counts = counts[:5], counts[5:]
        kept.append(_written(part, step, here))
    return DeviceLevels(kept, step, magnitude, vector.dtype, vector.numel())


def _blocks(part: torch.Tensor) -> torch.Tensor:
    """Reshape to float32[blocks, 128]; the last block is padded with the last element."""
    missing = -part.numel() % BLOCK
    if missing:
        part = torch.cat([part, part[-1:].expand(missing)])
    return part.float().view(-1, BLOCK)


def _numbers(part: torch.Tensor, step: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each block: int32[blocks, 128] numbers minus the least one, int32 bits, and the least number."""
    x = _blocks(part)
    inverse = float(np.float32(1.0) / np.float32(step))
    limit = min(float(np.float32(MOST - 1) * np.float32(step)), float(np.float32(3e38)))
    is_plain = ~(x.abs().amax(1, keepdim=True) <= limit)
    numbers = ((x.masked_fill(is_plain, 0).abs() * inverse).to(torch.int32) + 1) * x.sign().nan_to_num().to(torch.int32)
    least = numbers.amin(1, keepdim=True)
    spans = numbers.amax(1, keepdim=True) - least
    bits = torch.frexp(spans.float())[1].to(torch.int32).masked_fill(is_plain, PLAIN)
    return numbers - least, bits.view(-1), least.view(-1)


def _counts(bits: torch.Tensor) -> torch.Tensor:
    """Number of blocks with a plane of each size, and of uncompressed blocks."""
    return torch.stack([((bits & size) != 0).sum() for size in (*PLANES, PLAIN)])


def _written(part: torch.Tensor, step: float, counts: list[int]) -> Part:
    above, bits, least = _numbers(part, step)
    planes = {}
    for size, count in zip(PLANES, counts, strict=False):
        if not count:
            continue
        rows = places((bits & size) != 0, count)
        shifts = (bits & (16 - 2 * size)).index_select(0, rows).unsqueeze(1)
        numbers = ((above.index_select(0, rows) >> shifts) & ((1 << size) - 1)).view(count, 8 // size, 16 * size)
        plane = numbers[:, 0].clone()
        for k in range(1, 8 // size):
            plane |= numbers[:, k] << (k * size)
        planes[size] = plane.to(torch.uint8)
    plain = _blocks(part).index_select(0, places((bits & PLAIN) != 0, counts[4]))
    return Part(bits.to(torch.uint8), least.to(torch.int16), planes, plain)
