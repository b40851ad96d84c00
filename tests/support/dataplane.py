"""Workers' sockets in front of a software aggregator's data side.

Waiting for packets does not depend on a clock. `Marker` is a job of one worker on the same data plane: packets are
handled in the order in which they arrive, so when the marker's result is back, everything that was sent before it has
been handled, and a socket without a packet by then will not receive one.
"""

from __future__ import annotations

import socket
import struct

import numpy as np

from switchml.aggregator.software import SoftwareDataplane
from switchml.control.dataplane import JobSpec
from switchml.protocol.packet import CONTRIBUTION
from tests.support.packets import V2Packet

DEADLINE_S = 100.0


def address_of(group: int, rank: int) -> str:
    """An address for each worker of each job: 127.0.group.x has room for 256 ranks in two groups of its own."""
    return f"127.{group}.{rank // 250}.{1 + rank % 250}"


def drain(sock: socket.socket) -> list[tuple[bytes, tuple[str, int]]]:
    """Every datagram in the socket's buffer, with its sender."""
    datagrams = []
    sock.setblocking(False)
    try:
        while True:
            datagrams.append(sock.recvfrom(2048))
    except BlockingIOError:
        return datagrams
    finally:
        sock.settimeout(DEADLINE_S)


class Marker:
    """A job of one worker with one slot; `pass_through()` returns when all that was sent before has been handled."""

    def __init__(self, dataplane: SoftwareDataplane, bind, job_id: int = 9_999_999):
        self.sock, self.to, self.seq = bind("127.200.0.1"), dataplane.address, 0
        dataplane.start_job(JobSpec(job_id, 2, 1, 1, 256, (self.sock.getsockname(),), job_tag=1))

    def pass_through(self) -> None:
        packet = V2Packet(CONTRIBUTION, self.seq, 1, 0, 0, 0, np.zeros(64, np.int32))
        self.sock.sendto(packet.pack(), self.to)
        assert struct.unpack_from(">I", self.sock.recv(2048), 2) == (self.seq,)
        self.seq += 1


class Workers:
    """The sockets of one v2 job, and its job."""

    def __init__(
        self, dataplane, bind, job_id: int, workers: int, *, slots: int = 16, payload_bytes: int = 256,
        job_tag: int | None = None, isn: int = 0,
    ):  # fmt: skip
        self.sockets = [bind(address_of(job_id, rank)) for rank in range(workers)]
        self.to, self.slots, self.isn, self.lanes = dataplane.address, slots, isn, payload_bytes // 4
        self.job_tag = 1000 + job_id if job_tag is None else job_tag
        self.spec = JobSpec(
            job_id, 2, workers, slots, payload_bytes, tuple(s.getsockname() for s in self.sockets), self.job_tag, isn
        )
        dataplane.start_job(self.spec)

    def packet(
        self, round_: int, slot: int, values, *, kind: int = CONTRIBUTION, r: bool = False, used: int = 0
    ) -> bytes:
        seq = (self.isn + round_ * self.slots + slot) % 2**32
        return V2Packet(kind, seq, self.job_tag, 0, used, 0, np.asarray(values, np.int32), r=r).pack()

    def send(self, rank: int, data: bytes) -> None:
        self.sockets[rank].sendto(data, self.to)
