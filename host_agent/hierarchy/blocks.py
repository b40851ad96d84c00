"""An all-reduce in two levels, and the blocks in which it passes through the hosts' memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from host_agent import tensors
from host_agent.calls import Call
from host_agent.hierarchy import memory as memories
from host_agent.hierarchy.memory import BLOCK_BYTES
from switchml.runtime.memory import i32_at, i64_at


@dataclass
class NodeCall(Call):
    """An all-reduce in two levels. `digest`: of what all ranks must have alike."""

    digest: int = field(default=0, init=False)
    misfits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        request, blocks = self.request, self.sparse.blocks
        text = f"{request.dtype} {request.numel} {request.wire} {self.sparse.mode} {blocks.block} {blocks.threshold}"
        self.digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")

    @property
    def item_bytes(self) -> int:
        return tensors.ITEM_BYTES[self.request.dtype]

    @property
    def kind(self) -> int:
        return memories.KINDS[self.request.dtype]

    def blocks(self) -> Iterator[Block]:
        most, numel = BLOCK_BYTES // self.item_bytes, self.request.numel
        for first in range(0, numel, most):
            count = min(most, numel - first)
            yield Block(self, first, count, is_last=first + count == numel)


@dataclass
class Block:
    """Elements [first, first + count) of a call."""

    call: NodeCall
    first: int
    count: int
    is_last: bool
    results: list[BaseException | None] = field(default_factory=list)
    """The leader's: outcome of its all-reduce over the hosts, once it is there."""

    @property
    def kind(self) -> int:
        return self.call.kind

    @property
    def is_integer(self) -> bool:
        return self.kind >= memories.INT32

    @property
    def nbytes(self) -> int:
        return self.count * self.call.item_bytes

    def address(self, base: int) -> int:
        """Of the block in a tensor at `base`."""
        return base + self.first * self.call.item_bytes

    def overflowed(self, result: int) -> bool:
        """Whether the sum of some host has overflowed: the element behind the block at address `result` says."""
        longs = i32_at if self.kind == memories.INT32 else i64_at
        return bool(longs(result, self.count + 1)[self.count])
