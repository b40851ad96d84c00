"""The interpreter with a packet log: each class logs the operations of its base class.

Texts, levels and order are those of BMv2 1.15: its BMLOG_* calls, and the dump functions of match_units.cpp,
match_tables.cpp and action_profile.cpp."""

from collections.abc import Sequence
from typing import Any

from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.interpreter.packet_log import PacketLog
from emulator.p4switch.interpreter.parser import Parser, ParserError
from emulator.p4switch.interpreter.pipeline import Pipeline
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.packet_path import fields as f
from emulator.p4switch.packet_path import notes as n
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import ActionProfile, RunAction, Target, UseGroup, UseMember
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import Entry
from emulator.p4switch.values import n_bytes, padded_width


def place(source: ir.Source) -> str:
    return f"{source.filename}({source.line})" if source.filename else ""


def hexadecimal(value: int, width: int) -> str:
    """A field's bytes in hexadecimal."""
    return f"{value:0{2 * n_bytes(width)}x}"


class LoggedParser(Parser):
    def run(self) -> None:
        name, trace = self.parser.name, self.packet.trace
        trace.debug("parser_start", f"Parser '{name}': start", parser=name)
        super().run()
        trace.debug("parser_end", f"Parser '{name}': end", parser=name)

    def _pass(self, state: ir.ParseState) -> int:
        text = f"Parser '{self.parser.name}' entering state '{state.name}'"
        self.packet.trace.debug("parser_state", text, parser=self.parser.name, state=state.name)
        number = super()._pass(state)
        self.packet.trace.trace("bytes_parsed", f"Bytes parsed: {self.expressions.at}", bytes=self.expressions.at)
        return number

    def _fail(self, error: ParserError) -> None:
        super()._fail(error)
        name = next((name for name, code in self.program.errors.items() if code == error.code), str(error.code))
        self.packet.trace.error("parser_error", f"Exception while parsing: {name}", error=name)

    def _run(self, op: ir.ParserOp) -> None:
        match op:
            case ir.Extract(target, length):
                self._announce(target, length is not None)
            case ir.Advance(bits):
                by, trace = self.expressions.value(bits), self.packet.trace
                if by % 8:
                    trace.error("advance", f"advance bits amount {by} must be a multiple of 8", bits=by)
                else:
                    trace.debug("advance", f"Advancing by {by // 8} bytes", bits=by)
            case ir.PrimitiveCall(primitive):
                self.packet.trace.debug("method", f"Executing method {primitive.op}", method=primitive.op)
        super()._run(op)
        if isinstance(op, ir.Set):
            self._report_set(op.dest, op.value)

    def _announce(self, target: e.Expr, has_length: bool) -> None:
        index = self.expressions.header(target)
        if index is None:
            return
        header = self.program.headers[index]
        if isinstance(target, e.StackElement):
            stack = self.program.stacks[target.stack.stack]
            kind = "header union stack" if stack.members else "header stack"
            text = f"Extracting to {kind} {stack.id}, next header is {header.id}"
        else:
            text = f"Extracting {'variable-sized ' if has_length else ''}header '{header.name}'"
        self.packet.trace.debug("extract", text, header=header.name)

    def _report_set(self, dest: e.FieldRef, value: e.Expr) -> None:
        name, now = self.program.field_name(dest), self.packet.get(dest.header, dest.field)
        match value:
            case e.FieldRef():
                how = f"from field '{self.program.field_name(value)}' ({now})"
            case e.Const():
                how = f"to {now}"
            case e.Lookahead(offset, width):
                how = f"from lookahead ({offset % 8}, {width}), new value is {now}"
            case _:
                how = f"from expression, new value is {now}"
        self.packet.trace.debug("set", f"Parser set: setting field '{name}' {how}", field=name, value=hex(now))

    def _next(self, state: ir.ParseState) -> int:
        if not state.key:
            text = f"Parser state '{state.name}' has no switch, going to default next state"
            self.packet.trace.debug("no_switch", text, state=state.name)
        return super()._next(state)

    def _key(self, state: ir.ParseState) -> int:
        key = super()._key(state)
        text = hexadecimal(key, padded_width([part.width for part in state.key]))
        self.packet.trace.debug("parser_key", f"Parser state '{state.name}': key is {text}", state=state.name, key=text)
        return key

    def _is_right(self, checksum: ir.Checksum) -> bool:
        name, trace = checksum.name, self.packet.trace
        values = self._verify(checksum)
        if values is None:
            is_there = self.packet.valid[checksum.target.header]
            why = "condition not met" if is_there else "target field invalid"
            trace.trace("checksum", f"Skipping checksum '{name}' verification because {why}", checksum=name, result="")
            return True
        is_right = values[0] == values[1]
        if checksum.calculation is not None:
            text = f"Checksum '{name}': computed {values[0]:#x} - actual {values[1]:#x}"
            trace.debug("checksum_values", text, checksum=name, computed=hex(values[0]), actual=hex(values[1]))
        result = "passed" if is_right else "failed"
        trace.debug("checksum", f"Verified checksum '{name}': {result}", checksum=name, result=result)
        if not is_right:
            trace.error("checksum_error", f"Checksum '{name}' is not correct", checksum=name)
        return is_right


