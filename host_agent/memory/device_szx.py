"""The codec `szx` on a GPU, with torch operators: SZx's blocks, lengths and values (`switchml.codecs.szx`) of the
nonzero elements, in another layout. Lengths and medians are stored together; of the remaining bytes of each value, all
first ones are stored together, then all second ones and so on."""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from host_agent.memory import device_bits
from host_agent.memory.device_bits import places
from host_agent.memory.parts import StoredVector, part_elements

BLOCK = 128
_SHARE = 4
"""Factor by which parts are smaller than elsewhere: compression takes more bytes per element here."""


@dataclass(frozen=True)
class Part:
    """Encoded part of a vector. `zeros`: a bit per element, 1 if it is nonzero, or empty if all are. `lengths`:
    uint8[blocks], 0: constant block; `medians`: float32[blocks]; `leads`: uint8[blocks that are not constant, 32], four
    2-bit codes each; `bytes`: four uint8 vectors."""

    zeros: torch.Tensor
    lengths: torch.Tensor
    medians: torch.Tensor
    leads: torch.Tensor
    bytes: list[torch.Tensor]
    least: torch.Tensor
    others: int

    def tensors(self) -> list[torch.Tensor]:
        return [self.zeros, self.lengths, self.medians, self.leads, *self.bytes, self.least]

    def values(self, count: int) -> torch.Tensor:
        """Decode to float32[count]."""
        lengths = self.lengths.to(torch.int64)
        rows = places(lengths > 0, len(self.leads))
        lengths = lengths.index_select(0, rows).unsqueeze(1)
        sizes = (lengths + 7) // 8
        leads = torch.stack([(self.leads >> (6 - 2 * k)) & 3 for k in range(4)], 2).view(-1, BLOCK)
        cut = leads.new_zeros(leads.shape, dtype=torch.int64)
        for t, fresh in enumerate(self.bytes):
            is_fresh = (leads <= t) & (sizes > t)
            order = (is_fresh.view(-1).cumsum(0) - 1).view(-1, BLOCK)
            last = torch.where(is_fresh, order, -1).cummax(1).values
            padded = torch.cat([fresh, fresh.new_zeros(1)]).to(torch.int64)
            byte = padded.index_select(0, last.where(last >= 0, len(fresh)).view(-1)).view(-1, BLOCK)
            cut |= torch.where(sizes > t, byte, 0) << (24 - 8 * t)
        bits = (cut << (8 * sizes - lengths)) & 0xFFFFFFFF
        bits = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)
        medians = self.medians.unsqueeze(1)
        values = medians.repeat(1, BLOCK)
        here = medians.index_select(0, rows)
        restored = bits.view(torch.float32)
        values.index_copy_(0, rows, torch.where(here.view(torch.int32) == 0, restored, restored + here))
        others = values.view(-1)[: self.others]
        others = torch.where(self.least.isnan(), others, torch.maximum(others, self.least))
        if not self.zeros.numel():
            return others
        mask = device_bits.unpacked(self.zeros, count)
        return others.new_zeros(count).index_copy_(0, places(mask, self.others), others)


@dataclass(frozen=True)
class DeviceSzx(StoredVector):
    parts: list[Part]
    dtype: torch.dtype
    count: int

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for part in self.parts for tensor in part.tensors()]

    def restore(self) -> torch.Tensor:
        vector = self.parts[0].lengths.new_empty(self.count, dtype=self.dtype)
        for part, to in zip(self.parts, _parts_of(vector), strict=True):
            to.copy_(part.values(to.numel()))
        return vector


def compress(vector: torch.Tensor, bound: float) -> Generator[torch.Tensor, list[Any], DeviceSzx]:
    """Codec coroutine: no element changes by more than `bound`, and zeros stay zeros."""
    parts = _parts_of(vector)
    counts = yield torch.stack([(part != 0).sum() for part in parts])
    numbers = yield torch.cat([_Layout(part, count, bound).counts() for part, count in zip(parts, counts, strict=True)])
    kept = []
    for part, count in zip(parts, counts, strict=True):
        here, numbers = numbers[:5], numbers[5:]
        kept.append(_Layout(part, count, bound).written(here))
    return DeviceSzx(kept, vector.dtype, vector.numel())


