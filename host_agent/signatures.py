"""Signature of a rank's collective, which every rank must have called alike: as text for messages, and as a number that
the ranks compare in the network.

The number is carried by a seal (docs/protocol.md, section 11): a round without data that follows the data in their
queue. It is sent along with them, so it costs a small packet and no round trip, and no rank gets a result before all
seals agree.
"""

import zlib
from dataclasses import dataclass

from switchml.protocol import collectives as schemes
from switchml.protocol.collectives import Collective

_FACTOR = 40501
"""Coprime to 2^16 - 1: element counts that differ by less than that never have the same number."""
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
    """`numel` elements of `dtype` (one rank's share in collectives with shares; None if it may differ between ranks);
    `note`: further properties that must be equal, human-readable."""

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
        """Number of the signature, 1 to 2^16 - 1."""
        words = f"{self.kind} {self.dtype} {self.op} {self.root} {self.note}"
        return (zlib.crc32(words.encode()) + (self.numel or 0) * _FACTOR) % 0xFFFF + 1

    def seal(self, reach: int) -> Collective:
        """Seal of a collective with this reach."""
        return schemes.seal(self.number, reach)