class LoggedPipeline(Pipeline):
    def apply(self, pipeline: ir.Pipeline) -> bool:
        name, trace = pipeline.name, self.packet.trace
        trace.debug("pipeline_start", f"Pipeline '{name}': start", pipeline=name)
        is_whole = super().apply(pipeline)
        if not is_whole:
            trace.debug("exit", "Packet is marked for exit, interrupting pipeline", pipeline=name)
        trace.debug("pipeline_end", f"Pipeline '{name}': end", pipeline=name)
        return is_whole

    def is_true(self, node: ir.Conditional) -> bool:
        result = super().is_true(node)
        text = f'Condition "{node.source.fragment or node.name}" ({node.name}) is {str(result).lower()}'
        self.packet.trace.trace("condition", text, place(node.source), condition=node.name, result=result)
        return result

    def key(self, table: ir.Table) -> tuple[int, ...]:
        self.packet.trace.trace("table", f"Applying table '{table.name}'", table=table.name)
        values = super().key(table)
        key = [
            (field.name, hexadecimal(value, width_of(field))) for field, value in zip(table.key, values, strict=True)
        ]
        self.packet.trace.debug("key", f"Looking up key:\n{columns(key)}", table=table.name, key=dict(key))
        return values

    def resolve(self, table: ir.Table, entry: Entry | None, target: Target | None) -> RunAction | None:
        run, trace = super().resolve(table, entry, target), self.packet.trace
        if entry is None:
            trace.debug("miss", f"Table '{table.name}': miss", table=table.name)
        else:
            text = f"Table '{table.name}': hit with handle {entry.handle}"
            trace.debug("hit", text, table=table.name, handle=entry.handle)
            match = [(field.name, matched(param, field)) for param, field in zip(entry.match, table.key, strict=True)]
            priority = {} if entry.priority < 0 else {"priority": entry.priority}
            trace.debug("entry", self._dump(table, entry, match), table=table.name, match=dict(match), **priority)
        text = f"Action entry is {self.action_entry(run)}"
        trace.debug("action_entry", text, table=table.name, **self.action_data(run))
        return run

    def choose(self, profile: ActionProfile, group: int) -> int | None:
        member = super().choose(profile, group)
        if member is not None:
            text = f"Choosing member {member} from group {group}"
            self.packet.trace.debug("member", text, profile=profile.name, group=group, member=member)
        return member

    def report_empty_group(self, table: ir.Table) -> None:
        text = f"Lookup in table '{table.name}' yielded empty group"
        self.packet.trace.error("empty_group", text, table=table.name)

    def run_action(self, index: int, args: Sequence[int]) -> None:
        action = self.program.actions[index]
        self.packet.trace.trace("action", f"Action {action.name}", place(action.source), action=action.name)
        super().run_action(index, args)

    # Entries

    def action_entry(self, run: RunAction | None) -> str:
        """An action with its data, formatted as by BMv2."""
        if run is None:
            return "NULL"
        return f"{self.program.actions[run.action].name} - " + "".join(f"{arg:x}," for arg in run.args)

    def action_data(self, run: RunAction | None) -> dict[str, Any]:
        if run is None:
            return {"action": None, "data": {}}
        action = self.program.actions[run.action]
        names = [param.name for param in action.params]
        return {"action": action.name, "data": dict(zip(names, map(hex, run.args), strict=True))}

    def _dump(self, table: ir.Table, entry: Entry, match: list[tuple[str, str]]) -> str:
        text = f"Dumping entry {entry.handle}\nMatch key:\n{columns(match)}"
        if entry.priority >= 0:
            text += f"Priority: {entry.priority}\n"
        profile = self.state.tables[table.index].profile
        match entry.target:
            case RunAction() as run:
                return f"{text}Action entry: {self.action_entry(run)}\n"
            case UseMember(member):
                assert profile is not None
                return (
                    f"{text}Index: member({member})\nAction entry: {self.action_entry(profile.members[member].run)}\n"
                )
            case UseGroup(group):
                assert profile is not None
                members = ((member, profile.members[member].run) for member in sorted(profile.groups[group].members))
                lines = (f"  mbr {member}: {self.action_entry(run)}\n" for member, run in members)
                return f"{text}Index: group({group})\nGroup members:\n{''.join(lines)}"


