"""Lowering of pipelines: nodes become code in the order in which they are reached; a node with one predecessor follows
it in the same block, so that known values stay valid. Actions are shared subroutines, except for an action without
parameters that a table without a key always runs (p4c generates such tables for plain statements): it is inlined."""

from collections import Counter
from dataclasses import dataclass, field

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.actions import Actions
from emulator.p4switch.engine.code import Label, Unsupported
from emulator.p4switch.engine.expressions import Part
from emulator.p4switch.engine.intervals import Cell
from emulator.p4switch.engine.layout import limbs
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.values import mask


@dataclass
class TableCode:
    """Data from which `lookup` builds a table's entries: `key_limbs` of each key field, and the labels where code
    continues: `next_of_action`, `next_default`, `hit`, `miss`, and `end` after an empty group."""

    table: ir.Table
    key_limbs: list[int]
    next_of_action: dict[int, Label] = field(default_factory=dict)
    next_default: Label = field(default_factory=Label)
    hit: Label = field(default_factory=Label)
    miss: Label = field(default_factory=Label)
    end: Label = field(default_factory=Label)


class Pipelines(Part):
    """Generates the code of pipelines. `tables` describes each table with a lookup, `actions_at` is the label of each
    action's code."""

    def __init__(self, actions: Actions) -> None:
        super().__init__(actions.ex)
        self.actions = actions
        self.tables: dict[int, TableCode] = {}
        self.actions_at: dict[int, Label] = {}

    def lower(self, pipeline: ir.Pipeline) -> int:
        """Lower a pipeline; returns the start of its code."""
        start = self.code.pc
        self._end = Label()
        self._labels = {ir.END: self._end}
        self._pending: list[int] = []
        self._done: set[int] = set()
        self._n_predecessors = self._count(pipeline.init_node)
        self.ex.start_block()
        self._chain(pipeline.init_node)
        while self._pending:
            number = self._pending.pop()
            if number not in self._done:
                self._chain(number)
        self.ex.bind(self._end)
        self.code.emit(o.END, 0)
        return start

    def lower_actions(self) -> None:
        """Lower the actions that tables use, as subroutines; to be called after all pipelines."""
        for index, label in self.actions_at.items():
            self.ex.bind(label)
            self.actions.body(self.program.actions[index])
            self.code.emit(o.RET)

    def _successors(self, number: int) -> list[int]:
        node = self.program.nodes[number]
        if isinstance(node, ir.Conditional):
            return [node.next_true, node.next_false]
        if isinstance(node, ir.ActionCall):
            return [node.next_node]
        if self._fixed_action(node) is not None:
            return [self._after_fixed(node)]
        if node.by_hit:
            return [node.next_hit, node.next_miss]
        return [*node.next_of_action.values(), node.next_default]

    def _count(self, start: int) -> Counter[int]:
        """Number of predecessors of each reachable node."""
        n_predecessors, stack, seen = Counter({start: 1}), [start], set()
        while stack:
            number = stack.pop()
            if number == ir.END or number in seen:
                continue
            seen.add(number)
            for follower in self._successors(number):
                n_predecessors[follower] += 1
                stack.append(follower)
        return n_predecessors

    def _label(self, number: int) -> Label:
        """The label of a node, which is queued for lowering."""
        if number not in self._labels:
            self._labels[number] = Label()
            self._pending.append(number)
        return self._labels[number]

    def _chain(self, number: int) -> None:
        """Lower a node, and its successors in the same block."""
        follows = False
        while number != ir.END and number not in self._done:
            if not follows or number in self._labels or self._n_predecessors[number] > 1:
                self.ex.bind(self._label(number))
            self._done.add(number)
            following, follows = self._node(self.program.nodes[number]), True
            if following is None:
                return
            number = following
        self.code.emit(o.JMP, self._label(number))

    def _node(self, node: ir.Node) -> int | None:
        """Lower a node. Returns the node that must follow directly, or None if the code jumps."""
        self.ex.set_action(())
        if isinstance(node, ir.Conditional):
            self.ex.jump_unless(node.condition, self._label(node.next_false))
            return node.next_true
        if isinstance(node, ir.ActionCall):
            self._inline(node.action)
            return node.next_node
        fixed = self._fixed_action(node)
        if fixed is not None:
            self._inline(fixed)
            return self._after_fixed(node)
        self._table(node)
        return None

    def _inline(self, action: int) -> None:
        if self.actions.body(self.program.actions[action]):
            self.code.emit(o.JEXIT, self._end)
        self.ex.set_action(())

    def _fixed_action(self, table: ir.Table) -> int | None:
        """The action that a table always runs, if it can be inlined."""
        default = table.default
        if table.key or default is None or not default.const_action or table.type != ir.SIMPLE:
            return None
        return None if self.program.actions[default.action].params else default.action

    def _after_fixed(self, table: ir.Table) -> int:
        if table.by_hit:
            return table.next_miss
        assert table.default is not None
        return table.next_of_action.get(table.default.action, table.next_default)

    # Tables

    def _table(self, table: ir.Table) -> None:
        widths = [limbs(part.width) for part in table.key]
        code = TableCode(table, widths)
        self.tables[table.index] = code
        code.end = self._end
        code.next_default = self._label(table.next_default)
        code.hit, code.miss = self._label(table.next_hit), self._label(table.next_miss)
        for action in self._possible(table):
            code.next_of_action[action] = self._label(table.next_of_action.get(action, table.next_default))
            self.actions_at.setdefault(action, Label())
        self.code.emit(o.LOOKUP, table.index, self._key(table, widths), sum(widths))
        if table.direct_meter is not None:
            self._direct_meter(table.direct_meter)
        if table.type == ir.INDIRECT_WS:
            over = Label()
            self.code.emit(o.JMEMBER, over)
            assert table.action_profile is not None
            selector = self.program.action_profiles[table.action_profile].selector
            assert selector is not None
            result = self.actions.calculations.compute(selector)
            self.code.emit(o.PICK, result.offset)
            self.ex.bind(over)
        self.code.emit(o.CALL)
        self.ex.start_block()

    def _possible(self, table: ir.Table) -> tuple[int, ...]:
        """Actions that may run, including a default action that is not in the table's list."""
        default = () if table.default is None else (table.default.action,)
        profile = () if table.action_profile is None else self.program.action_profiles[table.action_profile].actions
        return tuple(dict.fromkeys((*table.actions, *default, *profile)))

    def _direct_meter(self, meter: int) -> None:
        over = Label()
        self.code.emit(o.JMISS, over)
        d = self.code.result(o.METERD, self.actions.meter_words(meter))
        target = self.program.meters[meter].target
        if target is None:
            raise Unsupported("a direct meter without a target")
        self.actions.assign(target, Cell(d, 1, 32))
        self.ex.bind(over)

    def _key(self, table: ir.Table, widths: list[int]) -> int:
        """The cells of a table's key, one field after the other."""
        if not table.key:
            return self.code.const(0)
        key = self.code.temp(sum(widths))
        at = key
        for part, n in zip(table.key, widths, strict=True):
            self._key_field(part, n, at)
            at += 8 * n
        return key

    def _key_field(self, part: ir.KeyField, n: int, at: int) -> None:
        ref = part.value
        cover = mask(self.program.field_width(ref))
        if part.mask is not None:
            cover &= part.mask
        value = e.Op("&", (ref, e.Const(cover)))
        if ref.field == e.VALID or self.program.headers[ref.header].is_metadata:
            self.ex.cells(value, n, at)
            return
        valid, cells = self.ex.narrow(e.Op("valid", (e.HeaderRef(ref.header),))), self.ex.cells(value, n)
        self.code.result(o.SEL, valid, cells, self.code.const(0, n), n=n, into=at)
