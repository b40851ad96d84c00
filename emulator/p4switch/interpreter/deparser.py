"""The deparser: update checksums, then put the valid headers in front of the payload."""

from __future__ import annotations

from emulator.p4switch.interpreter.calculations import update_checksums
from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State


def deparse(deparser: ir.Deparser, packet: Packet, state: State, primitives: Primitives) -> None:
    """Set `packet.data` to the packet's bytes."""
    update_checksums(packet, state)
    on = Expressions(packet, state)
    for primitive in deparser.primitives:
        primitives.run(primitive, on)
    headers = b"".join(packet.emit(header) for header in deparser.order if packet.valid[header])
    packet.data = headers + packet.payload
