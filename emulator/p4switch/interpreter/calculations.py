"""Calculations over a packet: the input bytes of a hash or checksum, and verification and update of checksums."""

from emulator.p4switch.hashes import csum16
from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.program import ir
from emulator.p4switch.program.expr import Const, FieldRef
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask


def input_bytes(calculation: ir.Calculation, packet: Packet) -> bytes:
    """Concatenate the inputs bit by bit, padded at the end to whole bytes; then the payload, if it is an input. Invalid
    headers are skipped."""
    bits = n_bits = 0
    payload = b""
    for item in calculation.inputs:
        if item.value is None:
            payload = packet.payload
        elif isinstance(item.value, Const):
            bits, n_bits = bits << item.width | item.value.value & mask(item.width), n_bits + item.width
        elif packet.valid[item.value.header]:
            if isinstance(item.value, FieldRef):
                width = packet.width(item.value.header, item.value.field)
                value = packet.get_bits(item.value.header, item.value.field)
            else:
                data = packet.emit(item.value.header)
                width, value = 8 * len(data), int.from_bytes(data, "big")
            bits, n_bits = bits << width | value, n_bits + width
    padding = -n_bits % 8
    return (bits << padding).to_bytes((n_bits + padding) // 8, "big") + payload


def compute(index: int, packet: Packet, state: State) -> int:
    """Result of a calculation of the program, by its index."""
    return state.hashes[index](input_bytes(state.program.calculations[index], packet)) & mask(64)


def _ipv4(checksum: ir.Checksum, packet: Packet) -> int:
    """The built-in checksum: over the target's header with the target set to 0."""
    header, field = checksum.target.header, checksum.target.field
    value, packet.values[header][field] = packet.values[header][field], 0
    result = csum16(packet.emit(header))
    packet.values[header][field] = value
    return result


def _value(checksum: ir.Checksum, packet: Packet, state: State) -> int:
    if checksum.calculation is None:
        return _ipv4(checksum, packet)
    return compute(checksum.calculation, packet, state)


def _applies(checksum: ir.Checksum, packet: Packet, state: State) -> bool:
    return checksum.condition is None or bool(Expressions(packet, state).value(checksum.condition))


def verify(checksum: ir.Checksum, packet: Packet, state: State) -> tuple[int, int] | None:
    """(computed checksum, checksum in the packet); None if its header is invalid or its condition is not met."""
    target = checksum.target
    if not packet.valid[target.header] or not _applies(checksum, packet, state):
        return None
    return _value(checksum, packet, state), packet.get_bits(target.header, target.field)


def update(checksum: ir.Checksum, packet: Packet, state: State) -> bool:
    """Write a checksum. Returns False if its condition is not met."""
    if not _applies(checksum, packet, state):
        return False
    if checksum.calculation is not None or packet.valid[checksum.target.header]:
        packet.set(checksum.target.header, checksum.target.field, _value(checksum, packet, state))
    return True
