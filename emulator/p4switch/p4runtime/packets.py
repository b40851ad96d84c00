"""Packet-in and packet-out (section "Packet I/O"): frames on the CPU port begin with the headers that the program marks
with @controller_header, whose fields P4Runtime carries as metadata."""

from __future__ import annotations

from emulator.p4switch.p4runtime.bytestrings import decode, encode
from emulator.p4switch.p4runtime.refusals import refuse
from emulator.p4switch.values import mask, n_bytes
from switchml.control.p4runtime_protos import info, v1

PACKET_IN, PACKET_OUT = "packet_in", "packet_out"


class ControllerHeader:
    """One such header; fields in the order of P4Info, packed without gaps."""

    def __init__(self, name: str, fields: list[tuple[int, str, int]]) -> None:
        self.name = name
        self.fields = fields
        self.width = sum(width for _, _, width in fields)
        self.n_bytes = n_bytes(self.width)

    @classmethod
    def of(cls, p4info: info.P4Info, name: str) -> ControllerHeader:
        """P4Info's header of that name; one without fields if it has none."""
        for item in p4info.controller_packet_metadata:
            if item.preamble.name == name:
                return cls(name, [(part.id, part.name, part.bitwidth) for part in item.metadata])
        return cls(name, [])

    def split(self, frame: bytes) -> v1.PacketIn:
        """A frame as a packet-in. Raises INVALID_ARGUMENT if it is too short."""
        if len(frame) < self.n_bytes:
            raise refuse("INVALID_ARGUMENT", f"{len(frame)} bytes: {self.name} alone has {self.n_bytes}")
        message = v1.PacketIn(payload=frame[self.n_bytes :])
        bits, left = int.from_bytes(frame[: self.n_bytes], "big"), 8 * self.n_bytes
        for number, _, width in self.fields:
            left -= width
            message.metadata.add(metadata_id=number, value=encode(bits >> left & mask(width)))
        return message

    def join(self, message: v1.PacketOut) -> bytes:
        """The frame for a packet-out. Missing fields are 0, as in BMv2's own server. Raises
        INVALID_ARGUMENT or OUT_OF_RANGE."""
        values = {item.metadata_id: item.value for item in message.metadata}
        unknown = set(values) - {number for number, _, _ in self.fields}
        if unknown:
            raise refuse("INVALID_ARGUMENT", f"{self.name} has no metadata with the id {min(unknown)}")
        bits = 0
        for number, name, width in self.fields:
            bits <<= width
            if number in values:
                bits |= decode(values[number], width, f"{self.name}, {name}")
        bits <<= 8 * self.n_bytes - self.width
        return bits.to_bytes(self.n_bytes, "big") + message.payload
