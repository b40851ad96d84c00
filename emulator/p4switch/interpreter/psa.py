"""psa_switch's packet path (targets/psa_switch/psa_switch.cpp) with the reference engine, for programs of the Portable
Switch Architecture: a packet is deparsed between ingress and egress, too, and what becomes of it is in metadata."""

from __future__ import annotations

from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.interpreter.parser import Parser
from emulator.p4switch.interpreter.path import Interpreter, named
from emulator.p4switch.interpreter.pipeline import Pipeline
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State

NORMAL, NORMAL_UNICAST, NORMAL_MULTICAST, CLONE_I2E, CLONE_E2E, RESUBMIT, RECIRCULATE = range(7)
"""PSA_PacketPath_t (psa.p4)."""
RECIRCULATE_PORT = 0xFFFFFFFA
_IN, _OUT, _PARSER_IN = (
    "psa_ingress_input_metadata.",
    "psa_ingress_output_metadata.",
    "psa_ingress_parser_input_metadata.",
)
_EGRESS_IN, _EGRESS_OUT = "psa_egress_input_metadata.", "psa_egress_output_metadata."
_EGRESS_PARSER_IN = "psa_egress_parser_input_metadata."


class PsaInterpreter(Interpreter):
    """The engine for a PSA program."""

    def _find_blocks(self, program: ir.Program) -> None:
        self.parser, self.egress_parser = (named(program.parsers, f"{end}_parser") for end in ("ingress", "egress"))
        self.ingress_deparser, self.egress_deparser = (
            named(program.deparsers, f"{end}_deparser") for end in ("ingress", "egress")
        )

    def receive(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        packet = Packet(self.program, data, port, self.pool)
        packet.reset_metadata()
        self._enter(packet, port, NORMAL)
        self._guarded(self.ingress, packet)
        return self.poll()

    def ingress(self, packet: Packet) -> bool:
        received, length = packet.data, packet.length
        packet.set_named(_IN + "ingress_timestamp", self.clock())
        Parser(self.parser, packet, self.state, self.primitives).run()
        for name in ("ingress_port", "packet_path"):
            packet.set_named(_IN + name, packet.get_named(_PARSER_IN + name))
        packet.set_named(_IN + "parser_error", packet.parser_error)
        for name in ("class_of_service", "clone", "resubmit", "multicast_group"):
            packet.set_named(_OUT + name, 0)
        packet.set_named(_OUT + "drop", 1)
        Pipeline(packet, self.state, self.primitives).apply(self.ingress_pipeline)
        packet.exit = False
        if packet.get_named(_OUT + "clone"):
            self._clone(packet, _OUT, received, length, CLONE_I2E)
        if packet.get_named(_OUT + "drop"):
            return False
        if packet.get_named(_OUT + "resubmit"):
            self.returned.append(self._again(packet, received, length, 0, RESUBMIT))
            return False
        self.deparser = self.ingress_deparser
        self._deparse(packet)
        service = packet.get_named(_OUT + "class_of_service")
        group = packet.get_named(_OUT + "multicast_group")
        if group:
            self._replicate(packet, group, NORMAL_MULTICAST, service)
            return False
        packet.set_named(_EGRESS_IN + "instance", 0)
        packet.set_named(_EGRESS_IN + "class_of_service", service)
        packet.set_named(_EGRESS_PARSER_IN + "packet_path", NORMAL_UNICAST)
        return self.enqueue(packet.get_named(_OUT + "egress_port"), packet)

    def egress(self, packet: Packet, port: int, priority: int) -> None:
        for header in self.program.headers:
            if not header.is_metadata:
                packet.set_invalid(header.index)
        packet.next_in_stack = [0] * len(packet.next_in_stack)
        packet.set_named(_EGRESS_PARSER_IN + "egress_port", port)
        packet.set_named(_EGRESS_IN + "egress_timestamp", self.clock())
        Parser(self.egress_parser, packet, self.state, self.primitives).run()
        for name in ("egress_port", "packet_path"):
            packet.set_named(_EGRESS_IN + name, packet.get_named(_EGRESS_PARSER_IN + name))
        packet.set_named(_EGRESS_IN + "parser_error", packet.parser_error)
        for name in ("clone", "drop"):
            packet.set_named(_EGRESS_OUT + name, 0)
        Pipeline(packet, self.state, self.primitives).apply(self.egress_pipeline)
        packet.exit = False
        packet.set_named("psa_egress_deparser_input_metadata.egress_port", port)
        self.deparser = self.egress_deparser
        self._deparse(packet)
        if packet.get_named(_EGRESS_OUT + "clone"):
            self._clone(packet, _EGRESS_OUT, packet.data, len(packet.data), CLONE_E2E)
        if packet.get_named(_EGRESS_OUT + "drop"):
            return
        if port == RECIRCULATE_PORT:
            size = len(packet.data)
            self.returned.append(self._again(packet, packet.data, size, RECIRCULATE_PORT, RECIRCULATE))
            return
        self._warn_of_growth(packet)
        self.sent.append((port, packet.output))

    def _enter(self, packet: Packet, port: int, path: int) -> None:
        packet.set_named(_PARSER_IN + "ingress_port", port)
        packet.set_named(_PARSER_IN + "packet_path", path)

    def _again(self, packet: Packet, data: bytes, length: int, port: int, path: int) -> Packet:
        """These bytes, to pass ingress once more."""
        copy = packet.copy_unparsed(data)
        copy.reset_metadata()
        copy.length = copy.ingress_length = length
        self._enter(copy, port, path)
        return copy

    def _clone(self, packet: Packet, output: str, data: bytes, length: int, path: int) -> None:
        """Send these bytes to the target of the session that `output` metadata names."""
        session = self.state.mirroring.sessions.get(packet.get_named(output + "clone_session_id"))
        if session is None:
            return
        clone = packet.copy_unparsed(data)
        clone.reset_metadata()
        clone.length = length
        clone.set_named(_EGRESS_PARSER_IN + "packet_path", path)
        if session.mgid is not None:
            self._replicate(clone, session.mgid, path, 0)
        if session.port is None or not self.enqueue(session.port, clone):
            self._end(clone)

    def _replicate(self, packet: Packet, group: int, path: int, service: int) -> None:
        """Queue a copy for each port of a multicast group."""
        for port, instance in self.state.replication.copies(group) or ():
            packet.set_named(_EGRESS_IN + "class_of_service", service)
            packet.set_named(_EGRESS_IN + "instance", instance)
            packet.set_named(_EGRESS_PARSER_IN + "packet_path", path)
            copy = packet.copy_with_headers()
            if not self.enqueue(port, copy):
                self._end(copy)


def reference(state: State, *settings, stale_fields: bool = False) -> Interpreter:
    """The reference engine for a state's program."""
    kind = PsaInterpreter if state.program.is_psa else Interpreter
    return kind(state, *settings, stale_fields=stale_fields)
