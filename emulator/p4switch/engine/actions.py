"""Lowering of primitives and actions: field stores, header and stack operations, registers, counters, meters,
forwarding decisions, and jumps within an action."""

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.calculations import Calculations
from emulator.p4switch.engine.code import Label, Unsupported
from emulator.p4switch.engine.events import ABORT, LOG, Message
from emulator.p4switch.engine.expressions import Expressions, Part
from emulator.p4switch.engine.fields import DYNAMIC, REGISTERS
from emulator.p4switch.engine.intervals import Cell
from emulator.p4switch.engine.layout import CELL, limbs
from emulator.p4switch.engine.reroll import Lanes, field_reads
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.aborts import n_arguments
from emulator.p4switch.values import mask

ABORTED = 2
"""Trap status: a failed assert or an invalid log_msg (1 is the VM's, for code that does not terminate)."""

_STORES = {8: o.ST8, 16: o.ST16, 32: o.ST32, 64: o.ST64}
_JUMPS = ("_jump", "_jump_if_zero")
_M64 = e.Const((1 << 64) - 1)


class Actions(Part):
    """Generates code for primitives. `messages` describe LOG and ABORT events, by number."""

    def __init__(self, expressions: Expressions, calculations: Calculations, drop_port: int) -> None:
        super().__init__(expressions)
        self.calculations = calculations
        self.drop_port = drop_port
        self.messages: list[Message] = []
        self.lanes = Lanes(expressions, field_reads(self.program))

    def _type(self, node: e.Expr) -> ir.HeaderType:
        return ir.header_type(self.program, node)

    # Actions

    def body(self, action: ir.Action) -> bool:
        """Emit the code of an action, which falls through at its end. Returns whether it may exit."""
        self.ex.set_action(action.params)
        calls = action.primitives
        labels = {}
        for call in calls:
            if call.op in _JUMPS:
                labels[min(_target(call), len(calls))] = Label()
        if any(target < 0 for target in labels):
            raise Unsupported("a jump out of an action")
        at = 0
        while at < len(calls):
            if at in labels:
                self.ex.bind(labels[at])
            lanes = None if labels else self.lanes.lower(calls, at)
            if lanes is not None:
                at += lanes
                continue
            call = calls[at]
            if call.op in _JUMPS:
                self._jump(call, at, labels[min(_target(call), len(calls))])
            else:
                self.primitive(call)
            at += 1
        if len(calls) in labels:
            self.ex.bind(labels[len(calls)])
        return any(call.op == "exit" for call in calls)

    def _jump(self, call: ir.Primitive, at: int, label: Label) -> None:
        if call.op == "_jump":
            self.code.emit(o.JMP if label.pc is None else o.LOOP, label)
        elif label.pc is None:
            self.ex.jump_unless(call.args[0], label)
        else:
            over = Label()
            self.code.emit(o.JNZ, self.ex.narrow(call.args[0]), over)
            self.code.emit(o.LOOP, label)
            self.ex.bind(over)

    def primitive(self, call: ir.Primitive) -> None:
        """Emit the code of one primitive."""
        if call.op in _JUMPS:
            raise Unsupported("a jump outside an action")
        op = "assume" if call.op == "assert" else call.op
        own = (call,) if op in ("assume", "log_msg") else ()
        getattr(self, op)(*own, *call.args)

    # Assignments

    def assign(self, target: e.Expr, value: e.Expr) -> None:
        """Emit target = value, truncated to the target's width."""
        if isinstance(target, e.FieldRef):
            self._store_field(target, value)
        elif isinstance(target, e.RegisterRef):
            self.register_write(e.ObjectRef("register", target.array), target.index, value)
        else:
            assert isinstance(target, e.AccessField)
            self._store_dynamic(target, value)

    @staticmethod
    def _saturated(value: e.Expr, described: ir.Field) -> e.Expr:
        """For a saturating field, the value clamped to its range."""
        if not described.saturating:
            return value
        return e.Op("sat_cast" if described.signed else "usat_cast", (value, e.Const(described.width)))

    def _store_field(self, target: e.FieldRef, value: e.Expr) -> None:
        described = self.program.headers[target.header].type.fields[target.field]
        location = self.layout.locations.get(target)
        if location is None:
            raise Unsupported("a store into a varbit field")
        if location.width == 0:
            return
        value = self._saturated(value, described)
        if location.is_wire:
            flag = self._sign_flag(value, location.width) if location.signed else None
            cell = self.ex.cells(value, limbs(location.width))
            self.store_bits(location.offset, location.bit, location.width, cell)
            if flag is not None and location.flag is not None:
                self.code.emit(o.ST8, location.flag, flag)
        else:
            kept = e.Op("&", (value, e.Const(mask(location.width))))
            stored = self._signed_value(value, location.width) if location.signed else kept
            n = location.n_limbs
            if n > 1 and target in self.ex.reads(value):
                self.ex._moved(self.ex.cells(stored, n), n, location.offset)
            else:
                self.ex.cells(stored, n, location.offset)
        self.ex.forget(target)
        header = self.program.headers[target.header]
        if header.in_stack or header.union:
            self.ex.forget(DYNAMIC)

    def store_bits(self, at: int, bit: int, width: int, cell: int) -> None:
        """Emit a store of the low bits of cells into `width` bits, starting at a bit of a byte."""
        if width > 64:
            self.code.emit(o.WST, at, bit, width, cell)
        elif bit == 0 and width in _STORES:
            self.code.emit(_STORES[width], at, cell)
        elif bit + width <= 64:
            self.code.emit(o.STX, at, 64 - bit - width, self.code.const(mask(width)), cell)
        else:
            self.code.emit(o.STBITS, at, bit, width, cell)

    def _sign_flag(self, value: e.Expr, width: int) -> int:
        """The cell of a signed field's flag: whether it stores `value` as a number above its signed range."""
        return self.ex.narrow(_within(value, 1 << (width - 1), mask(width)))

    def _signed_value(self, value: e.Expr, width: int) -> e.Expr:
        """The value that a signed field stores (values.stored_in_field)."""
        low, high = self.ex.interval(value)
        least, most = -(1 << (width - 1)), mask(width)
        if least <= low and high <= most:
            return value
        return e.Op("?", (_within(value, least, most), value, e.Op("two_comp_mod", (value, e.Const(width)))))

    def _store_dynamic(self, target: e.AccessField, value: e.Expr) -> None:
        header, kind, number = self.ex.header_id(target.header), self._type(target), target.field
        described = kind.fields[number]
        if described.is_varbit or (described.signed and described.width > 64):
            raise Unsupported("a varbit or wide signed field of a header known only at run time")
        value = self._saturated(value, described)
        bit, width = self.layout.wire_bit(kind, number), described.width
        if width > 64:
            self.code.emit(o.HWSET, header, bit, width, self.ex.cells(value, limbs(width)))
        elif width:
            flag, k = self.code.const(0), -1
            if described.signed:
                flag, k = self._sign_flag(value, width), self.layout.sign_flag(kind, number)
            self.code.emit(o.HSET, header, bit, width, self.ex.narrow(value), k, flag)
        self.ex.forget_all()

    def assign_VL(self, target: e.Expr, source: e.Expr) -> None:
        """Copy a varbit field including its width."""
        refs = [ref for ref in (target, source) if isinstance(ref, e.FieldRef) and self._type(ref).varbit == ref.field]
        if len(refs) < 2:
            raise Unsupported("a varbit field assigned from another kind of field")
        max_bytes = [self.layout.varbit_max(self._type(ref)) for ref in refs]
        if max_bytes[0] < max_bytes[1]:
            raise Unsupported("a varbit field assigned from a wider one")
        self.code.emit(o.VCOPY, *(self.layout.varbit[ref.header] for ref in refs), max_bytes[1])
        self.ex.forget(DYNAMIC)

    def modify_field_rng_uniform(self, target: e.Expr, low: e.Expr, high: e.Expr) -> None:
        cells = self.ex.exact_narrow(low, "a bound of random()"), self.ex.exact_narrow(high, "a bound of random()")
        over = Label()
        self.code.emit(o.JZ, self.code.result(o.LES, *cells), over)
        d = self.code.result(o.RANDOM, *cells)
        if self.ex.interval(low)[0] < 0:
            raise Unsupported("a negative bound of random()")
        self.assign(target, Cell(d, 1, 63))
        self.ex.bind(over)

    def modify_field_with_hash_based_offset(
        self, target: e.Expr, base: e.Expr, calculation: e.ObjectRef, size: e.Expr
    ) -> None:
        modulus = e.Op("&", (size, _M64))
        modulus = e.Op("?", (e.Op("==", (modulus, e.Const(0))), e.Const(1), modulus))
        result = self.calculations.compute(calculation.index)
        total = e.Op("+", (e.Op("%", (result, modulus)), e.Op("&", (base, _M64))))
        self.assign(target, e.Op("&", (total, _M64)))

    # Headers and stacks

    def touched(self, header: e.Expr) -> None:
        """Invalidate known values after a whole header was changed."""
        if not isinstance(header, e.HeaderRef):
            self.ex.forget_all()
            return
        described = self.program.headers[header.header]
        for number in range(-1, len(described.type.fields)):
            self.ex.forget(e.FieldRef(header.header, number))
        for other in described.union:
            self.ex.forget(e.FieldRef(other, e.VALID))
        self.ex.forget(DYNAMIC)

    def assign_header(self, target: e.Expr, source: e.Expr) -> None:
        if self._type(target).id != self._type(source).id:
            raise Unsupported("a header assigned from one of another type")
        self.code.emit(o.HCOPY, self.ex.header_id(target), self.ex.header_id(source))
        self.touched(target)

    def assign_union(self, target: e.Union, source: e.Union) -> None:
        for to, from_ in zip(target.members, source.members, strict=True):
            self.assign_header(to, from_)

    def assign_header_stack(self, target: e.StackRef, source: e.StackRef) -> None:
        self.code.emit(o.MOV, self.layout.next[target.stack], self.layout.next[source.stack])
        to, from_ = (self.program.stacks[ref.stack].columns for ref in (target, source))
        for column, from_column in zip(to, from_, strict=True):
            for header, from_header in zip(column, from_column, strict=True):
                self.assign_header(e.HeaderRef(header), e.HeaderRef(from_header))

    def push(self, stack: e.StackRef, n: e.Expr) -> None:
        self._shift(stack, n, 1)

    def pop(self, stack: e.StackRef, n: e.Expr) -> None:
        self._shift(stack, n, -1)

    def _shift(self, ref: e.StackRef, n: e.Expr, sign: int) -> None:
        stack = self.program.stacks[ref.stack]
        by = e.Op("?", (e.Op(">", (n, e.Const(0))), n, e.Const(0)))
        cell = self.ex.exact_narrow(by if sign > 0 else e.Op("-", (e.Const(0), by)), "a number of elements")
        for column in stack.columns:
            self.code.emit(o.HSHIFT, self.code.words(column), stack.depth, cell)
        self.code.emit(o.NEXT, self.layout.next[ref.stack], cell, stack.depth)
        self.ex.forget_all()

    def add_header(self, header: e.Expr) -> None:
        self.code.emit(o.HADD, self.ex.header_id(header), 0)
        self.touched(header)

    def add_header_fast(self, header: e.Expr) -> None:
        self.code.emit(o.HADD, self.ex.header_id(header), 1)
        self.touched(header)

    def remove_header(self, header: e.Expr) -> None:
        self.code.emit(o.HREM, self.ex.header_id(header))
        self.touched(header)

    # State

    def register_read(self, target: e.Expr, array: e.ObjectRef, index: e.Expr) -> None:
        size = self.state.registers[array.index].size
        low, high = self.ex.interval(index)
        value = e.RegisterRef(array.index, index)
        if low >= 0 and high < size:
            self.assign(target, value)
            return
        over = Label()
        self.code.emit(o.RNG, self.ex.index(index, "the index of a register"), size, over)
        known = dict(self.ex.memo)
        self.assign(target, value)
        self.code.bind(over)
        # Values computed since the jump may not exist when it is taken.
        for key in [key for key in self.ex.memo if key not in known]:
            del self.ex.memo[key]

    def register_write(self, array: e.ObjectRef, index: e.Expr, value: e.Expr) -> None:
        register = self.state.registers[array.index]
        n = limbs(register.width)
        cells = self.ex.index(index, "the index of a register"), self.ex.cells(value, n)
        self.code.emit(o.REGW, self.ex.register_words(array.index), cells[0], n, cells[1])
        self.ex.forget(REGISTERS)

    def count(self, array: e.ObjectRef, index: e.Expr) -> None:
        counter = self.state.counters[array.index]
        words = self.code.words((counter.data.ctypes.data, counter.size))
        self.code.emit(o.COUNT, words, self.ex.index(index, "the index of a counter"))

    def execute_meter(self, array: e.ObjectRef, index: e.Expr, target: e.Expr, *, is_psa: bool = False) -> None:
        over, cell = Label(), self.ex.index(index, "the index of a meter")
        self.code.emit(o.RNG, cell, self.state.meters[array.index].size, over)
        color = self.code.result(o.METER, self.meter_words(array.index), cell)
        if is_psa:  # colors are numbered red, green, yellow (psa.p4)
            after = self.code.result(o.ADD, color, self.code.const(1))
            color = self.code.result(o.REMU, after, self.code.const(3))
        self.assign(target, Cell(color, 1, 32))
        self.ex.bind(over)

    def _Meter_execute(self, array: e.ObjectRef, index: e.Expr, target: e.Expr) -> None:
        self.execute_meter(array, index, target, is_psa=True)

    def meter_words(self, index: int) -> int:
        """Constants that describe a meter array, as operands of the METER instructions."""
        meter = self.state.meters[index]
        arrays = (meter.configured, meter.rate, meter.burst, meter.tokens, meter.last)
        addresses = (array.ctypes.data for array in arrays)
        return self.code.words((*addresses, meter.rate_count, int(meter.counts_bytes), meter.size))

    # Forwarding decisions

    def drop(self) -> None:
        for name, value in (("standard_metadata.egress_spec", self.drop_port), ("intrinsic_metadata.mcast_grp", 0)):
            ref = self.program.field(name)
            if ref is not None:
                self.assign(ref, e.Const(value))

    def mark_to_drop(self, header: e.Expr) -> None:
        if not isinstance(header, e.HeaderRef):
            raise Unsupported("mark_to_drop of a header known only at run time")
        names = self.program.headers[header.header].type.field_index
        for name, value in (("egress_spec", self.drop_port), ("mcast_grp", 0)):
            if name in names:
                self.assign(e.FieldRef(header.header, names[name]), e.Const(value))

    def _request(self, name: str, value: e.Expr, width: int) -> None:
        self.ex.narrow(e.Op("&", (value, e.Const(mask(width)))), getattr(CELL, name))

    def generate_digest(self, receiver: e.Expr, list_id: e.Expr) -> None:
        self._request("digest", list_id, 16)

    def clone_ingress_pkt_to_egress(self, session: e.Expr, field_list: e.Expr) -> None:
        self.ex.narrow(e.Op("+", (e.Op("&", (session, e.Const(0x7FFF))), e.Const(1))), CELL.clone)
        self._request("clone_list", field_list, 16)

    def resubmit(self, field_list: e.Expr) -> None:
        self._request("resubmit", field_list, 16)

    def recirculate(self, field_list: e.Expr) -> None:
        self._request("recirculate", field_list, 16)

    def truncate(self, length: e.Expr) -> None:
        self.code.emit(o.TRUNC, self.ex.exact_narrow(length, "a length"))

    # Control flow

    def no_op(self) -> None:
        """Emit nothing."""

    def exit(self) -> None:
        self.code.emit(o.MOV, CELL.exit, self.code.const(1))

    def _event(self, kind: int, call: ir.Primitive, values: tuple[e.Expr, ...] = ()) -> None:
        message = Message(call)
        cells = []
        for value in values:
            cell, n, is_signed = self.ex.exact(value)
            cells.append((cell, n))
            message.values.append((n, is_signed))
        self.code.emit(o.EVENT, kind, len(self.messages), sum(n for _, n in cells))
        for cell, n in cells:
            self.code.emit(o.EVADD, cell, n)
        self.messages.append(message)

    def assume(self, call: ir.Primitive, condition: e.Expr) -> None:
        over = Label()
        self.code.emit(o.JNZ, self.ex.narrow(condition), over)
        self._event(ABORT, call)
        self.code.emit(o.TRAP, ABORTED)
        self.ex.bind(over)

    def log_msg(self, call: ir.Primitive, text: e.Text, values: e.Vector) -> None:
        if n_arguments(text.text) != len(values.items):
            self._event(ABORT, call)
            self.code.emit(o.TRAP, ABORTED)
        else:
            self._event(LOG, call, values.items)


def _target(call: ir.Primitive) -> int:
    """Target of a jump."""
    match call.args[-1]:
        case e.Const(target):
            return target
    raise Unsupported("a computed jump")


def _within(value: e.Expr, low: int, high: int) -> e.Op:
    return e.Op("and", (e.Op(">=", (value, e.Const(low))), e.Op("<=", (value, e.Const(high)))))
