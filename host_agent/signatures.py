"""What a rank's collective is, as far as every rank must have called the same: in words for messages, and as a number
that the ranks compare in the network.

Its seal carries the number (docs/protocol.md, section 11): a round without data that follows the data in their queue.
It travels with them, so it costs a small packet and no round trip, and no rank gets a result before all seals agree.
"""

import zlib
from dataclasses import dataclass

from switchml.protocol import collectives as schemes
from switchml.protocol.collectives import Collective

_FACTOR = 40501
"""No divisor in common with 2^16 - 1: numbers of elements that differ by less than that never have one number."""
_PHRASES = {
    "all_reduce": "an all-reduce of {}",
    "reduce": "a reduce of {} to rank {root}",
    "reduce_scatter": "a reduce-scatter of {}",
    "all_gather": "an all-gather of {}",
    "broadcast": "a broadcast of {} from rank {root}",
    "gather": "a gather of {} to rank {root}",
    "scatter": "a scatter of {} from rank {root}",
    "all_to_all": "an all-to-all of {}",
    "barrier": "a barrier",
}


@dataclass(frozen=True)
class Signature:
    """`numel` elements of `dtype` (one rank's share, where ranks have shares; None where they may differ); `note`: what
    else has to be alike, for people."""

    kind: str
    numel: int | None
    dtype: str
    op: str = "sum"
    root: int = 0
    note: str = ""

    def __str__(self) -> str:
        count = "" if self.numel is None else f"{self.numel:,} "
        op = "" if self.op == "sum" else f" ({self.op})"
        return _PHRASES[self.kind].format(f"{count}{self.dtype}{op}{self.note}", root=self.root)

    @property
    def number(self) -> int:
        """1 to 2^16 - 1."""
        words = f"{self.kind} {self.dtype} {self.op} {self.root} {self.note}"
        return (zlib.crc32(words.encode()) + (self.numel or 0) * _FACTOR) % 0xFFFF + 1

    def seal(self, reach: int) -> Collective:
        """Of a collective of this reach."""
        return schemes.seal(self.number, reach)
