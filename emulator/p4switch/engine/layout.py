"""Layout of a packet's headers and metadata in the VM's frame.

A frame is one block of memory. Constants are below its origin, followed by the system cells (SYSTEM), the packet's
headers (PHV), and temporaries. The PHV is zeroed for each packet.

- Metadata is never on the wire: each field has its own 64-bit limbs, least significant first, and can be used directly
  as an operand. A signed field stores its exact value in two's complement (one bit more than its width).
- A header's validity byte: bit 0 is its validity, bit 1 whether `$valid$`, which a parser may set, differs from it.
- A header is stored in wire format. It is followed by a byte for each signed field, 1 if its value is unsigned
  (see values.stored_in_field); a varbit field is stored separately: its width in bits (8 bytes), then its bytes.
"""

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.p4switch.packet_path.fields import REGISTERS
from emulator.p4switch.program import ir
from emulator.p4switch.program.expr import FieldRef


def offsets(kind: str, names: Sequence[str], start: int = 0) -> Any:
    """Offsets of consecutive 64-bit words: a named tuple, which kernels can read."""
    values: Any = [np.int64(start + 8 * i) for i in range(len(names))]
    return namedtuple(kind, names)(*values)


def record(names: Sequence[str]) -> np.ndarray:
    """Such words for Python: an array of one element, with fields of these names."""
    return np.zeros(1, dtype=[(name, np.int64) for name in names])


def views(words: np.ndarray) -> dict[str, np.ndarray]:
    """Each word of a record as an array of one element, which is faster to access than a field of the record."""
    return {name: words[name] for name in words.dtype.names or ()}


SYSTEM = (
    "context", *REGISTERS, "packet", "length", "cursor", "args", "return_pc", "target", "index", "hit", "truncate",
    "now", "bits", "out", "states", "loops",
)  # fmt: skip
"""Names of the system cells, 8 bytes each. context: address of the context (CONTEXT); the packet's registers; packet,
length, cursor: address and bytes of the packet, bytes parsed; args, return_pc: address of the current action's
arguments, and the position where code continues after it; target, index, hit: address of the lookup's target, index of
its entry, and whether an entry matched; truncate: length + 1, or 0; bits: fill of the hash buffer; out: output position
of the deparser; states, loops: counters with limits."""
CELL = offsets("Cell", SYSTEM)
PHV = 8 * 32
"""Offset of the headers, after space for 32 system cells."""

DESCRIPTOR = (
    "valid", "data", "n_bytes", "total", "siblings", "n_siblings", "varbit", "varbit_at", "varbit_max", "flags", "type",
)  # fmt: skip
"""Words of a header's row in the header table: offsets of its validity byte and data, bytes of its fixed fields, bytes
of its whole content, address and number of its union's other members, offset of its varbit field (0: none), the byte of
the fixed fields before which it is inserted, its maximum bytes, offset of the signed fields' flags, id of its type."""
ROW = offsets("Row", DESCRIPTOR)
DESCRIPTOR_BYTES = 8 * len(DESCRIPTOR)

CONTEXT = (
    "code", "headers", "tables", "hash_buffer", "events", "event_at", "event_end", "event_open", "events_lost",
    "random", "run_wide", "run_headers", "run_hash",
)  # fmt: skip
"""Words of the context: addresses of the code, the header table, the table directory, the hash buffer; the event ring
(address, words used, capacity, whether the current event fits, number of lost events); the Mersenne Twister state; the
kernels of the other instruction groups."""
CTX = offsets("Context", CONTEXT)
HASH_BUFFER_BYTES = 1 << 18


def limbs(width: int) -> int:
    """64-bit limbs that hold `width` bits."""
    return max((width + 63) // 64, 1)


def aligned(n: int) -> int:
    return (n + 7) & ~7


@dataclass(frozen=True)
class FieldLocation:
    """Location of a field: in `n_limbs` limbs at `offset`, or, in wire format (`is_wire`), `bit` bits after the byte at
    `offset`. `valid`: offset of its header's validity byte; `flag`: of its sign flag, or None."""

    offset: int
    width: int
    signed: bool
    is_wire: bool
    n_limbs: int = 0
    bit: int = 0
    valid: int = 0
    flag: int | None = None


class Layout:
    """Offsets for one program. Raises Unsupported (lower_code) for programs that this layout can't represent."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.locations: dict[FieldRef, FieldLocation] = {}
        n = len(program.headers)
        self.data, self.n_bytes, self.total, self.flags, self.varbit = ([0] * n for _ in range(5))
        self.valid = [PHV + i for i in range(n)]
        at = aligned(PHV + n)
        self.next: list[int] = [at + 8 * i for i in range(len(program.stacks))]
        at += 8 * len(program.stacks)
        metadata = at
        for header in program.headers:
            if header.is_metadata:
                at = self._metadata(header, at)
        self.metadata = (metadata, at)
        for header in program.headers:
            if not header.is_metadata:
                at = self._wire(header, at)
        self.phv_end = at
        self.temps = at + 64  # loading a field may read 8 bytes beyond it

    def _metadata(self, header: ir.Header, at: int) -> int:
        self.data[header.index] = at
        for i, field in enumerate(header.type.fields):
            if field.is_varbit:
                self.varbit[header.index] = at
                at += 8 + aligned(self.varbit_max(header.type))
                continue
            n = limbs(field.width + (1 if field.signed else 0))
            ref = FieldRef(header.index, i)
            self.locations[ref] = FieldLocation(at, field.width, field.signed, False, n)
            at += 8 * n
        self.total[header.index] = at - self.data[header.index]
        return at

    def _wire(self, header: ir.Header, at: int) -> int:
        kind, index = header.type, header.index
        self.data[index] = at
        self.n_bytes[index] = (kind.width + 7) // 8
        flags = at + aligned(self.n_bytes[index])
        self.flags[index] = flags
        n_signed = 0
        for i, field in enumerate(kind.fields):
            if field.is_varbit:
                continue
            bit = self.wire_bit(kind, i)
            flag = None
            if field.signed:
                flag, n_signed = flags + n_signed, n_signed + 1
            location = FieldLocation(
                at + bit // 8, field.width, field.signed, True, limbs(field.width), bit % 8, self.valid[index], flag
            )
            self.locations[FieldRef(index, i)] = location
        end = flags + aligned(n_signed)
        if kind.varbit is not None:
            self.varbit[index] = end
            end += 8 + aligned(self.varbit_max(kind))
        self.total[index] = end - at
        return end

    @staticmethod
    def wire_bit(kind: ir.HeaderType, i: int) -> int:
        """Offset of a field in bits, counting fixed-width fields only."""
        return sum(field.width for field in kind.fields[:i] if not field.is_varbit)

    @staticmethod
    def varbit_max(kind: ir.HeaderType) -> int:
        """Maximum bytes of the varbit field."""
        assert kind.varbit is not None
        return (kind.fields[kind.varbit].width + 7) // 8

    def sign_flag(self, kind: ir.HeaderType, i: int) -> int:
        """Number of a signed field among the signed fields."""
        return sum(field.signed for field in kind.fields[:i] if not field.is_varbit)