def _parts_of(vector: torch.Tensor) -> list[torch.Tensor]:
    return list(vector.split(part_elements(vector) // _SHARE))


class _Layout:
    """Encoding of the `others` nonzero elements of a part."""

    def __init__(self, part: torch.Tensor, others: int, bound: float):
        self._part, self._others = part, others
        x = part.float()
        if others < part.numel():
            x = x.index_select(0, places(part != 0, others))
        self._x = x
        missing = -others % BLOCK
        blocks = (torch.cat([x, x[-1:].expand(missing)]) if missing else x).view(-1, BLOCK)
        self.lengths, self.medians = _lengths(blocks, bound)
        sizes = ((self.lengths + 7) // 8).unsqueeze(1)
        shifts = 8 * sizes - self.lengths.unsqueeze(1)
        medians = self.medians.unsqueeze(1)
        written = torch.where(medians.view(torch.int32) == 0, blocks, blocks - medians)
        self._cut = (written.view(torch.int32).to(torch.int64) & 0xFFFFFFFF) >> shifts
        differences = self._cut.clone()
        differences[:, 1:] ^= self._cut[:, :-1]
        self._leads = (differences < 1 << 24).to(torch.uint8) + (differences < 1 << 16) + (differences < 1 << 8)
        is_there = (self.lengths > 0).unsqueeze(1)
        self._fresh = [(self._leads <= t) & (sizes > t) & is_there for t in range(4)]

    def counts(self) -> torch.Tensor:
        """Number of blocks that are not constant, and of bytes at each position."""
        return torch.stack([(self.lengths > 0).sum(), *(fresh.sum() for fresh in self._fresh)])

    def written(self, counts: list[int]) -> Part:
        """Encode the part. `counts`: the result of `counts` on the host."""
        fresh = []
        for t, count in enumerate(counts[1:]):
            where = places(self._fresh[t].view(-1), count)
            fresh.append(((self._cut.view(-1).index_select(0, where) >> (24 - 8 * t)) & 0xFF).to(torch.uint8))
        leads = self._leads.index_select(0, places(self.lengths > 0, counts[0])).view(-1, BLOCK // 4, 4)
        packed = (leads[..., 0] << 6) | (leads[..., 1] << 4) | (leads[..., 2] << 2) | leads[..., 3]
        zeros = device_bits.packed(self._part != 0) if self._others < self._part.numel() else packed.new_empty(0)
        least = self._x.amin() if self._others else self.medians.new_zeros(())
        return Part(zeros, self.lengths.to(torch.uint8), self.medians, packed, fresh, least, self._others)


def _lengths(blocks: torch.Tensor, bound: float) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 required lengths and float32 medians, by the rule of `szx_kernels._plan`."""
    least, most = blocks.amin(1), blocks.amax(1)
    radius = (most - least) * 0.5
    medians = least + radius
    reach = torch.maximum(most.double() - medians.double(), medians.double() - least.double())
    spread, top = _exponent(reach.float()), _exponent(torch.maximum(least.abs(), most.abs()))
    allowed = math.frexp(bound)[1] - 1 if bound > 0 else -2000
    lengths = (9 + spread - allowed + 1).clamp(min=9)
    rounding = torch.exp2((spread - 24).double()) + torch.exp2((top - 23).double())
    is_plain = (lengths > 32) | (rounding > math.ldexp(1.0, allowed - 1)) | ~radius.isfinite()
    lengths = torch.where(reach <= bound, 0, torch.where(is_plain, 32, lengths))
    lengths = torch.where(radius.isfinite(), lengths, 32)
    return lengths, medians.masked_fill(lengths == 32, 0)


def _exponent(x: torch.Tensor) -> torch.Tensor:
    """Exponents of float32 numbers, at least that of denormals."""
    return (((x.view(torch.int32) >> 23) & 0xFF) - 127).clamp(min=-126).to(torch.int64)
