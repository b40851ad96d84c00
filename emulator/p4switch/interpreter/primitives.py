"""The primitives: each is a method of the same name, which takes its arguments as nodes and evaluates them as needed.

`Primitives.run` calls one; the loader's PRIMITIVES lists the arguments. Jumps and exit only set a flag that the
action's loop reads.
"""

import random

from emulator.p4switch.interpreter.calculations import compute
from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.program.aborts import abort_of, log_text, n_arguments
from emulator.p4switch.state.state import State
from switchml import logs

log = logs.of("switchml.bmv2")


class Primitives:
    """Implementations of the primitives. `drop_port`: the egress_spec of dropped packets; `random`: the source of
    random values."""

    def __init__(self, state: State, drop_port: int = 511, seed: int | None = None) -> None:
        self.state = state
        self.program = state.program
        self.drop_port = drop_port
        self.random = random.Random(seed)
        self.jump_to: int | None = None

    def run(self, primitive: ir.Primitive, on: Expressions) -> None:
        """Execute one primitive. Raises ProgramAbort where BMv2 ends the process."""
        op = "assume" if primitive.op == "assert" else primitive.op
        call = (primitive,) if op in ("assume", "log_msg") else ()
        getattr(self, op)(on, *call, *primitive.args)

    # Assignments

    def assign(self, on: Expressions, target: e.Expr, value: e.Expr) -> None:
        on.store(target, int(on.value(value)))

    def assign_VL(self, on: Expressions, target: e.Expr, value: e.Expr) -> None:
        """Copy a varbit field including its width."""
        to, source = on.field(target), on.field(value)
        if to is not None and source is not None:
            on.packet.varbit[to[0]] = on.packet.width(*source)
            on.packet.set(*to, on.packet.get(*source))

    def modify_field_rng_uniform(self, on: Expressions, target: e.Expr, low: e.Expr, high: e.Expr) -> None:
        lowest, highest = on.value(low), on.value(high)
        if lowest <= highest:
            on.store(target, self.random.randint(lowest, highest))

    def modify_field_with_hash_based_offset(
        self, on: Expressions, target: e.Expr, base: e.Expr, calculation: e.ObjectRef, size: e.Expr
    ) -> None:
        low64 = (1 << 64) - 1
        modulus = on.value(size) & low64 or 1
        result = compute(calculation.index, on.packet, self.state) % modulus + (on.value(base) & low64)
        on.store(target, result & low64)

    # Headers and stacks

    def assign_header(self, on: Expressions, target: e.Expr, source: e.Expr) -> None:
        to, from_ = on.header(target), on.header(source)
        if to is not None and from_ is not None:
            on.packet.assign_header(to, from_)
        elif to is not None:
            on.packet.set_invalid(to)

    def assign_union(self, on: Expressions, target: e.Union, source: e.Union) -> None:
        for to, from_ in zip(target.members, source.members, strict=True):
            self.assign_header(on, to, from_)

    def assign_header_stack(self, on: Expressions, target: e.StackRef, source: e.StackRef) -> None:
        on.packet.next_in_stack[target.stack] = on.packet.next_in_stack[source.stack]
        to, from_ = (self.program.stacks[ref.stack].columns for ref in (target, source))
        for column, from_column in zip(to, from_, strict=True):
            for header, from_header in zip(column, from_column, strict=True):
                on.packet.assign_header(header, from_header)

    def push(self, on: Expressions, stack: e.StackRef, n: e.Expr) -> None:
        self._shift(on, stack, max(on.value(n), 0))

    def pop(self, on: Expressions, stack: e.StackRef, n: e.Expr) -> None:
        self._shift(on, stack, -max(on.value(n), 0))

    def _shift(self, on: Expressions, ref: e.StackRef, n: int) -> None:
        stack, next_in = self.program.stacks[ref.stack], on.packet.next_in_stack
        next_in[ref.stack] = min(max(next_in[ref.stack] + n, 0), stack.depth)
        for column in stack.columns:
            on.packet.shift_stack(column, n)

    def add_header(self, on: Expressions, header: e.Expr) -> None:
        index = on.header(header)
        if index is not None and not on.packet.valid[index]:
            on.packet.values[index] = [0] * len(on.packet.values[index])
            on.packet.set_valid(index)
            on.packet.packet_length += on.packet.bits(index) // 8

    def add_header_fast(self, on: Expressions, header: e.Expr) -> None:
        index = on.header(header)
        if index is not None:
            on.packet.set_valid(index)

    def remove_header(self, on: Expressions, header: e.Expr) -> None:
        index = on.header(header)
        if index is not None and on.packet.valid[index]:
            on.packet.packet_length -= on.packet.bits(index) // 8
            on.packet.set_invalid(index)

    # State

    def register_read(self, on: Expressions, target: e.Expr, array: e.ObjectRef, index: e.Expr) -> None:
        register, at = self.state.registers[array.index], on.value(index)
        if 0 <= at < register.size:
            on.store(target, register[at])

    def register_write(self, on: Expressions, array: e.ObjectRef, index: e.Expr, value: e.Expr) -> None:
        register, at = self.state.registers[array.index], on.value(index)
        if 0 <= at < register.size:
            register[at] = int(on.value(value))

    def count(self, on: Expressions, array: e.ObjectRef, index: e.Expr) -> None:
        counter, at = self.state.counters[array.index], on.value(index)
        if 0 <= at < counter.size:
            counter.count(at, on.packet.ingress_length)

    def execute_meter(self, on: Expressions, array: e.ObjectRef, index: e.Expr, target: e.Expr) -> None:
        meter, at = self.state.meters[array.index], on.value(index)
        if 0 <= at < meter.size:
            on.store(target, meter.execute(at, on.packet.ingress_length, self.state.clock()))

    def _Meter_execute(self, on: Expressions, array: e.ObjectRef, index: e.Expr, target: e.Expr) -> None:
        """PSA numbers the colors red, green, yellow (psa.p4)."""
        meter, at = self.state.meters[array.index], on.value(index)
        if 0 <= at < meter.size:
            on.store(target, (meter.execute(at, on.packet.ingress_length, self.state.clock()) + 1) % 3)

    # Forwarding decisions

    def drop(self, on: Expressions) -> None:
        for name, value in (("standard_metadata.egress_spec", self.drop_port), ("intrinsic_metadata.mcast_grp", 0)):
            ref = self.program.field(name)
            if ref is not None:
                on.packet.set(ref.header, ref.field, value)

    def mark_to_drop(self, on: Expressions, header: e.Expr) -> None:
        index = on.header(header)
        if index is None:
            return
        names = self.program.headers[index].type.field_index
        for name, value in (("egress_spec", self.drop_port), ("mcast_grp", 0)):
            if name in names:
                on.packet.set(index, names[name], value)

    def generate_digest(self, on: Expressions, receiver: e.Expr, list_id: e.Expr) -> None:
        on.packet.digest = on.value(list_id) & 0xFFFF

    def clone_ingress_pkt_to_egress(self, on: Expressions, session: e.Expr, field_list: e.Expr) -> None:
        on.packet.clone = (on.value(session) & 0x7FFF) + 1
        on.packet.clone_list = on.value(field_list) & 0xFFFF

    def resubmit(self, on: Expressions, field_list: e.Expr) -> None:
        on.packet.resubmit = on.value(field_list) & 0xFFFF

    def recirculate(self, on: Expressions, field_list: e.Expr) -> None:
        on.packet.recirculate = on.value(field_list) & 0xFFFF

    def truncate(self, on: Expressions, length: e.Expr) -> None:
        limit = max(on.value(length), 0)
        before = on.packet.truncate_to
        on.packet.truncate_to = limit if before is None else min(before, limit)

    # Control flow

    def no_op(self, on: Expressions) -> None:
        pass

    def exit(self, on: Expressions) -> None:
        on.packet.exit = True

    def _jump(self, on: Expressions, to: e.Expr) -> None:
        self.jump_to = on.value(to)

    def _jump_if_zero(self, on: Expressions, condition: e.Expr, to: e.Expr) -> None:
        if not on.value(condition):
            self.jump_to = on.value(to)

    def assume(self, on: Expressions, call: ir.Primitive, condition: e.Expr) -> None:
        if not on.value(condition):
            raise abort_of(call)

    def log_msg(self, on: Expressions, call: ir.Primitive, text: e.Text, values: e.Vector) -> None:
        if n_arguments(text.text) != len(values.items):
            raise abort_of(call)
        log.info("%s", log_text(text.text, [int(on.value(item)) for item in values.items]))
