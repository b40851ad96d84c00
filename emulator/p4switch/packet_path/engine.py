"""The interfaces of an engine: `Engine`, which a switch uses, with frames as input and output, and `Operations`, the
packet path's operations on one packet. The interpreter implements both as methods; in the compiled engine, the
operations are kernels of the same names, whose first argument is the address of its plan (engine/kernels.py)."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from emulator.p4switch.program import ir

P = TypeVar("P")
"""A packet: an object in the interpreter, the address of its headers in the compiled engine."""

SLACK = 64
"""Extra bytes after each memory block, for loads that read beyond its end."""

Sent = list[tuple[int, bytes]]
"""(port, frame) of outgoing frames, in order."""


class Block(NamedTuple):
    """A programmable block: its kind, and its name in v1model and PSA programs ("": none)."""

    kind: str
    v1model: str
    psa: str


BLOCKS = (
    Block("parsers", "parser", "ingress_parser"),
    Block("pipelines", "ingress", "ingress"),
    Block("deparsers", "", "ingress_deparser"),
    Block("parsers", "", "egress_parser"),
    Block("pipelines", "egress", "egress"),
    Block("deparsers", "deparser", "egress_deparser"),
)
"""All blocks, in the order in which a packet passes them; a block's number is its index."""
INGRESS_PARSER, INGRESS, INGRESS_DEPARSER, EGRESS_PARSER, EGRESS, EGRESS_DEPARSER = range(len(BLOCKS))


def blocks_of(program: ir.Program) -> list[ir.Parser | ir.Pipeline | ir.Deparser | None]:
    """A program's blocks, by their numbers; None where its architecture has none."""
    names = [block.psa if program.is_psa else block.v1model for block in BLOCKS]
    return [
        next((each for each in getattr(program, block.kind) if each.name == name), None)
        for block, name in zip(BLOCKS, names, strict=True)
    ]


class Record(NamedTuple):
    """An outgoing frame in `Engine.process`: columns of an int64 array. `source` is the number of the
    received frame."""

    port: int
    address: int
    length: int
    source: int


class Engine(ABC):
    """Processes packets with a program. Constructed with (state, drop_port, n_priorities, seed). The switch's lock is
    held during all calls."""

    @abstractmethod
    def receive(self, port: int, data: bytes) -> Sent:
        """Receive a frame; returns the frames that leave now. Raises ProgramAbort, as do the other methods."""

    @abstractmethod
    def poll(self) -> Sent:
        """Frames that leave now without input: those of rate-limited queues."""

    @abstractmethod
    def next_us(self) -> float | None:
        """Time at which `poll` will next return frames, on the switch's clock; None if no packet waits."""

    def process(
        self, ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, send: Callable[[np.ndarray], None]
    ) -> None:
        """Receive a batch of frames, one after the other: int64 arrays of ports, addresses of the bytes, and lengths.
        `send` is called with outgoing frames, in order, as often as there are any: (n, 4) int64 with the columns of
        Record. Outgoing bytes stay valid until `send` returns, and incoming ones must stay valid until this method
        returns.

        The compiled engine processes a batch in one kernel; here, frames are processed one by one."""
        for source, (port, data) in enumerate(frames_at(ports, addresses, lengths)):
            sent = self.receive(port, data)
            if sent:
                bytes_sent, records = as_records(sent, source)
                send(records)
                del bytes_sent  # kept alive until here, as records contain its address


