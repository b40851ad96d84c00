"""What an engine is: `Engine` as a switch sees it, frames in and frames out, and `Operations`, what the packet path
does with one packet. The interpreter has both as methods; of the compiled engine, the operations are kernels of the
same names, whose first argument is the address of its plan (engine/kernels.py)."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from emulator.p4switch.program import ir

P = TypeVar("P")
"""A packet: an object of the interpreter, the address of its headers in the compiled engine."""

SLACK = 64
"""Bytes behind each block of memory, for loads that reach beyond it."""

Sent = list[tuple[int, bytes]]
"""(port, frame) of frames that leave, in order."""


class Block(NamedTuple):
    """A programmable block: its kind, and its name in v1model's and in PSA's programs ("": there is none)."""

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
"""All blocks, in the order in which a packet passes them; their numbers are these."""
INGRESS_PARSER, INGRESS, INGRESS_DEPARSER, EGRESS_PARSER, EGRESS, EGRESS_DEPARSER = range(len(BLOCKS))


def blocks_of(program: ir.Program) -> list[ir.Parser | ir.Pipeline | ir.Deparser | None]:
    """A program's blocks, by their numbers; None where its architecture has none."""
    names = [block.psa if program.is_psa else block.v1model for block in BLOCKS]
    return [
        next((each for each in getattr(program, block.kind) if each.name == name), None)
        for block, name in zip(BLOCKS, names, strict=True)
    ]


class Record(NamedTuple):
    """A frame that leaves, as `Engine.process` describes it: columns of an int64 array. `source` is the number of the
    frame that came in."""

    port: int
    address: int
    length: int
    source: int


class Engine(ABC):
    """What moves packets through a program. Made from (state, drop_port, n_priorities, seed). The switch's lock is held
    during all calls."""

    @abstractmethod
    def receive(self, port: int, data: bytes) -> Sent:
        """Take a frame in; returns what leaves now. Raises ProgramAbort, also the other methods."""

    @abstractmethod
    def poll(self) -> Sent:
        """The frames that leave now without anything coming in: those of queues with a rate."""

    @abstractmethod
    def next_us(self) -> float | None:
        """When `poll` will next return something, on the switch's clock; None if nothing waits."""

    def process(
        self, ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, send: Callable[[np.ndarray], None]
    ) -> None:
        """Take a batch of frames in, one after the other: int64 arrays of ports, addresses of the bytes, and lengths.
        `send` is called with what leaves, in order, as often as there is something: (n, 4) int64, whose columns Record
        names. The bytes stay at their addresses until it returns, and those that came in until this does.

        The compiled engine keeps a batch in one kernel; here, frames pass one by one."""
        for source, (port, data) in enumerate(frames_at(ports, addresses, lengths)):
            sent = self.receive(port, data)
            if sent:
                bytes_sent, records = as_records(sent, source)
                send(records)
                del bytes_sent  # until now, records hold its address


def as_records(sent: Sent, source: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(the bytes of frames, Records that say where each lies in them). Kernels may read a bit beyond the last one."""
    data = np.frombuffer(b"".join(frame for _, frame in sent) + bytes(SLACK), dtype=np.uint8)
    lengths = np.array([len(frame) for _, frame in sent], dtype=np.int64)
    ports = np.array([port for port, _ in sent], dtype=np.int64)
    addresses = data.ctypes.data + np.cumsum(lengths) - lengths
    return data, np.column_stack((ports, addresses, lengths, np.full(len(sent), source)))


def frames_at(ports: np.ndarray, addresses: np.ndarray, lengths: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """(port, frame) of frames that lie somewhere in memory."""
    for port, address, length in zip(ports.tolist(), addresses.tolist(), lengths.tolist(), strict=True):
        yield port, ctypes.string_at(address, length)


class Operations(Protocol[P]):
    """What the packet path asks of an engine. One packet at a time is worked on; others wait in queues, are on their
    way back to ingress, or are set aside."""

    def now(self) -> int:
        """µs on the switch's clock."""

    def drop_port(self) -> int:
        """The egress_spec of packets to drop."""

    def n_priorities(self) -> int:
        """Queues of each port."""

    # Blocks

    def parse(self, packet: P, block: int) -> bool:
        """Run a parser; False if the packet is to be dropped, as for all blocks, because the block does not end, or
        because the program aborts the switch."""

    def run(self, packet: P, block: int) -> bool:
        """Run a pipeline of tables and actions."""

    def deparse(self, packet: P, block: int) -> bool:
        """Update checksums and put the valid headers before the payload: these are the packet's bytes from now on."""

    def learn(self, packet: P) -> None:
        """Send the digest that the packet requests."""

    # A packet

    def get(self, packet: P, field: int) -> int:
        """A field or register, by its number in `fields`."""

    def set(self, packet: P, field: int, value: int) -> None:
        """Store what fits the field."""

    def keep_fields(self, packet: P, source: P, field_list: int) -> None:
        """Set the metadata to 0, except for the fields of a list, which come from another packet."""

    def reset_metadata(self, packet: P) -> None:
        """Set all metadata to 0."""

    def strip(self, packet: P) -> None:
        """Make all headers invalid: the packet's bytes are about to be parsed."""

    # More packets

    def set_aside(self, packet: P) -> P:
        """Put the packet aside, to work on a copy of it; what `unparsed` and `duplicate` take."""

    def unparsed(self, aside: P) -> P:
        """A packet of the same bytes, of which nothing is parsed. The metadata is 0, or with stale fields that of an
        earlier packet."""

    def duplicate(self, aside: P) -> P:
        """A copy with the same headers and bytes, but without requests."""

    def take_back(self, aside: P) -> None:
        """Work on the packet that was set aside, again."""

    def end(self, packet: P) -> None:
        """The packet has left, or was dropped; copies of it may be under way."""

    # Replication

    def n_copies(self, group: int) -> int:
        """How many copies a multicast group makes; 0 if there is no such group."""

    def copy_port(self, group: int, number: int) -> int:
        """The port of one of them."""

    def copy_instance(self, group: int, number: int) -> int:
        """Its replication id."""

    def has_session(self, session: int) -> bool:
        """Whether there is a mirroring session."""

    def session_port(self, session: int) -> int:
        """The port to which it sends clones, or -1."""

    def session_group(self, session: int) -> int:
        """The multicast group to which it sends clones, or -1."""

    # Queues

    def queue_length(self, port: int, priority: int) -> int:
        """Packets that wait in an egress queue."""

    def push(self, packet: P) -> bool:
        """Append the packet to the egress queue that its registers name; False if there is no room."""

    def push_copy(self, packet: P) -> None:
        """Append a duplicate; it is lost if there is no room."""

    def next_queued(self) -> P | None:
        """The next packet whose turn it is in the egress queues."""

    def push_returned(self, packet: P) -> None:
        """Let the packet pass ingress once more, before others do."""

    def next_returned(self) -> P | None:
        """The next packet that passes ingress once more."""

    def send(self, packet: P, port: int) -> None:
        """Let the packet's bytes leave by a port."""

    # The stages, which depend on the architecture

    def ingress(self, packet: P) -> None:
        """v1model.ingress or psa.ingress."""

    def egress(self, packet: P) -> None:
        """v1model.egress or psa.egress."""

    # What the log says

    def note(self, packet: P, note: int, value: int) -> None:
        """Something of packet_path.notes happens to a packet. Only an engine that writes a packet log does anything."""

    def refuse_priority(self) -> None:
        """A packet is dropped because there is no queue of its priority."""

    def drop_waiting(self) -> None:
        """Drop all that waits: a packet or its copies would go round forever."""
