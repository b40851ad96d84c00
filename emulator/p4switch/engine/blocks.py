"""Values known within a basic block: the cells that hold each node, until something is written that the node reads."""

from __future__ import annotations

from emulator.p4switch.engine.code import Code, Label
from emulator.p4switch.program import expr as e

DYNAMIC = "dynamic"
"""The dependency of a node that reads a header known only at run time."""
REGISTERS = "registers"


class Block:
    """`memo[node, n]` are the cells known to hold the n low limbs of a node."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.memo: dict[tuple[e.Expr, int], int] = {}
        self._readers: dict[object, set[tuple[e.Expr, int]]] = {}
        self._reads: dict[e.Expr, frozenset] = {}

    def start_block(self) -> None:
        """Start a block, with no values known and no temporary in use."""
        self.forget_all()
        self.code.free_temps()

    def bind(self, label: Label) -> None:
        """The label is here, and a new block begins."""
        self.code.bind(label)
        self.start_block()

    def forget_all(self) -> None:
        """Forget all values."""
        self.memo.clear()
        self._readers.clear()

    def forget(self, written: object) -> None:
        """Forget the values that depend on a field."""
        for key in self._readers.pop(written, ()):
            self.memo.pop(key, None)

    def remember(self, node: e.Expr, n: int, cell: int) -> None:
        """Record the cells that hold the n low limbs of a node."""
        self.memo[node, n] = cell
        for read in self.reads(node):
            self._readers.setdefault(read, set()).add((node, n))

    def reads(self, node: e.Expr) -> frozenset:
        """Fields that a node depends on, DYNAMIC, REGISTERS."""
        dependencies = self._reads.get(node)
        if dependencies is None:
            if isinstance(node, e.FieldRef):
                dependencies = frozenset([node])
            else:
                parts = [self.reads(child) for child in node.children]
                if isinstance(node, e.StackRef | e.HeaderRef):
                    parts.append(frozenset([DYNAMIC]))
                if isinstance(node, e.RegisterRef):
                    parts.append(frozenset([REGISTERS]))
                dependencies = frozenset().union(*parts)
            self._reads[node] = dependencies
        return dependencies