def as_records(sent: Sent, source: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(the bytes of frames, Records with the location of each in them). Kernels may read slightly beyond the last
    frame."""
    data = np.frombuffer(b"".join(frame for _, frame in sent) + bytes(SLACK), dtype=np.uint8)
    lengths = np.array([len(frame) for _, frame in sent], dtype=np.int64)
    ports = np.array([port for port, _ in sent], dtype=np.int64)
    addresses = data.ctypes.data + np.cumsum(lengths) - lengths
    return data, np.column_stack((ports, addresses, lengths, np.full(len(sent), source)))


def frames_at(ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """(port, frame) of frames at memory addresses."""
    for port, address, length in zip(ports.tolist(), addresses.tolist(), lengths.tolist(), strict=True):
        yield port, ctypes.string_at(address, length)


class Operations(Protocol[P]):
    """Operations of an engine that the packet path uses. One packet is processed at a time; others wait in queues, are
    returning to ingress, or are set aside."""

    def now(self) -> int:
        """Time in µs on the switch's clock."""

    def drop_port(self) -> int:
        """The egress_spec of dropped packets."""

    def n_priorities(self) -> int:
        """Number of queues per port."""

    # Blocks

    def parse(self, packet: P, block: int) -> bool:
        """Run a parser. Returns False if the packet must be dropped, which applies to all blocks: because the block
        does not terminate, or because the program aborts the switch."""

    def run(self, packet: P, block: int) -> bool:
        """Run a pipeline of tables and actions."""

    def deparse(self, packet: P, block: int) -> bool:
        """Update checksums and prepend the valid headers to the payload: the result replaces the packet's bytes."""

    def learn(self, packet: P) -> None:
        """Send the digest that the packet requests."""

    # Packets

    def get(self, packet: P, field: int) -> int:
        """A field or register, by its number in `fields`."""

    def set(self, packet: P, field: int, value: int) -> None:
        """Store into a field or register, truncated to its width."""

    def keep_fields(self, packet: P, source: P, field_list: int) -> None:
        """Set the metadata to 0, except for the fields of a list, which are copied from another packet."""

    def reset_metadata(self, packet: P) -> None:
        """Set all metadata to 0."""

    def strip(self, packet: P) -> None:
        """Make all headers invalid, before the packet's bytes are parsed."""

    # Copies of packets

    def save(self, packet: P) -> P:
        """Set the packet aside, to process a copy of it; the result is the argument of `unparsed` and `duplicate`."""

    def unparsed(self, aside: P) -> P:
        """A packet with the same bytes, unparsed. The metadata is 0, or with stale fields that of an earlier packet."""

    def duplicate(self, aside: P) -> P:
        """A copy with the same headers and bytes, but without requests."""

    def resume(self, aside: P) -> None:
        """Resume processing of the packet that was set aside."""

    def end(self, packet: P) -> None:
        """End of a packet that has left or was dropped; copies of it may still be in progress."""

    # Replication

    def n_copies(self, group: int) -> int:
        """Number of copies of a multicast group; 0 if there is no such group."""

    def copy_port(self, group: int, number: int) -> int:
        """Port of a copy."""

    def copy_instance(self, group: int, number: int) -> int:
        """Replication id of a copy."""

    def has_session(self, session: int) -> bool:
        """Whether a mirroring session exists."""

    def session_port(self, session: int) -> int:
        """Port to which a session sends clones, or -1."""

    def session_group(self, session: int) -> int:
        """Multicast group to which a session sends clones, or -1."""

    # Queues

    def queue_length(self, port: int, priority: int) -> int:
        """Number of packets in an egress queue."""

    def push(self, packet: P) -> bool:
        """Append the packet to the egress queue that its registers name. Returns False if the queue is full."""

    def push_copy(self, packet: P) -> None:
        """Append a duplicate of the packet; it is lost if the queue is full."""

    def next_queued(self) -> P | None:
        """The next packet due in the egress queues, or None."""

    def push_returned(self, packet: P) -> None:
        """Return the packet to ingress, before others."""

    def next_returned(self) -> P | None:
        """The next packet that returns to ingress, or None."""

    def send(self, packet: P, port: int) -> None:
        """Send the packet's bytes out of a port."""

    # The stages, which depend on the architecture

    def ingress(self, packet: P) -> None:
        """v1model.ingress or psa.ingress."""

    def egress(self, packet: P) -> None:
        """v1model.egress or psa.egress."""

    # Logging

    def note(self, packet: P, note: int, value: int) -> None:
        """Log an event of packet_path.notes. Implemented only by an engine that writes a packet log."""

    def refuse_priority(self) -> None:
        """Log that a packet is dropped because there is no queue of its priority."""

    def drop_waiting(self) -> None:
        """Drop all waiting packets, as a packet or its copies would loop forever."""
