"""Packets in flight. A link uses their `length` (bytes, without the framing of a UDP datagram), a switch their
destination: `to` is a host's number or AGGREGATOR.
"""

from collections.abc import Iterator, Sequence

import numpy as np

AGGREGATOR = -1


class Packet:
    """A datagram of protocol 2: `data` uint8[length] at `address`, copied, since the source buffer is reused. `job` and
    `rank`: its sender or receiver."""

    __slots__ = ("address", "data", "job", "length", "rank", "to")
    count = 1

    def __init__(self, data: np.ndarray, job: int, rank: int, to: int = AGGREGATOR):
        self.data = data.copy()
        # `ctypes` would create three objects.
        self.address, self.length = self.data.__array_interface__["data"][0], len(data)
        self.job, self.rank, self.to = job, rank, to


class Train:
    """Packets of one job for one receiver sent as a unit, as by UDP segmentation offload: none arrives before the last
    one has left. `framing_bytes`: added to the length for each packet but the first."""

    __slots__ = ("framing_bytes", "length", "packets", "to")

    def __init__(self, packets: Sequence[Packet], framing_bytes: int):
        self.packets, self.framing_bytes, self.to = packets, framing_bytes, packets[0].to
        self.length = sum(packet.length for packet in packets) + (len(packets) - 1) * framing_bytes

    @property
    def count(self) -> int:
        return len(self.packets)


def coupled(packets: Sequence[Packet], most: int, framing_bytes: int) -> Iterator[Packet | Train]:
    """Group packets for one receiver into trains of at most `most`."""
    if most == 1:
        yield from packets
        return
    for first in range(0, len(packets), most):
        yield Train(packets[first : first + most], framing_bytes)
