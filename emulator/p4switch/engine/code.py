"""Code under construction: rows of 32-bit words, labels, the constant pool below the frame's origin, temporaries.

A temporary is valid within one basic block only, so each block allocates its temporaries from the beginning.
"""

import numpy as np

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.layout import Layout

WORDS = 8
"""32-bit words of an instruction: the opcode and up to seven operands."""
_M64 = (1 << 64) - 1
WIDE = {
    o.MOV: o.WMOV, o.ADD: o.WADD, o.SUB: o.WSUB, o.MUL: o.WMUL, o.AND: o.VAND, o.OR: o.VOR, o.XOR: o.VXOR,
    o.NOT: o.WNOT, o.SHL: o.WSHL, o.SEXT: o.WSEXT, o.SEL: o.WSEL,
}  # fmt: skip
"""Instruction → its variant for n limbs, which takes n as an additional operand."""


class Unsupported(Exception):
    """The program uses a feature that can't be lowered; the message names it."""


class Label:
    """A position in the code, known once it is bound."""

    def __init__(self) -> None:
        self.pc: int | None = None

    @property
    def place(self) -> int:
        """Its position; raises AssertionError if it is not bound."""
        assert self.pc is not None
        return self.pc


class Code:
    """`rows`: opcodes and operands, which may be labels until `finish`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.rows: list[list[int | Label]] = []
        self.constants: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}
        self.frame_end = layout.temps
        self._next_temp = layout.temps

    def emit(self, op: int, *operands: int | Label) -> None:
        """Emit one instruction."""
        if len(operands) >= WORDS:
            raise AssertionError(f"{o.NAMES[op]} has too many operands")
        self.rows.append([op, *operands])

    def result(self, op: int, *operands: int | Label, n: int = 1, into: int | None = None) -> int:
        """Emit one instruction, in its variant for several limbs if n > 1 and there is one. Returns the destination
        cell: `into`, or a new temporary of n limbs."""
        d = self.temp(n) if into is None else into
        if n > 1 and op in WIDE:
            op, operands = WIDE[op], (*operands, n)
        self.emit(op, d, *operands)
        return d

    @property
    def pc(self) -> int:
        return len(self.rows)

    def bind(self, label: Label) -> None:
        """Bind the label to the current position. Callers start a new block."""
        label.pc = len(self.rows)

    def temp(self, n_limbs: int = 1) -> int:
        """Allocate a temporary; returns the offset of its lowest limb."""
        offset = self._next_temp
        self._next_temp += 8 * n_limbs
        self.frame_end = max(self.frame_end, self._next_temp)
        return offset

    def free_temps(self) -> None:
        """Free all temporaries."""
        self._next_temp = self.layout.temps

    def const(self, value: int, n_limbs: int = 1) -> int:
        """Offset of the lowest limb of a constant modulo 2^(64 n_limbs)."""
        return self.words(tuple(value >> 64 * i & _M64 for i in range(n_limbs)))

    def words(self, values: tuple[int, ...]) -> int:
        """Offset of consecutive constants."""
        values = tuple(value & _M64 for value in values)
        offset = self._places.get(values)
        if offset is None:
            self.constants.extend(reversed(values))  # the pool grows downwards
            offset = self._places[values] = -8 * len(self.constants)
        return offset

    @staticmethod
    def value(operand: int | Label) -> int:
        return operand.place if isinstance(operand, Label) else operand

    def finish(self) -> np.ndarray:
        """The code as int32 of shape (rows, WORDS)."""
        table = np.zeros((len(self.rows), WORDS), dtype=np.int32)
        for row, words in enumerate(self.rows):
            for column, operand in enumerate(words):
                table[row, column] = self.value(operand)
        return table