def width_of(field: ir.KeyField) -> int:
    return 8 if field.kind == "valid" else field.width


def columns(pairs: Sequence[tuple[str, str]]) -> str:
    """Lines of names and values, with names padded to at least 20 characters."""
    width = max([20, *(len(name) for name, _ in pairs)])
    return "".join(f"* {name:{width}}: {value}\n" for name, value in pairs)


def matched(param: ir.MatchParam, field: ir.KeyField) -> str:
    """A field of an entry's key: its kind, padded to 10 characters, and the bytes."""
    value = hexadecimal(param.value, width_of(field))
    if param.kind == "lpm":
        value += f"/{param.extra}"
    elif param.kind in ("ternary", "range"):
        value += f" {'&&&' if param.kind == 'ternary' else '->'} {hexadecimal(param.extra, width_of(field))}"
    return f"{param.kind.upper():10}{value}"


class LoggedPrimitives(Primitives):
    def run(self, primitive: ir.Primitive, on: Expressions) -> None:
        text = f"Primitive {primitive.source.fragment or '(no source info)'}"
        on.packet.trace.trace("primitive", text, place(primitive.source), primitive=primitive.op)
        super().run(primitive, on)

    def count(self, on: Expressions, array: e.ObjectRef, index: e.Expr) -> None:
        super().count(on, array, index)
        self._report(on, "counter", self.program.counters[array.index], on.value(index), "update", "Updated", "")

    def execute_meter(self, on: Expressions, array: e.ObjectRef, index: e.Expr, target: e.Expr) -> None:
        at = on.value(index)
        super().execute_meter(on, array, index, target)
        then = f", assigning dest field the color result {on.value(target)}"
        self._report(on, "meter", self.program.meters[array.index], at, "update", "Updated", then)

    def register_read(self, on: Expressions, target: e.Expr, array: e.ObjectRef, index: e.Expr) -> None:
        at, cells = on.value(index), self.state.registers[array.index]
        super().register_read(on, target, array, index)
        then = f" read value {cells[at]}" if 0 <= at < cells.size else ""
        self._report(on, "register", self.program.registers[array.index], at, "read", "Read", then)

    def register_write(self, on: Expressions, array: e.ObjectRef, index: e.Expr, value: e.Expr) -> None:
        at, cells = on.value(index), self.state.registers[array.index]
        super().register_write(on, array, index, value)
        then = f" with value {cells[at]}" if 0 <= at < cells.size else ""
        self._report(on, "register", self.program.registers[array.index], at, "write", "Wrote", then)

    def _report(self, on: Expressions, sort: str, array: Any, at: int, verb: str, past: str, then: str) -> None:
        """Log the access to a cell of an array, or that it is out of bounds."""
        data = {sort: array.name, "index": at}
        if 0 <= at < array.size:
            on.packet.trace.trace(sort, f"{past} {sort} '{array.name}' at index {at}{then}", **data)
        else:
            text = f"Attempted to {verb} {sort} '{array.name}' with size {array.size} at out-of-bounds index {at}."
            on.packet.trace.error(f"{sort}_out_of_bounds", text, **data)

    def modify_field_rng_uniform(self, on: Expressions, target: e.Expr, low: e.Expr, high: e.Expr) -> None:
        lowest, highest = on.value(low), on.value(high)
        super().modify_field_rng_uniform(on, target, low, high)
        result = on.value(target)
        on.packet.trace.trace("random", f"random(lo={lowest}, hi={highest}) = {result}", value=hex(result))

    def modify_field_with_hash_based_offset(
        self, on: Expressions, target: e.Expr, base: e.Expr, calculation: e.ObjectRef, size: e.Expr
    ) -> None:
        first, most = on.value(base), on.value(size)
        super().modify_field_with_hash_based_offset(on, target, base, calculation, size)
        result = on.value(target)
        on.packet.trace.trace("hash", f"hash(base={first}, max={most}) = {result}", value=hex(result))


