"""Two-level collectives other than sum all-reduces: the input that a rank copies to its host's memory, the leader's
operation over the hosts, and the part of the result that a rank copies out.

If each rank has a share of the tensor, a block has the same piece of every share, host by host, in the order of
`RankLayout`. So the pieces of a host are adjacent, and one collective over the hosts moves them. Input that is not
summed is copied straight to the result, without a copy in the inputs. Integer sums are all-reduces, whose overflows are
exact.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from host_agent.calls import OnDone, Request
from host_agent.collectives import KINDS, RAW
from host_agent.hierarchy import memory as memories
from host_agent.hierarchy.blocks import Block, NodeCall
from host_agent.hierarchy.memory import BLOCK_BYTES, HostMemory
from switchml.protocol import collectives as schemes
from switchml.protocol.collectives import Collective
from switchml.protocol.packet import OP_SUM, REACH_ALL, REACH_OTHERS, REACH_ROOT

FIRST_KIND = 8
"""Kind of KINDS[0] in a slot's record; lower numbers are kinds of sums."""
_GRAIN = 64
"""A rank's piece of a block is a multiple of this number of elements, except for the last."""


@dataclass(frozen=True)
class RankLayout:
    """This rank, and the ranks of each host."""

    rank: int
    hosts: tuple[tuple[int, ...], ...]

    @cached_property
    def position(self) -> tuple[int, ...]:
        """Position of each rank's piece in a block, counted in pieces."""
        order = [rank for ranks in self.hosts for rank in ranks]
        return tuple(order.index(rank) for rank in range(len(order)))

    @cached_property
    def host_of(self) -> dict[int, int]:
        return {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}

    @cached_property
    def is_even(self) -> bool:
        """Whether every host has the same number of ranks."""
        return len({len(ranks) for ranks in self.hosts}) == 1


@dataclass
class NodeCollectiveCall(NodeCall):
    """A request for a two-level collective."""

    layout: RankLayout = field(kw_only=True)

    def __post_init__(self) -> None:
        request, scheme = self.request, self.scheme
        text = f"{request.signature} {request.dtype} {request.op} {scheme.op} {scheme.root} {scheme.mark}"
        self.digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")

    @property
    def scheme(self) -> Collective:
        assert self.request.collective is not None
        return self.request.collective

    @property
    def item_bytes(self) -> int:
        return 1 if self.request.dtype == RAW else super().item_bytes

    @property
    def kind(self) -> int:
        return FIRST_KIND + KINDS.index(self.scheme.kind)

    @property
    def pieces(self) -> int:
        """Number of pieces of a block."""
        return max(self.scheme.shares, 1)

    def blocks(self) -> Iterator[Block]:
        most, numel = BLOCK_BYTES // self.item_bytes // self.pieces // _GRAIN * _GRAIN, self.request.numel
        for first in range(0, max(numel, 1), most):  # a barrier has one block without elements
            count = min(most, numel - first)
            yield CollectiveBlock(self, first, count, is_last=first + count == numel)


@dataclass
class CollectiveBlock(Block):
    """Elements [first, first + count) of a call, or of every rank's share."""

    call: NodeCollectiveCall

    @property
    def is_integer(self) -> bool:
        return False

    def copy_in(self, memory: HostMemory, slot: int) -> None:
        scheme, source, me = self.call.scheme, self.call.request.source, self.call.layout.rank
        if scheme.reach == REACH_OTHERS:
            if scheme.shares:
                memory.put(slot, self._at(me), self.address(source), self.nbytes)
            elif me == scheme.root:
                memory.put(slot, 0, self.address(source), self.nbytes)
        elif scheme.shares:
            for rank in range(scheme.shares):
                memory.copy_in(slot, self.address(source + rank * scheme.source_step), self.nbytes, self._at(rank))
        else:
            memory.copy_in(slot, self.address(source), self.nbytes)

    def add_up(self, memory: HostMemory, slot: int) -> bool:
        scheme, count = self.call.scheme, self.count * self.call.pieces
        if scheme.reach == REACH_OTHERS or not count:
            pass
        elif scheme.op == OP_SUM:
            memory.sum_share(slot, memories.KINDS[self.call.request.dtype], count)
        else:
            memory.combine_share(slot, scheme.op, count)
        return False

    def requests(self, result: int, done: OnDone, keep: object) -> list[Request]:
        scheme, layout = self.call.scheme, self.call.layout
        hosts, mine = layout.hosts, layout.host_of[layout.rank]
        gathers, mark = scheme.reach == REACH_OTHERS, scheme.mark

        def one(source: int, target: int, ranks: int, collective: Collective) -> Request:
            request = Request(source, target, ranks * self.count, self.call.request.dtype, "sum", done, keep=keep)
            return replace(request, collective=collective, called=self.call.request.signature)

        if not scheme.shares:
            root = scheme.root if scheme.seals >= 0 else layout.host_of[scheme.root]
            return [one(result, result, 1, replace(scheme, root=root))]
        if not layout.is_even:  # one collective per host
            each = []
            for host, ranks in enumerate(hosts):
                at = result + self._at(ranks[0])
                of_host = schemes.broadcast(host, mark) if gathers else schemes.reduce(host, scheme.op, mark)
                each.append(one(at, at, len(ranks), of_host))
            return each
        share, own = len(hosts[0]), result + self._at(hosts[mine][0])
        if gathers:
            return [one(own, result, share, schemes.all_gather(len(hosts), share * self.nbytes, mark))]
        scatter = schemes.reduce_scatter(len(hosts), share * self.nbytes, scheme.op, mark)
        return [one(result, own, share, scatter)]

    def copy_out(self, memory: HostMemory, slot: int) -> None:
        scheme, target, me = self.call.scheme, self.call.request.target, self.call.layout.rank
        if scheme.shares and scheme.reach == REACH_OTHERS:
            for rank in range(scheme.shares):
                if rank != me:  # this rank's own share is there already
                    memory.get(slot, self._at(rank), self.address(target + rank * scheme.target_step), self.nbytes)
        elif scheme.reach == REACH_ALL or (scheme.reach == REACH_ROOT) == bool(scheme.shares or scheme.root == me):
            at, divisor = self._at(me) if scheme.shares else 0, self.call.divisor
            if divisor == 1:
                memory.get(slot, at, self.address(target), self.nbytes)
            else:
                kind = memories.KINDS[self.call.request.dtype]
                memory.copy_out(slot, kind, self.address(target), self.count, divisor, at)

    def _at(self, rank: int) -> int:
        """Offset in bytes of a rank's piece."""
        return self.call.layout.position[rank] * self.nbytes
