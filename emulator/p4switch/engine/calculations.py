"""Lowering of calculations (hashes, checksums): inputs are appended bit by bit to the hash buffer, then one instruction
hashes it."""

from collections.abc import Callable

import numpy as np

from emulator.p4switch import hashes
from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.code import Label, Unsupported
from emulator.p4switch.engine.expressions import Expressions, Part
from emulator.p4switch.engine.intervals import Cell
from emulator.p4switch.engine.layout import CELL
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.values import mask

_KINDS = {
    "csum16": o.CSUM16, "cksum16": o.CSUM16, "xor16": o.XOR16, "xor32": o.XOR32, "identity": o.IDENTITY,
    "xxh64": o.XXH64, "bmv2_hash": o.XXH64, "hash_ex": o.FNV, "toeplitz": o.TOEPLITZ,
}  # fmt: skip


def _is_valid(header: int) -> e.Expr:
    return e.Op("valid", (e.HeaderRef(header),))


class HashParameters:
    """Operands of HASH for one calculation, in `words`: width, initial, final xor, whether data and remainder are
    reflected, address of the CRC's table, address of Toeplitz's key and its number of 32-bit words."""

    def __init__(self, function: hashes.Hash) -> None:
        self.function = function
        self.words = np.zeros(8, dtype=np.int64)
        self.version = -1
        self.refresh()

    def refresh(self) -> None:
        """Update parameters changed by the control plane."""
        if self.version == self.function.version:
            return
        self.version = self.function.version
        crc = self.function.crc
        if crc is not None:
            self.table = np.array(hashes.crc_table(crc.width, crc.polynomial), dtype=np.uint64)
            numbers = (crc.width, crc.initial, crc.final_xor, int(crc.reflect_data), int(crc.reflect_remainder))
            self.words[:5] = np.array(numbers, dtype=np.uint64).view(np.int64)
            self.words[5] = self.table.ctypes.data
        self.key = np.frombuffer(self.function.key, dtype=">u4").astype(np.int64)
        self.words[6], self.words[7] = self.key.ctypes.data, len(self.key)


class Calculations(Part):
    """Generates code for the program's calculations. `parameters`: of the calculations in use, by index."""

    def __init__(self, expressions: Expressions) -> None:
        super().__init__(expressions)
        self.parameters: dict[int, HashParameters] = {}

    def compute(self, index: int) -> Cell:
        """Emit the computation of a calculation; returns the cell of its result."""
        self._inputs(self.program.calculations[index])
        function = self.state.hashes[index]
        kind = o.CRC if function.crc is not None else _KINDS.get(function.algo)
        if kind is None:
            raise Unsupported(f"the algorithm {function.algo}")
        parameters = self.parameters.setdefault(index, HashParameters(function))
        return Cell(self.code.result(o.HASH, kind, self.code.const(parameters.words.ctypes.data)), 1, 64)

    def _inputs(self, calculation: ir.Calculation) -> None:
        self.code.emit(o.HBEGIN)
        run: list[int] | None = None  # header, first bit, bits: adjacent fields are appended together
        has_payload = False
        for item in calculation.inputs:
            piece = self._piece(item)
            if run and piece and piece[0] == run[0] and piece[1] == run[1] + run[2]:
                run[2] += piece[2]
                continue
            self._put(run)
            run = piece
            if item.value is None:
                has_payload = True
            elif piece is None:
                self._put_other(item.value, item.width)
        self._put(run)
        if has_payload:
            self.code.emit(o.HPAY)

    def _piece(self, item: ir.CalcInput) -> list[int] | None:
        """(header, first bit, bits) of an input in wire format, or None."""
        if not isinstance(item.value, e.FieldRef | e.HeaderRef):
            return None
        header = self.program.headers[item.value.header]
        if header.is_metadata or header.type.varbit is not None:
            return None
        if isinstance(item.value, e.HeaderRef):
            return [header.index, 0, header.type.width]
        if item.value.field == e.VALID:
            return None
        number = item.value.field
        return [header.index, self.layout.wire_bit(header.type, number), header.type.fields[number].width]

    def _put(self, run: list[int] | None) -> None:
        if run and run[2]:
            header, bit, width = run
            self.code.emit(o.HPUT, self.layout.valid[header], self.layout.data[header] + bit // 8, bit % 8, width)

    def _put_other(self, value: e.FieldRef | e.HeaderRef | e.Const, width: int) -> None:
        if isinstance(value, e.Const):
            self._put_value(value, width)
            return
        header = self.program.headers[value.header]
        if isinstance(value, e.HeaderRef):
            if header.is_metadata:
                raise Unsupported("a calculation over a metadata header")
            self.code.emit(o.HPUTH, self.code.const(header.index))
        elif header.is_metadata:
            self._put_value(value, self.program.field_width(value))
        elif value.field == header.type.varbit:
            self.code.emit(o.HPUTV, self.code.const(header.index))
        else:
            over = Label()
            self.code.emit(o.JZ, self.ex.narrow(_is_valid(header.index)), over)
            self._put_value(value, self.program.field_width(value))
            self.ex.bind(over)

    def _put_value(self, value: e.Expr, width: int) -> None:
        """Append the low bits of any value, most significant part first."""
        while width > 0:
            part = (width - 1) % 64 + 1
            low = width - part
            piece = e.Op(">>", (value, e.Const(low))) if low else value
            self.code.emit(o.HPUTC, self.ex.narrow(e.Op("&", (piece, e.Const(mask(part))))), part)
            width = low

    # Checksums

    def verify(self) -> None:
        """Emit checksum verification, which sets the system cell checksum_error if a checksum is wrong."""
        for checksum in self.program.checksums:
            if checksum.verify:
                over = Label()
                self.ex.jump_unless(_is_valid(checksum.target.header), over)
                if checksum.condition is not None:
                    self.ex.jump_unless(checksum.condition, over)
                width = self.program.field_width(checksum.target)
                expected = e.Op("&", (checksum.target, e.Const(mask(width))))
                is_wrong = self.ex.narrow(e.Op("!=", (self._value(checksum), expected)))
                self.code.emit(o.OR, CELL.checksum_error, CELL.checksum_error, is_wrong)
                self.ex.bind(over)

    def update(self, store: Callable[[e.Expr, e.Expr], None]) -> None:
        """Emit the checksums to be updated, with `store`(target, value)."""
        for checksum in self.program.checksums:
            if checksum.update:
                over = Label()
                if checksum.condition is not None:
                    self.ex.jump_unless(checksum.condition, over)
                if checksum.calculation is None:
                    self.ex.jump_unless(_is_valid(checksum.target.header), over)
                store(checksum.target, self._value(checksum))
                self.ex.bind(over)

    def _value(self, checksum: ir.Checksum) -> Cell:
        if checksum.calculation is not None:
            return self.compute(checksum.calculation)
        header = self.program.headers[checksum.target.header]  # the built-in one: over its own header, target 0
        if header.is_metadata or header.type.varbit is not None:
            raise Unsupported("an ipv4 checksum over such a header")
        first = self.layout.wire_bit(header.type, checksum.target.field)
        width = self.program.field_width(checksum.target)
        self.code.emit(o.HBEGIN)
        self._put([header.index, 0, first])
        self._put_value(e.Const(0), width)
        self._put([header.index, first + width, header.type.width - first - width])
        return Cell(self.code.result(o.HASH, o.CSUM16, self.code.const(0)), 1, 64)