class LoggedInterpreter(Interpreter):
    """Logs all packet processing to `packet_log`."""

    parser = LoggedParser
    pipeline = LoggedPipeline
    make_primitives = LoggedPrimitives

    def __init__(self, state: State, *settings: Any, packet_log: PacketLog, stale_fields: bool = False) -> None:
        super().__init__(state, *settings, stale_fields=stale_fields)
        self.packet_log = packet_log
        self._original: Packet | None = None

    def _new(self, port: int, data: bytes) -> Packet:
        packet = super()._new(port, data)
        packet.trace = self.packet_log.new_packet()
        return packet

    def save(self, packet: Packet) -> Packet:
        self._original = packet
        return super().save(packet)

    def unparsed(self, aside: Packet) -> Packet:
        copy = super().unparsed(aside)
        copy.trace = aside.trace.new_copy()
        return copy

    def duplicate(self, aside: Packet) -> Packet:
        copy = super().duplicate(aside)
        copy.trace = aside.trace.new_copy()
        return copy

    def note(self, packet: Packet, note: int, value: int) -> None:
        if note in (n.TO_GROUP, n.TO_PORT) and not self.program.is_psa and self._original is not None:
            packet = self._original  # simple_switch logs this for the packet that was cloned
        text = (n.NOTES[note].psa if self.program.is_psa else n.NOTES[note].v1model).format(value)
        if note == n.REPLICATED and self.program.is_psa:
            text += f" with instance {self.get(packet, f.EGRESS_INPUT_INSTANCE)}"
        packet.trace.debug(n.NOTES[note].name, text, value=value)

    def run(self, packet: Packet, block: int) -> bool:
        has_ended = super().run(packet, block)
        if not has_ended:
            packet.trace.error("endless", "Dropping a packet that does not end")
        return has_ended

    def update(self, checksum: ir.Checksum, packet: Packet) -> bool:
        name, trace = checksum.name, packet.trace
        is_updated = super().update(checksum, packet)
        if is_updated:
            trace.debug("checksum_update", f"Updating checksum '{name}'", checksum=name)
        else:
            text = f"Skipping checksum '{name}' update because condition not met"
            trace.trace("checksum_update", text, checksum=name)
        return is_updated

    def deparse(self, packet: Packet, block: int) -> bool:
        deparser, trace = self.blocks[block], packet.trace
        assert isinstance(deparser, ir.Deparser)
        trace.debug("deparser_start", f"Deparser '{deparser.name}': start", deparser=deparser.name)
        super().deparse(packet, block)
        for header in (self.program.headers[index] for index in deparser.order if packet.valid[index]):
            trace.debug("deparse", f"Deparsing header '{header.name}'", header=header.name)
        trace.debug("deparser_end", f"Deparser '{deparser.name}': end", deparser=deparser.name)
        return True

    def learn(self, packet: Packet) -> None:
        packet.trace.trace("digest", f"Learning sample for list id {packet.digest}", list=packet.digest)
        super().learn(packet)

    def send(self, packet: Packet, port: int) -> None:
        size = len(packet.output)
        text = f"Transmitting packet of size {size} out of port {port}"
        packet.trace.debug("transmit", text, bytes=size, port=port)
        super().send(packet, port)
