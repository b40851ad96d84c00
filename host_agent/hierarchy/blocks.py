"""Two-level all-reduces, and the blocks in which they pass through the hosts' memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from host_agent import tensors
from host_agent.calls import OnDone, PendingCall, Request
from host_agent.hierarchy import memory as memories
from host_agent.hierarchy.memory import BLOCK_BYTES, HostMemory
from switchml.runtime.memory import i32_at, i64_at


@dataclass
class NodeCall(PendingCall):
    """A two-level all-reduce. `digest`: hash of the properties that must be equal on all ranks."""

    digest: int = field(default=0, init=False)
    misfits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        request, blocks = self.request, self.sparse.blocks
        text = f"{request.signature} {request.wire} {self.sparse.mode} {blocks.block} {blocks.threshold}"
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
    awaited: int = 0
    """On the leader: number of its agent's requests for this block."""
    results: list[BaseException | None] = field(default_factory=list)
    """Outcomes of these requests so far."""

    @property
    def kind(self) -> int:
        return self.call.kind

    @property
    def is_integer(self) -> bool:
        return self.kind in (memories.INT32, memories.INT64)

    @property
    def nbytes(self) -> int:
        return self.count * self.call.item_bytes

    def address(self, base: int) -> int:
        """Address of the block in a tensor at `base`."""
        return base + self.first * self.call.item_bytes

    def copy_in(self, memory: HostMemory, slot: int) -> None:
        """Copy this rank's input to the host's memory."""
        memory.copy_in(slot, self.address(self.call.request.source), self.nbytes)

    def add_up(self, memory: HostMemory, slot: int) -> bool:
        """Sum this rank's share of all ranks' inputs; returns whether integers overflowed."""
        return memory.sum_share(slot, self.kind, self.count)

    def requests(self, result: int, done: OnDone, keep: object) -> list[Request]:
        """The leader's requests over the hosts for the sums at address `result`, in place. Integer sums include the
        overflow element that follows them."""
        request, count = self.call.request, self.count + self.is_integer
        sparse, wire = self.call.sparse, request.wire
        where = (result, result, count, request.dtype, "sum", done, None, keep, sparse, wire)
        return [Request(*where, called=request.signature)]

    def copy_out(self, memory: HostMemory, slot: int) -> None:
        """Copy this rank's result to its target."""
        request, divisor = self.call.request, self.call.divisor
        memory.copy_out(slot, self.kind, self.address(request.target), self.count, divisor)

    def overflowed(self, result: int) -> bool:
        """Whether the sum of some host has overflowed, according to the element after the block at address `result`."""
        longs = i32_at if self.kind == memories.INT32 else i64_at
        return bool(longs(result, self.count + 1)[self.count])
