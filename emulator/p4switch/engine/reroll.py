"""Re-rolling: runs of primitives that apply the same operations to consecutive fields and registers become vector
instructions.

Programs for hardware represent a vector as one field and one register per lane, and p4c repeats the statements of one
lane for all of them. `find_run` detects such a run: a body of a few primitives, repeated with every field and register
number increased by a constant. If no lane accesses what another one writes, each statement can be executed for all
lanes at once (`Lanes`). Registers of one run are placed together in memory (`place_together`), one row for each index,
so that a row of cells is a vector, too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.expressions import Expressions, Part
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.arrays import RegisterArray
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask

MIN_LANES = 8
MAX_BODY = 8
"""Maximum number of primitives per lane."""
READ_BY_THE_SWITCH = ("standard_metadata", "intrinsic_metadata", "queueing_metadata")
"""Headers whose fields the packet path reads."""
_OPS = {"+": o.VADD, "-": o.VSUB, "*": o.VMUL, "&": o.VAND, "|": o.VOR, "^": o.VXOR}

_OPERANDS = {
    "assign": (slice(1, None), slice(0)),
    "register_read": (slice(0), slice(2, None)),
    "register_write": (slice(2, None), slice(1, 2)),
}
"""Primitives that a run can contain, and which of their arguments are values and index."""


@dataclass(frozen=True)
class Run:
    """`n` lanes of `body` primitives, starting at primitive `at`. `step[field]`: increment of the field's number per
    lane, for each field of the first lane; `registers`: those of the first lane; those of the next lanes follow each of
    them."""

    at: int
    body: int
    n: int
    step: dict[Any, int]
    registers: tuple[int, ...]


Leaf = e.FieldRef | e.ObjectRef
Shape = tuple[tuple[Any, ...], list[Leaf]]
"""The structure of a primitive without its fields and registers, and the list of these."""


def _leaves(node: e.Expr, leaves: list[Leaf]) -> object:
    """The structure of a tree; its fields and registers are appended to `leaves`."""
    if isinstance(node, e.FieldRef):
        leaves.append(node)
        return "field", node.header, node.field == e.VALID
    if isinstance(node, e.ObjectRef):
        leaves.append(node)
        return node.sort
    if isinstance(node, e.Op):
        return node.op, *(_leaves(arg, leaves) for arg in node.args)
    return node


def _shape(call: ir.Primitive) -> Shape:
    leaves: list[Leaf] = []
    return (call.op, *(_leaves(arg, leaves) for arg in call.args)), leaves


def _number(leaf: Leaf) -> int:
    return leaf.field if isinstance(leaf, e.FieldRef) else leaf.index


def find_run(calls: tuple[ir.Primitive, ...], at: int) -> Run | None:
    """The longest run that begins at a primitive and can be vectorized, or None."""
    if calls[at].op not in _OPERANDS:
        return None
    best = None
    shapes = [_shape(call) for call in calls[at : at + MAX_BODY]]
    for body in range(1, len(shapes) + 1):
        candidate = _run_of(calls, at, body, shapes[:body])
        if candidate is not None and (best is None or candidate.n * candidate.body > best.n * best.body):
            best = candidate
    return best


def _run_of(calls: tuple[ir.Primitive, ...], at: int, body: int, shapes: list[Shape]) -> Run | None:
    if at + 2 * body > len(calls) or any(shape[0] not in _OPERANDS for shape, _ in shapes):
        return None
    first = [leaf for _, leaves in shapes for leaf in leaves]
    steps: list[int] | None = None
    n = 1
    while at + (n + 1) * body <= len(calls):
        lane = [_shape(call) for call in calls[at + n * body : at + (n + 1) * body]]
        if any(mine[0] != other[0] for mine, other in zip(lane, shapes, strict=True)):
            break
        leaves = [leaf for _, leaves in lane for leaf in leaves]
        moved = [_number(leaf) - _number(old) for leaf, old in zip(leaves, first, strict=True)]
        if steps is None:
            steps = moved
        if moved != [n * step for step in steps]:
            break
        n += 1
    if n < MIN_LANES or steps is None:
        return None
    return _checked(at, body, n, first, steps, shapes)


def _checked(at: int, body: int, n: int, first: list[Leaf], steps: list[int], shapes: list[Shape]) -> Run | None:
    """The run, if no lane accesses what another writes."""
    step: dict[e.FieldRef, int] = {}
    registers: list[int] = []
    for leaf, by in zip(first, steps, strict=True):
        if isinstance(leaf, e.FieldRef):
            if step.setdefault(leaf, by) != by or by < 0 or (leaf.field == e.VALID and by):
                return None
        elif leaf.sort == "register" and by == 1:
            registers.append(leaf.index)
        else:
            return None
    targets = [leaves[0] for shape, leaves in shapes if shape[0] in ("assign", "register_read")]
    written = [leaf for leaf in targets if isinstance(leaf, e.FieldRef) and step[leaf]]
    if len(written) < len(targets):
        return None
    for target in set(written):
        lanes = {target.field + step[target] * i for i in range(n)}
        for other, by in step.items():
            if other.header == target.header and other != target and lanes & {other.field + by * i for i in range(n)}:
                return None
    arrays = sorted(set(registers))
    if any(second - one < n for one, second in zip(arrays, arrays[1:], strict=False)):
        return None
    return Run(at, body, n, step, tuple(arrays))


def place_together(state: State, run: Run) -> bool:
    """Place the registers of a run together, if they have the same shape. Returns whether they are together now."""
    for first in run.registers:
        group = state.registers[first : first + run.n]
        if any((r.size, r.width) != (group[0].size, group[0].width) for r in group) or group[0].width > 64:
            return False
        if _lie_together(group):
            continue
        if any(register.data.strides[0] != 8 for register in group):
            return False  # some are in a row of another run
        rows = np.zeros((group[0].size, run.n), dtype="<u8")
        for column, register in enumerate(group):
            rows[:, column : column + 1] = register.data
            register.data = rows[:, column : column + 1]
    return True


def _lie_together(group: list[RegisterArray]) -> bool:
    starts = [register.data.ctypes.data for register in group]
    return (
        all(start == starts[0] + 8 * i for i, start in enumerate(starts))
        and len({r.data.strides[0] for r in group}) == 1
    )


class Lanes(Part):
    """Lowers runs. `reads[field]`: number of reads of a field in the whole program."""

    def __init__(self, expressions: Expressions, reads: dict[e.FieldRef, int]) -> None:
        super().__init__(expressions)
        self.reads = reads

    def prepare(self) -> None:
        """Place registers together before any code contains their addresses."""
        for action in self.program.actions:
            at = 0
            while at < len(action.primitives):
                run = find_run(action.primitives, at)
                if run is not None and self._can(action.primitives, run):
                    at += run.body * run.n
                else:
                    at += 1

    def lower(self, calls: tuple[ir.Primitive, ...], at: int) -> int | None:
        """Lower the run that begins at primitive `at`. Returns its number of primitives, or None if there is no run."""
        run = find_run(calls, at)
        if run is None or not self._can(calls, run):
            return None
        self.run = run
        self.known: dict[e.Expr, e.Expr] = {}
        methods: dict[str, Callable[..., None]] = {
            "assign": self._assign, "register_read": self._read, "register_write": self._write,
        }  # fmt: skip
        body = calls[run.at : run.at + run.body]
        for call in body:
            methods[call.op](*call.args)
        self.ex.forget_all()
        return run.body * run.n

    # Conditions

    def _can(self, calls: tuple[ir.Primitive, ...], run: Run) -> bool:
        self.scratch = {ref for ref, by in run.step.items() if by and self._is_scratch(ref, by, run, calls)}
        if not all(ref in self.scratch or self._is_vector(ref, by, run.n) for ref, by in run.step.items() if by):
            return False
        for call in calls[run.at : run.at + run.body]:
            values, index = _OPERANDS[call.op]
            if not all(self._is_plain(value) for value in call.args[values]):
                return False
            if not all(self._is_same_for_all(node, run) for node in call.args[index]):
                return False
        return place_together(self.state, run)

    def _is_same_for_all(self, node: e.Expr, run: Run) -> bool:
        return all(not run.step.get(leaf, 0) or leaf in self.scratch for leaf in _shape(ir.Primitive("", (node,)))[1])

    def _is_plain(self, node: e.Expr) -> bool:
        """Whether the value's low bits depend only on the low bits of its parts."""
        if isinstance(node, e.Op):
            return (node.op in _OPS or node.op == "~") and all(self._is_plain(arg) for arg in node.args)
        return isinstance(node, e.Const | e.FieldRef)

    def _is_vector(self, ref: e.FieldRef, by: int, n: int) -> bool:
        """Whether the fields of all lanes are contiguous, with a width that vector instructions support."""
        locations = [self.layout.locations.get(e.FieldRef(ref.header, ref.field + by * i)) for i in range(n)]
        first = locations[0]
        if first is None or any(
            location is None or location.signed or location.width != first.width for location in locations
        ):
            return False
        if self.program.headers[ref.header].type.fields[ref.field].saturating:
            return False
        size = first.width // 8 if first.is_wire else 8
        if first.width > 64 or (first.is_wire and (first.bit or first.width not in (8, 16, 32, 64))):
            return False
        return all(
            location is not None and location.offset == first.offset + size * i for i, location in enumerate(locations)
        )

    def _is_scratch(self, ref: e.FieldRef, by: int, run: Run, calls: tuple[ir.Primitive, ...]) -> bool:
        """Whether the field only carries, within a lane, a value that is the same for all lanes, usually an index. Such
        a field is never stored."""
        if not self.program.headers[ref.header].is_metadata:
            return False  # it may be sent
        body = calls[run.at : run.at + run.body]
        inside, is_written = 0, False
        for call in body:
            targets = 1 if call.op in ("assign", "register_read") else 0
            reads = sum(_count(arg, ref) for arg in call.args[targets:])
            if reads and not is_written:
                return False
            inside += reads
            if targets and call.args[0] == ref:
                if call.op != "assign" or is_written or any(run.step[leaf] for leaf in _shape(call)[1][1:]):
                    return False
                is_written = True
        return is_written and all(
            self.reads.get(e.FieldRef(ref.header, ref.field + by * i), 0) == inside for i in range(run.n)
        )

    # Statements

    def _assign(self, target: e.FieldRef, value: e.Expr) -> None:
        if target in self.scratch:
            width = self.layout.locations[target].width
            self.known[target] = e.Op("&", (self._resolved(value), e.Const(mask(width))))
            return
        self._store(target, self._vector(value))

    def _store(self, target: e.FieldRef, lanes: int) -> None:
        """Write cells into the fields of all lanes, truncated to their width."""
        location, n = self.layout.locations[target], self.run.n
        if location.is_wire:
            self.code.emit(o.VST, location.offset, location.width // 8, lanes, n)
        elif location.width == 64:
            self.code.emit(o.WMOV, location.offset, lanes, n)
        else:
            self.code.emit(o.VANDC, location.offset, lanes, self.code.const(mask(location.width)), n)
        self.ex.forget_all()

    def _read(self, target: e.FieldRef, array: e.ObjectRef, index: e.Expr) -> None:
        location, n = self.layout.locations[target], self.run.n
        words, at = self.ex.register_words(array.index), self._index(index)
        if not location.is_wire and location.width >= self.state.registers[array.index].width:
            self.code.emit(o.VREG, location.offset, words, at, n)  # out of bounds, it leaves the lanes unchanged
            self.ex.forget_all()
        else:
            lanes = self.code.result(o.MOV, self._vector(target), n=n)
            self.code.emit(o.VREG, lanes, words, at, n)
            self._store(target, lanes)

    def _write(self, array: e.ObjectRef, index: e.Expr, value: e.Expr) -> None:
        lanes = self._vector(value)
        self.code.emit(o.VREGW, self.ex.register_words(array.index), self._index(index), self.run.n, lanes)
        self.ex.forget_all()

    def _index(self, index: e.Expr) -> int:
        return self.ex.index(self._resolved(index), "the index of a register")

    def _resolved(self, node: e.Expr) -> e.Expr:
        """The node, with fields that are never stored replaced by their known values."""
        if isinstance(node, e.Op):
            return e.Op(node.op, tuple(self._resolved(arg) for arg in node.args))
        return self.known.get(node, node)

    # Values

    def _vector(self, node: e.Expr) -> int:
        """Emit the value of each lane modulo 2^64; returns the first of n cells."""
        n = self.run.n
        node = self._resolved(node)
        if not any(self.run.step.get(leaf, 0) for leaf in _shape(ir.Primitive("", (node,)))[1]):
            return self.code.result(o.VFILL, self.ex.narrow(node), n, n=n)
        if isinstance(node, e.FieldRef):
            location = self.layout.locations[node]
            if not location.is_wire:
                return location.offset
            return self.code.result(o.VLD, location.offset, location.width // 8, n, n=n)
        assert isinstance(node, e.Op)
        if node.op == "~":
            node = e.Op("^", (node.args[0], e.Const(-1)))
        left, right = node.args
        if node.op == "&" and isinstance(right, e.Const):
            return self.code.result(o.VANDC, self._vector(left), self.code.const(right.value), n, n=n)
        return self.code.result(_OPS[node.op], self._vector(left), self._vector(right), n, n=n)


def _count(node: e.Expr, ref: e.FieldRef) -> int:
    """Number of times a tree reads a field."""
    return int(node is ref) + sum(_count(child, ref) for child in node.children)


def field_reads(program: ir.Program) -> dict[e.FieldRef, int]:
    """Number of times the program reads each metadata field in primitives, counted as by `_count`; a read anywhere else
    counts more than any run could."""
    reads: dict[e.FieldRef, int] = {}
    often = 1 << 20

    def add(node: e.Expr, by: int) -> None:
        if isinstance(node, e.FieldRef):
            reads[node] = reads.get(node, 0) + by
        elif isinstance(node, e.HeaderRef):
            for number in range(len(program.headers[node.header].type.fields)):
                add(e.FieldRef(node.header, number), often)
        for child in node.children:
            add(child, by)

    for action in program.actions:
        for call in action.primitives:
            is_store = call.op in ("assign", "register_read") and isinstance(call.args[0], e.FieldRef)
            for arg in call.args[int(is_store) :]:
                add(arg, 1)
    others: list[e.Expr] = [node.condition for node in program.nodes if isinstance(node, ir.Conditional)]
    others += [part.value for table in program.tables for part in table.key]
    others += [item.value for calculation in program.calculations for item in calculation.inputs if item.value]
    others += [checksum.condition for checksum in program.checksums if checksum.condition is not None]
    others += [element for item in program.field_lists for element in item.elements]
    others += [element for item in program.learn_lists for element in item.elements]
    others += list(program.aliases.values())
    for parser in program.parsers:
        for state in parser.states:
            others += [part.value for part in state.key]
            for op in state.ops:
                others += [value for value in vars(op).values() if isinstance(value, e.Expr)]
                if isinstance(op, ir.PrimitiveCall):
                    others += op.primitive.args
    for deparser in program.deparsers:
        others += [arg for call in deparser.primitives for arg in call.args]
    others += [e.HeaderRef(header.index) for header in program.headers if header.name in READ_BY_THE_SWITCH]
    for node in others:
        add(node, often)
    return reads
