"""The reference engine: runs the packet path's functions directly, on packets that are Python objects.

With several packets in progress, BMv2's threads finish them in any order; here the order is that of the packet path."""

from collections import deque

from emulator.p4switch.interpreter.calculations import update
from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.interpreter.packet import FieldPool, Packet
from emulator.p4switch.interpreter.parser import Parser
from emulator.p4switch.interpreter.pipeline import Pipeline
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.packet_path import psa, v1model
from emulator.p4switch.packet_path.engine import EGRESS_DEPARSER, Engine, Operations, Sent, blocks_of
from emulator.p4switch.packet_path.fields import FIELDS, FIRST_REGISTER, REGISTERS
from emulator.p4switch.packet_path.traffic_manager import MAX_PASSES, serve
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State
from emulator.p4switch.traffic import EgressQueues
from switchml import logs
from switchml.errors import PacketError

log = logs.of("switchml.bmv2")

MAX_GROWTH = 512
"""Bytes by which a packet may grow in BMv2 (PacketBuffer); more overwrites memory there. Here there is no limit."""


class Interpreter(Engine, Operations[Packet]):
    """The reference engine. `drop_port`: the egress_spec that drops; `n_priorities`: queues per port; `stale_fields`:
    fields of invalid headers have values of earlier packets, as in BMv2."""

    parser: type[Parser] = Parser
    pipeline: type[Pipeline] = Pipeline
    make_primitives: type[Primitives] = Primitives

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
        self._drop_port, self._n_priorities = drop_port, n_priorities
        self.path = psa if program.is_psa else v1model
        self.blocks = blocks_of(program)
        self.primitives = self.make_primitives(state, drop_port, seed)
        self.queues: EgressQueues[Packet] = EgressQueues(state.queues, state.clock)
        self.pool = FieldPool(program) if stale_fields else None
        self._fields = [program.field(name) for name in FIELDS]
        self._field_lists = {field_list.id: field_list.elements for field_list in program.field_lists}
        self._returned: deque[Packet] = deque()
        self._sent: Sent = []
        self._has_warned = False

    # Frames

    def receive(self, port: int, data: bytes) -> Sent:
        packet = self._new(port, data)
        packet.reset_metadata()
        self.path.receive(self, packet)
        return self.poll()

    def _new(self, port: int, data: bytes) -> Packet:
        return Packet(self.program, data, port, self.pool)

    def poll(self) -> Sent:
        serve(self)
        sent, self._sent = self._sent, []
        return sent

    def next_us(self) -> float | None:
        return self.queues.next_us()

    # The operations of the packet path

    def now(self) -> int:
        return self.state.clock()

    def drop_port(self) -> int:
        return self._drop_port

    def n_priorities(self) -> int:
        return self._n_priorities

    def parse(self, packet: Packet, block: int) -> bool:
        parser = self.blocks[block]
        assert isinstance(parser, ir.Parser)
        self.parser(parser, packet, self.state, self.primitives).run()
        return True

    def run(self, packet: Packet, block: int) -> bool:
        pipeline = self.blocks[block]
        assert isinstance(pipeline, ir.Pipeline)
        try:
            self.pipeline(packet, self.state, self.primitives).apply(pipeline)
        except PacketError as error:
            log.error("Dropping a packet: %s", error)
            return False
        return True

    def deparse(self, packet: Packet, block: int) -> bool:
        deparser = self.blocks[block]
        assert isinstance(deparser, ir.Deparser)
        for checksum in self.program.checksums:
            if checksum.update:
                self.update(checksum, packet)
        on = Expressions(packet, self.state)
        for primitive in deparser.primitives:
            self.primitives.run(primitive, on)
        packet.data = b"".join(packet.emit(header) for header in deparser.order if packet.valid[header])
        packet.data += packet.payload
        if block == EGRESS_DEPARSER:
            self._warn_of_growth(packet)
        return True

    def update(self, checksum: ir.Checksum, packet: Packet) -> bool:
        """Write a checksum. Returns False if its condition is not met."""
        return update(checksum, packet, self.state)

    def _warn_of_growth(self, packet: Packet) -> None:
        """Warn once if simple_switch would crash here."""
        if len(packet.data) > packet.ingress_length + MAX_GROWTH and not self._has_warned:
            self._has_warned = True
            log.warning(
                "A packet of %d bytes grew to %d: simple_switch has room for %d more bytes only",
                packet.ingress_length, len(packet.data), MAX_GROWTH,
            )  # fmt: skip

    def learn(self, packet: Packet) -> None:
        for digest in self.state.digests:
            if digest.list.id == packet.digest:
                digest.add(tuple(packet.get_bits(ref.header, ref.field) for ref in digest.list.elements))

    def get(self, packet: Packet, field: int) -> int:
        if field >= FIRST_REGISTER:
            return int(getattr(packet, REGISTERS[field - FIRST_REGISTER]))
        ref = self._fields[field]
        return 0 if ref is None else packet.get(ref.header, ref.field)

    def set(self, packet: Packet, field: int, value: int) -> None:
        if field >= FIRST_REGISTER:
            setattr(packet, REGISTERS[field - FIRST_REGISTER], value)
            return
        ref = self._fields[field]
        if ref is not None:
            packet.set(ref.header, ref.field, value)

    def keep_fields(self, packet: Packet, source: Packet, field_list: int) -> None:
        packet.reset_metadata()
        packet.copy_fields(source, self._field_lists.get(field_list, ()))

    def reset_metadata(self, packet: Packet) -> None:
        packet.reset_metadata()

    def strip(self, packet: Packet) -> None:
        for header in self.program.headers:
            if not header.is_metadata:
                packet.set_invalid(header.index)
        packet.next_in_stack = [0] * len(packet.next_in_stack)

    def save(self, packet: Packet) -> Packet:
        return packet

    def unparsed(self, aside: Packet) -> Packet:
        return aside.copy_unparsed()

    def duplicate(self, aside: Packet) -> Packet:
        return aside.copy_with_headers()

    def resume(self, aside: Packet) -> None:
        pass

    def end(self, packet: Packet) -> None:
        if self.pool is not None:
            self.pool.give(packet)

    def n_copies(self, group: int) -> int:
        copies = self.state.replication.copies(group)
        if copies is None:
            log.warning("Replication requested for mgid %d, which is not known to the PRE", group)
        self._copies = copies or []
        return len(self._copies)

    def copy_port(self, group: int, number: int) -> int:
        return self._copies[number][0]

    def copy_instance(self, group: int, number: int) -> int:
        return self._copies[number][1]

    def has_session(self, session: int) -> bool:
        return session in self.state.mirroring.sessions

    def session_port(self, session: int) -> int:
        port = self.state.mirroring.sessions[session].port
        return -1 if port is None else port

    def session_group(self, session: int) -> int:
        group = self.state.mirroring.sessions[session].mgid
        return -1 if group is None else group

    def queue_length(self, port: int, priority: int) -> int:
        return self.queues.size(port, priority)

    def push(self, packet: Packet) -> bool:
        return self.queues.push(packet.queue_port, packet.queue_priority, packet)

    def push_copy(self, packet: Packet) -> None:
        copy = self.duplicate(packet)
        if not self.push(copy):
            self.end(copy)

    def next_queued(self) -> Packet | None:
        return self.queues.pop()

    def push_returned(self, packet: Packet) -> None:
        self._returned.append(packet)

    def next_returned(self) -> Packet | None:
        return self._returned.popleft() if self._returned else None

    def send(self, packet: Packet, port: int) -> None:
        self._sent.append((port, packet.output))

    def ingress(self, packet: Packet) -> None:
        self.path.ingress(self, packet)

    def egress(self, packet: Packet) -> None:
        self.path.egress(self, packet)

    def note(self, packet: Packet, note: int, value: int) -> None:
        pass

    def refuse_priority(self) -> None:
        log.error("Priority out of range, dropping packet")

    def drop_waiting(self) -> None:
        log.error("A packet passed more than %d times, dropping it", MAX_PASSES)
        self._returned.clear()
        while self.next_queued():
            pass
