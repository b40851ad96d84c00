"""Lowering of a program and its state to code: all blocks of the packet path, and the data about it that the engine
needs."""

import numpy as np

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.actions import Actions
from emulator.p4switch.engine.calculations import Calculations
from emulator.p4switch.engine.code import Code, Unsupported
from emulator.p4switch.engine.events import DIGEST
from emulator.p4switch.engine.expressions import Expressions, Part
from emulator.p4switch.engine.layout import Layout
from emulator.p4switch.engine.parser import Parser
from emulator.p4switch.engine.pipelines import Pipelines
from emulator.p4switch.engine.records import Records, Slots, to_limbs
from emulator.p4switch.engine.vm.tables import SLOTS_WORDS
from emulator.p4switch.packet_path.engine import blocks_of
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.handles import HandleTable
from emulator.p4switch.state.state import ParseVSet, State
from emulator.p4switch.values import mask, n_bytes, pad_key


class ValueSet:
    """A parse value set for one parser state, looked up under the mask `cover`: a record for each masked value. `words`
    describe its hash table."""

    def __init__(self, vset: ParseVSet, n_limbs: int, widths: list[int], cover: int) -> None:
        self.n_limbs, self.widths, self.cover = n_limbs, widths, cover
        self.words = np.zeros(len(SLOTS_WORDS), dtype=np.int64)
        self._mask = np.array(to_limbs(cover, n_limbs), dtype=np.uint64)
        self._records, self._slots = Records(n_limbs), Slots(self.words, n_limbs, 0)
        self._used: dict[int, tuple[int, int]] = {}
        """Masked value → its record's number, and the number of values it represents."""
        self._numbers: HandleTable[int] = HandleTable()
        for value in vset.values:
            self.added(value)
        vset.observers.append(self)

    def _masked(self, value: int) -> int:
        return pad_key(value, self.widths) & self.cover

    def added(self, value: int) -> None:
        masked = self._masked(value)
        if masked in self._used:
            number, n_values = self._used[masked]
        else:
            number, n_values = self._numbers.add(masked), 0
            self._records.write(number, to_limbs(masked, self.n_limbs))
            self._link(number, self._records.address(number))
        self._used[masked] = number, n_values + 1

    def removed(self, value: int) -> None:
        masked = self._masked(value)
        number, n_values = self._used[masked]
        self._used[masked] = number, n_values - 1
        if n_values == 1:
            self._link(number, 0)
            self._numbers.release(number)
            del self._used[masked]

    def _link(self, number: int, record: int) -> None:
        self._slots.link(self._records.address(number), self._mask.ctypes.data, 0, record)


class Lowered(Part):
    """A program's code, `rows` (n, 8) int32, with the data that the engine needs to run it. Raises Unsupported.

    `blocks`: start of the code of each of packet_path.engine.BLOCKS, 0 if absent; `digests`: (list id, code) pairs;
    `field_lists`: id → pieces (offset in the frame, first bit, bits) of the fields to be copied; `tables` and
    `actions_at` as in Pipelines; `hashes`: parameters to be refreshed; `vsets`: value sets."""

    def __init__(self, state: State, drop_port: int) -> None:
        layout = Layout(state.program)
        super().__init__(Expressions(state, layout, Code(layout)))
        program = self.program
        self.vsets: list[ValueSet] = []
        self.calculations = Calculations(self.ex)
        self.actions = Actions(self.ex, self.calculations, drop_port)
        self.actions.lanes.prepare()
        pipelines = Pipelines(self.actions)
        self.tables, self.actions_at = pipelines.tables, pipelines.actions_at
        blocks = blocks_of(program)
        self.blocks = [self._block(block, pipelines) for block in blocks]
        deparsers = [block for block in blocks if isinstance(block, ir.Deparser)]
        self.header_bytes = max(sum(self.layout.total[index] for index in each.order) for each in deparsers)
        """Maximum bytes that a deparser emits: a header may be in its order more than once."""
        self.digests = [(item.id, self._digest(number, item)) for number, item in enumerate(program.learn_lists)]
        self.field_lists = {item.id: self._field_list(item) for item in program.field_lists}
        pipelines.lower_actions()
        self.hashes = list(self.calculations.parameters.values())
        self.rows = self.code.finish()

    def _block(self, block: ir.Parser | ir.Pipeline | ir.Deparser | None, pipelines: Pipelines) -> int:
        match block:
            case ir.Parser():
                return Parser(self.actions, self._vset_words).lower(block)
            case ir.Pipeline():
                return pipelines.lower(block)
            case ir.Deparser():
                return self._deparser(block)
        return 0

    def _vset_words(self, index: int, n_limbs: int, widths: list[int], cover: int) -> int:
        values = ValueSet(self.state.parse_vsets[index], n_limbs, widths, cover)
        self.vsets.append(values)
        return self.code.const(values.words.ctypes.data)

    def _deparser(self, deparser: ir.Deparser) -> int:
        start = self.code.pc
        self.ex.start_block()
        self.ex.set_action(())
        self.calculations.update(self.actions.assign)
        for call in deparser.primitives:
            self.actions.primitive(call)
        for index in deparser.order:
            header = self.program.headers[index]
            if header.is_metadata or header.type.width % 8:
                raise Unsupported("a deparsed header that is metadata or does not end at a byte")
            if header.type.varbit is None:
                self.code.emit(o.EMITH, self.layout.valid[index], self.layout.data[index], n_bytes(header.type.width))
            else:
                self.code.emit(o.EMITV, self.code.const(index))
        self.code.emit(o.END, 0)
        return start

    def _digest(self, number: int, item: ir.LearnList) -> int:
        start = self.code.pc
        self.ex.start_block()
        cells = []
        for ref in item.elements:
            value = e.Op("&", (ref, e.Const(mask(self.program.field_width(ref)))))
            cells.append(self.ex.exact(value)[:2])
        self.code.emit(o.EVENT, DIGEST, number, sum(n for _, n in cells))
        for cell, n in cells:
            self.code.emit(o.EVADD, cell, n)
        self.code.emit(o.END, 0)
        return start

    def _field_list(self, item: ir.FieldList) -> list[tuple[int, int, int]]:
        pieces = []
        for ref in item.elements:
            if not isinstance(ref, e.FieldRef) or ref.field == e.VALID:
                continue
            location = self.layout.locations.get(ref)
            if location is None:
                raise Unsupported("a varbit field in a field list")
            if location.is_wire:
                pieces.append((location.offset, location.bit, location.width))
                if location.flag is not None:
                    pieces.append((location.flag, 0, 8))
            else:
                pieces.append((location.offset, 0, 64 * location.n_limbs))
        return pieces
