"""A packet during processing: its headers as numbers, its unparsed payload, and the requests of primitives.

One difference from BMv2 is visible to programs: BMv2 leaves the values of an earlier packet in the fields of an invalid
header; here they are 0 when a packet enters, and keep what this packet stored. With a `FieldPool`, it is as in BMv2.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from emulator.p4switch.program import ir
from emulator.p4switch.program.expr import VALID, FieldRef
from emulator.p4switch.values import mask, stored_in_field, two_comp_mod

if TYPE_CHECKING:
    from emulator.p4switch.interpreter.packet_log import PacketTrace


def _zeros(program: ir.Program) -> list[list[int]]:
    return [[0] * len(header.type.fields) for header in program.headers]


class FieldPool:
    """The fields of finished packets, reused last in, first out by new packets with all their values (BMv2's
    phv_source.cpp). If the pool is empty, fields are 0."""

    def __init__(self, program: ir.Program) -> None:
        self._program = program
        self._free: list[list[list[int]]] = []

    def take(self) -> list[list[int]]:
        """values[header][field] for a new packet."""
        return self._free.pop() if self._free else _zeros(self._program)

    def give(self, packet: Packet) -> None:
        """Return a finished packet's fields to the pool."""
        self._free.append(packet.values)


class Packet:
    """Headers: `values[header][field]`, `valid[header]`, `varbit[header]` (bits of its varbit field), `next_in_stack`
    (index of the element that the next extract fills). `valid_fields`: the value of `$valid$` set by a parser; as in
    BMv2, expressions and keys read it until the header becomes valid or invalid by other means.

    Bytes: `data`, as received (or deparsed), and `payload`, the unparsed part.

    The registers of packet_path.fields are attributes of the same names; `truncate_to`: bytes to send, None for all.
    `trace`: its part of the packet log, if there is one."""

    trace: PacketTrace

    def __init__(self, program: ir.Program, data: bytes, received_at: int = 0, pool: FieldPool | None = None) -> None:
        self.program = program
        self.pool = pool
        self.data = self.payload = data
        self.received_at = received_at
        self.ingress_length = self.packet_length = self.start_length = len(data)
        self.queue_port = self.queue_priority = 0
        self.truncate_to: int | None = None
        self.parser_error = program.errors["NoError"]
        self.checksum_error = False
        self.exit = False
        self.clear_requests()
        self.values = _zeros(program) if pool is None else pool.take()
        self.valid = [header.is_metadata for header in program.headers]
        self.valid_fields: dict[int, int] = {}
        self.varbit = [0] * len(program.headers)
        self.next_in_stack = [0] * len(program.stacks)

    def clear_requests(self) -> None:
        """Clear the requests of primitives."""
        self.clone = self.clone_list = self.digest = self.resubmit = self.recirculate = 0

    def copy_with_headers(self) -> Packet:
        """A copy with the same headers and bytes. As in BMv2, it has no requests and is not truncated."""
        other = copy.copy(self)
        if self.pool is None:
            other.values = [list(values) for values in self.values]
        else:
            other.values = self.pool.take()
            for header, values in enumerate(self.values):
                if self.valid[header]:
                    other.values[header][:] = values
        other.valid = list(self.valid)
        other.valid_fields = {header: value for header, value in self.valid_fields.items() if self.valid[header]}
        other.varbit = list(self.varbit)
        other.next_in_stack = list(self.next_in_stack)
        other.truncate_to = None
        other.exit = False
        other.clear_requests()
        return other

    def copy_unparsed(self) -> Packet:
        """A packet with the same bytes and ingress port, unparsed, with all metadata 0, or from the pool."""
        other = Packet(self.program, self.data, self.received_at, self.pool)
        other.ingress_length = self.ingress_length
        return other

    def reset_metadata(self) -> None:
        """Set all metadata to 0."""
        for header in self.program.headers:
            if header.is_metadata:
                self.values[header.index] = [0] * len(header.type.fields)

    @property
    def output(self) -> bytes:
        """The bytes to send, after deparsing."""
        return self.data if self.truncate_to is None else self.data[: self.truncate_to]

    # Fields

    def width(self, header: int, field: int) -> int:
        """Current width of a field in bits."""
        if field == VALID:
            return 1
        described = self.program.headers[header].type.fields[field]
        return self.varbit[header] if described.is_varbit else described.width

    def get(self, header: int, field: int) -> int:
        """A field's value; signed fields may be negative."""
        if field == VALID:
            return self.valid_fields.get(header, int(self.valid[header]))
        return self.values[header][field]

    def set(self, header: int, field: int, value: int) -> None:
        """Store a value into a field, truncated to its width."""
        if field == VALID:
            self.valid_fields[header] = value & 1
            return
        described = self.program.headers[header].type.fields[field]
        self.values[header][field] = stored_in_field(
            value, self.width(header, field), described.signed, described.saturating
        )

    def get_bits(self, header: int, field: int) -> int:
        """A field's bits as on the wire: not negative."""
        return self.get(header, field) & mask(self.width(header, field))

    def copy_fields(self, source: Packet, elements: tuple[Any, ...]) -> None:
        """Copy the fields of a field list from another packet."""
        for ref in elements:
            if isinstance(ref, FieldRef) and ref.field != VALID:
                self.values[ref.header][ref.field] = source.values[ref.header][ref.field]

    # Headers

    def set_valid(self, header: int) -> None:
        """Make a header valid, and all other members of its union invalid."""
        for other in self.program.headers[header].union:
            if self.valid[other]:
                self.set_invalid(other)
        self.valid[header] = True
        self.valid_fields.pop(header, None)

    def set_invalid(self, header: int) -> None:
        """Make a header invalid; its fields keep their values."""
        self.valid[header] = False
        self.valid_fields.pop(header, None)

    def bits(self, header: int) -> int:
        """Bits of a header in the packet."""
        return self.program.headers[header].type.width + self.varbit[header]

    def assign_header(self, target: int, source: int) -> None:
        """Copy fields and validity; of an invalid header only its validity."""
        if not self.valid[source]:
            self.set_invalid(target)
            return
        self.set_valid(target)
        if source in self.valid_fields:
            self.valid_fields[target] = self.valid_fields[source]
        self.varbit[target] = self.varbit[source]
        for field, value in enumerate(self.values[source]):
            self.set(target, field, value)

    def headers_equal(self, left: int, right: int) -> bool:
        """Whether both are valid, of one type, and have equal fields."""
        return (
            self.program.headers[left].type.id == self.program.headers[right].type.id
            and self.valid[left]
            and self.valid[right]
            and self.get(left, VALID) == self.get(right, VALID)
            and self.varbit[left] == self.varbit[right]
            and self.values[left] == self.values[right]
        )

    def swap_headers(self, left: int, right: int) -> None:
        """Swap fields and validity."""
        lists: tuple[list[Any], ...] = (self.values, self.valid, self.varbit)
        for per_header in lists:
            per_header[left], per_header[right] = per_header[right], per_header[left]
        places = {left: right, right: left}
        self.valid_fields = {places.get(header, header): value for header, value in self.valid_fields.items()}

    def fill(self, header: int, bits: int, n_bits: int, varbit: int = 0) -> None:
        """Make a header valid with the fields from the `n_bits`-bit number `bits`, first field first."""
        self.varbit[header] = varbit
        for number, field in enumerate(self.program.headers[header].type.fields):
            width = self.width(header, number)
            n_bits -= width
            value = bits >> n_bits & mask(width)
            self.values[header][number] = two_comp_mod(value, width) if field.signed else value
        self.set_valid(header)

    def emit(self, header: int) -> bytes:
        """The bytes of a header."""
        bits = 0
        for number in range(len(self.values[header])):
            bits = bits << self.width(header, number) | self.get_bits(header, number)
        return bits.to_bytes((self.bits(header) + 7) // 8, "big")

    # Stacks

    def shift_stack(self, headers: tuple[int, ...], n: int) -> None:
        """Move each element n positions up (n > 0) or down; vacated positions become invalid."""
        order = range(len(headers)) if n < 0 else reversed(range(len(headers)))
        for place in order:
            source = place - n
            if 0 <= source < len(headers):
                self.swap_headers(headers[place], headers[source])
        empty = range(min(n, len(headers))) if n > 0 else range(max(len(headers) + n, 0), len(headers))
        for place in empty:
            self.set_invalid(headers[place])
