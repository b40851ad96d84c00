"""simple_switch's packet path, with the reference engine: from a received frame to the frames that leave.

The order of events at the ends of ingress and egress (clone, digest, resubmit, multicast, drop …) is that of
simple_switch.cpp's ingress_thread and egress_thread. Here, there is one thread: packets that are resubmitted or
recirculated are served before the next, and egress follows at once, in the order in which packets were queued."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from emulator.p4switch.interpreter.calculations import update_checksums
from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.interpreter.packet import FieldPool, Packet
from emulator.p4switch.interpreter.parser import Parser
from emulator.p4switch.interpreter.pipeline import Pipeline
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State
from emulator.p4switch.traffic import EgressQueues
from switchml.errors import PacketError

log = logging.getLogger("switchml.bmv2")

NORMAL, INGRESS_CLONE, EGRESS_CLONE, COALESCED, RECIRCULATED, REPLICATED, RESUBMITTED = range(7)
"""Values of standard_metadata.instance_type."""

MAX_GROWTH = 512
"""Bytes by which BMv2 lets a packet grow (PacketBuffer); beyond, it overwrites memory. Here, there is no limit."""

MAX_PASSES = 1 << 16
"""Times that one frame and its copies may pass ingress or egress; the rest is dropped then."""


def named(blocks: Iterable[Any], name: str) -> Any:
    """The block of a program that has this name."""
    return next(block for block in blocks if block.name == name)


class Waiting(NamedTuple):
    """Packets on their way through an engine: in egress queues, to ingress once more, to the ports."""

    queues: EgressQueues
    returned: deque[Packet]
    sent: list[tuple[int, bytes]]


class Interpreter:
    """The engine. `drop_port`: the egress_spec that drops; `n_priorities`: queues of each port; `stale_fields`: as in
    BMv2, fields of invalid headers have values of earlier packets. BMv2's threads end packets in any order where
    several are under way; here that is the order in which this class handles them."""

    def __init__(
        self,
        state: State,
        drop_port: int = 511,
        n_priorities: int = 1,
        seed: int | None = None,
        *,
        stale_fields: bool = False,
    ) -> None:
        self.state = state
        self.program = program = state.program
        self.clock = state.clock
        self.drop_port = drop_port
        self.n_priorities = n_priorities
        self.primitives = Primitives(state, drop_port, seed)
        self.queues = EgressQueues(state.queues, state.clock)
        self._find_blocks(program)
        self.ingress_pipeline, self.egress_pipeline = (named(program.pipelines, end) for end in ("ingress", "egress"))
        self.field_lists = {field_list.id: field_list.elements for field_list in program.field_lists}
        self.returned: deque[Packet] = deque()
        self.sent: list[tuple[int, bytes]] = []
        self.has_warned = False
        self.pool = FieldPool(program) if stale_fields else None

    def _find_blocks(self, program: ir.Program) -> None:
        self.parser, self.deparser = named(program.parsers, "parser"), named(program.deparsers, "deparser")

    def receive(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        """Process a frame; returns (port, frame) for all that leave now, in order."""
        packet = Packet(self.program, data, port, self.pool)
        packet.reset_metadata()
        packet.set_named("standard_metadata.ingress_port", port)
        packet.set_named("standard_metadata.packet_length", len(data))
        packet.set_named("standard_metadata.instance_type", NORMAL)
        packet.set_named("intrinsic_metadata.ingress_global_timestamp", self.clock())
        self._guarded(self.ingress, packet)
        return self.poll()

    def poll(self) -> list[tuple[int, bytes]]:
        """The frames that leave now without anything coming in: those of queues with a rate."""
        n_passes = 0
        while True:
            n_passes += 1
            if n_passes > MAX_PASSES:
                log.error("A packet passed more than %d times, dropping it", MAX_PASSES)
                self.returned.clear()
            if self.returned:
                self._guarded(self.ingress, self.returned.popleft())
            elif (leaving := self.queues.pop()) is not None:
                if n_passes <= MAX_PASSES:
                    self._guarded(self.egress, leaving[2], leaving[0], leaving[1])
            else:
                break
        sent, self.sent = self.sent, []
        return sent

    def next_us(self) -> float | None:
        """When the next packet may leave a queue; None if none waits."""
        return self.queues.next_us()

    @property
    def waiting(self) -> Waiting:
        """Packets in queues, for another engine of the same state to take over."""
        return Waiting(self.queues, self.returned, self.sent)

    @waiting.setter
    def waiting(self, packets: Waiting) -> None:
        self.queues, self.returned, self.sent = packets

    def _guarded(self, stage, packet: Packet, *args: int) -> None:
        """Run a stage, which says whether the packet waits for another one; a program that does not end loses the
        packet, and the switch continues."""
        try:
            if stage(packet, *args):
                return
        except PacketError as error:
            log.error("Dropping a packet: %s", error)
        self._end(packet)

    def _end(self, packet: Packet) -> None:
        if self.pool is not None:
            self.pool.give(packet)

    # Ingress

    def ingress(self, packet: Packet) -> bool:
        """Parse, run the ingress pipeline, and carry out its requests; whether the packet waits in a queue then."""
        length = packet.length
        Parser(self.parser, packet, self.state, self.primitives).run()
        packet.set_named("standard_metadata.parser_error", packet.parser_error)
        packet.set_named("standard_metadata.checksum_error", int(packet.checksum_error))
        Pipeline(packet, self.state, self.primitives).apply(self.ingress_pipeline)
        packet.exit = False
        self._clone_at_ingress(packet, length)
        self._learn(packet)
        if packet.resubmit:
            self.returned.append(self._resubmitted(packet, length))
            return False
        group = packet.get_named("intrinsic_metadata.mcast_grp")
        if group:
            packet.set_named("standard_metadata.instance_type", REPLICATED)
            self.multicast(packet, group)
            return False
        port = packet.get_named("standard_metadata.egress_spec")
        if port == self.drop_port:
            return False
        packet.set_named("standard_metadata.instance_type", NORMAL)
        return self.enqueue(port, packet)

    def _clone_at_ingress(self, packet: Packet, length: int) -> None:
        """The clone is the packet as received, parsed again (with no metadata but the ingress port)."""
        if packet.clone is None:
            return
        (session, field_list), packet.clone = packet.clone, None
        if session not in self.state.mirroring.sessions:
            return
        clone = packet.copy_unparsed(packet.data)
        clone.length = length
        clone.set_named("standard_metadata.ingress_port", packet.ingress_port)
        Parser(self.parser, clone, self.state, self.primitives).run()
        self._take_over(clone, packet, field_list, INGRESS_CLONE)
        self._mirror(clone, session)

    def _take_over(self, copy: Packet, packet: Packet, field_list: int, instance_type: int) -> None:
        """Reset a copy's metadata, except for the fields of a list."""
        copy.reset_metadata()
        copy.copy_fields(packet, self.field_lists.get(field_list, ()))
        copy.set_named("standard_metadata.instance_type", instance_type)

    def _mirror(self, clone: Packet, session_id: int) -> None:
        """Send a clone to its session's target."""
        session = self.state.mirroring.sessions[session_id]
        if session.mgid is not None:
            self.multicast(clone, session.mgid)
        if session.port is None or not self.enqueue(session.port, clone):
            self._end(clone)

    def _learn(self, packet: Packet) -> None:
        for digest in self.state.digests:
            if digest.list.id == packet.digest:
                digest.add(tuple(packet.get_bits(ref.header, ref.field) for ref in digest.list.elements))

    def _resubmitted(self, packet: Packet, length: int) -> Packet:
        """The packet as received, to pass ingress once more."""
        copy = packet.copy_unparsed(packet.data)
        self._take_over(copy, packet, packet.resubmit, RESUBMITTED)
        copy.length = length
        copy.set_named("standard_metadata.packet_length", length)
        return copy

    # Between ingress and egress

    def multicast(self, packet: Packet, group: int) -> None:
        """Queue a copy for each port of a multicast group."""
        copies = self.state.replication.copies(group)
        if copies is None:
            log.warning("Replication requested for mgid %d, which is not known to the PRE", group)
            return
        for port, rid in copies:
            packet.set_named("intrinsic_metadata.egress_rid", rid)
            copy = packet.copy_with_headers()
            if not self.enqueue(port, copy):
                self._end(copy)

    def enqueue(self, port: int, packet: Packet) -> bool:
        """Queue a packet for a port; False if it is dropped."""
        priority = packet.get_named("intrinsic_metadata.priority")
        if priority >= self.n_priorities:
            log.error("Priority out of range, dropping packet")
            return False
        packet.set_named("queueing_metadata.enq_timestamp", self.clock())
        packet.set_named("queueing_metadata.enq_qdepth", self.queues.size(port, priority))
        return self.queues.push(port, priority, packet)

    # Egress

    def egress(self, packet: Packet, port: int, priority: int) -> None:
        """Run the egress pipeline, carry out its requests, deparse, and send."""
        now = self.clock()
        packet.set_named("intrinsic_metadata.egress_global_timestamp", now)
        waited = now - packet.get_named("queueing_metadata.enq_timestamp")
        packet.set_named("queueing_metadata.deq_timedelta", waited)
        packet.set_named("queueing_metadata.deq_qdepth", self.queues.size(port, priority))
        packet.set_named("queueing_metadata.qid", priority)
        packet.set_named("standard_metadata.egress_port", port)
        packet.set_named("standard_metadata.egress_spec", self.drop_port + 1)
        packet.set_named("standard_metadata.packet_length", packet.length)
        Pipeline(packet, self.state, self.primitives).apply(self.egress_pipeline)
        self._clone_at_egress(packet)
        if packet.get_named("standard_metadata.egress_spec") == self.drop_port:
            return
        self._deparse(packet)
        self._warn_of_growth(packet)
        if packet.recirculate:
            self.returned.append(self._recirculated(packet))
            return
        self.sent.append((port, packet.output))

    def _deparse(self, packet: Packet) -> None:
        """Update checksums, then put the valid headers in front of the payload."""
        update_checksums(packet, self.state)
        on = Expressions(packet, self.state)
        for primitive in self.deparser.primitives:
            self.primitives.run(primitive, on)
        packet.data = b"".join(packet.emit(header) for header in self.deparser.order if packet.valid[header])
        packet.data += packet.payload

    def _warn_of_growth(self, packet: Packet) -> None:
        """Warn once that simple_switch would crash here."""
        if len(packet.data) > packet.ingress_length + MAX_GROWTH and not self.has_warned:
            self.has_warned = True
            log.warning(
                "A packet of %d bytes grew to %d: simple_switch has room for %d more bytes only",
                packet.ingress_length, len(packet.data), MAX_GROWTH,
            )  # fmt: skip

    def _clone_at_egress(self, packet: Packet) -> None:
        """The clone has the headers as they are now."""
        if packet.clone is None:
            return
        (session, field_list), packet.clone = packet.clone, None
        if session not in self.state.mirroring.sessions:
            return
        clone = packet.copy_with_headers()
        self._take_over(clone, packet, field_list, EGRESS_CLONE)
        self._mirror(clone, session)

    def _recirculated(self, packet: Packet) -> Packet:
        """The deparsed packet, to pass ingress once more."""
        copy = packet.copy_unparsed(packet.data)
        copy.ingress_length = len(packet.data)
        self._take_over(copy, packet, packet.recirculate, RECIRCULATED)
        copy.set_named("standard_metadata.packet_length", len(packet.data))
        return copy
