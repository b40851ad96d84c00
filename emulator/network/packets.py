"""Packets on their way. A link wants to know their `length` (bytes, without the framing of a UDP datagram), a switch where
they go: `to` is a host's number or AGGREGATOR.
"""

from __future__ import annotations

import numpy as np

AGGREGATOR = -1


class Packet:
    """A datagram of protocol 2: `data` uint8[length] at `address`, bytes of its own, since the memory that it was made in is
    used again. `job` and `rank` say whose it is: who sent it, or whom it is for."""

    __slots__ = ("address", "data", "job", "length", "rank", "to")

    def __init__(self, data: np.ndarray, job: int, rank: int, to: int = AGGREGATOR):
        self.data = data.copy()
        self.address, self.length = self.data.ctypes.data, len(data)
        self.job, self.rank, self.to = job, rank, to
