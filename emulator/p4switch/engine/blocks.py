"""What is known within a basic block: which cells hold which nodes, until something is written that those read."""

from __future__ import annotations

from emulator.p4switch.engine.code import Code, Label
from emulator.p4switch.program import expr as e

DYNAMIC = "dynamic"
"""What a node depends on that reads a header known only at run time."""
REGISTERS = "registers"


class Block:
    """`memo[node, n]` are the cells known to hold the n low limbs of a node."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.memo: dict[tuple[e.Expr, int], int] = {}
        self._readers: dict[object, set[tuple[e.Expr, int]]] = {}
        self._reads: dict[e.Expr, frozenset] = {}

    def start_block(self) -> None:
        """Nothing is known here, and no temporary is in use."""
        self.forget_all()
        self.code.free_temps()

    def bind(self, label: Label) -> None:
        """The label is here, and a new block begins."""
        self.code.bind(label)
        self.start_block()

    def forget_all(self) -> None:
        """Nothing that was computed is to be used again."""
        self.memo.clear()
        self._readers.clear()

    def forget(self, written: object) -> None:
        """What was computed from this field is out of date."""
        for key in self._readers.pop(written, ()):
            self.memo.pop(key, None)

    def remember(self, node: e.Expr, n: int, cell: int) -> None:
        """These cells hold the n low limbs of a node."""
        self.memo[node, n] = cell
        for read in self.reads(node):
            self._readers.setdefault(read, set()).add((node, n))

    def reads(self, node: e.Expr) -> frozenset:
        """Fields that a node depends on, DYNAMIC, REGISTERS."""
        found = self._reads.get(node)
        if found is None:
            if isinstance(node, e.FieldRef):
                found = frozenset([node])
            else:
                parts = [self.reads(child) for child in node.children]
                if isinstance(
                    node, e.StackLast | e.StackRef | e.UnionStackRef | e.UnionStackLast | e.HeaderRef | e.UnionRef
                ):
                    parts.append(frozenset([DYNAMIC]))
                if isinstance(node, e.RegisterRef):
                    parts.append(frozenset([REGISTERS]))
                found = frozenset().union(*parts)
            self._reads[node] = found
        return found
