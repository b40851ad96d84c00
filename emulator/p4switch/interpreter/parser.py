"""The parser: states, their operations and transitions, and error handling."""

from emulator.p4switch.interpreter.calculations import verify
from emulator.p4switch.interpreter.expressions import Expressions
from emulator.p4switch.interpreter.packet import Packet
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.program import expr as e
from emulator.p4switch.program import ir
from emulator.p4switch.state.state import State
from emulator.p4switch.values import mask, n_bytes, pad_key, padded_width

MAX_STATES = 1 << 16
"""Maximum parse states of a packet; beyond, the parser stops with the error ParserTimeout."""


class ParserError(Exception):
    """Stops parsing; `code` is the error's number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Parser:
    """Parses one packet: fills its headers, `payload`, `parser_error` and `checksum_error`."""

    def __init__(self, parser: ir.Parser, packet: Packet, state: State, primitives: Primitives) -> None:
        self.parser = parser
        self.packet = packet
        self.state = state
        self.program = state.program
        self.expressions = Expressions(packet, state)
        self.primitives = primitives

    def run(self) -> None:
        """Parse from the start state to the end or to an error, then verify checksums."""
        packet = self.packet
        packet.payload = packet.data
        packet.parser_error = self.program.errors["NoError"]
        packet.checksum_error = False
        number, n_states = self.parser.init_state, 0
        try:
            while number != ir.END:
                n_states += 1
                if n_states > MAX_STATES:
                    raise self._error("ParserTimeout")
                number = self._pass(self.parser.states[number])
        except ParserError as error:
            self._fail(error)
        packet.payload = packet.data[self.expressions.at :]
        for checksum in self.program.checksums:
            if checksum.verify and not self._is_right(checksum):
                packet.checksum_error = True

    def _pass(self, state: ir.ParseState) -> int:
        """Run a state; returns the number of the next one."""
        for op in state.ops:
            self._run(op)
        return self._next(state)

    def _fail(self, error: ParserError) -> None:
        self.packet.parser_error = error.code

    def _is_right(self, checksum: ir.Checksum) -> bool:
        values = self._verify(checksum)
        return values is None or values[0] == values[1]

    def _verify(self, checksum: ir.Checksum) -> tuple[int, int] | None:
        return verify(checksum, self.packet, self.state)

    def _error(self, name: str) -> ParserError:
        return ParserError(self.program.errors[name])

    @property
    def _left(self) -> int:
        """Number of unparsed bytes."""
        return len(self.packet.data) - self.expressions.at

    def _run(self, op: ir.ParserOp) -> None:
        match op:
            case ir.Extract(target, length):
                self._extract(target, length)
            case ir.Set(dest, value):
                self._set(dest, value)
            case ir.Verify(condition, error):
                if not self.expressions.value(condition):
                    raise ParserError(self.expressions.value(error))
            case ir.Advance(bits):
                self._advance(self.expressions.value(bits))
            case ir.PrimitiveCall(primitive):
                self.primitives.run(primitive, self.expressions)

    # Extract

    def _extract(self, target: e.Expr, length: e.Expr | None) -> None:
        header = self.expressions.header(target)
        if header is None:
            raise self._error("StackOutOfBounds")
        header_type = self.program.headers[header].type
        varbit = 0
        if header_type.varbit is not None:
            varbit = self._own_length(header_type) if length is None else self.expressions.value(length)
            if varbit % 8 or varbit < 0:
                raise self._error("ParserInvalidArgument")
        n = n_bytes(header_type.width + varbit)
        if n > self._left:
            raise self._error("PacketTooShort")
        if varbit and header_type.max_length and n > header_type.max_length:
            raise self._error("HeaderTooShort")
        at = self.expressions.at
        bits = int.from_bytes(self.packet.data[at : at + n], "big")
        self.packet.fill(header, bits, 8 * n, varbit)
        self.expressions.at += n
        if isinstance(target, e.StackElement):
            self.packet.next_in_stack[target.stack.stack] += 1

    def _own_length(self, header_type: ir.HeaderType) -> int:
        """Width of the varbit field, computed from the preceding fields as its header type specifies."""
        before = header_type.fields[: header_type.varbit]
        width = sum(field.width for field in before)
        at = self.expressions.at
        if n_bytes(header_type.width) > self._left:
            raise self._error("PacketTooShort")
        bits = int.from_bytes(self.packet.data[at : at + n_bytes(width)], "big") >> -width % 8
        assert header_type.length is not None
        args = [bits >> (width - field.offset - field.width) & mask(field.width) for field in before]
        args += [0] * (len(header_type.fields) - len(args))
        return Expressions(self.packet, self.state, args).value(header_type.length)

    # Set, advance

    def _set(self, dest: e.FieldRef, value: e.Expr) -> None:
        self._check_ahead(value)
        if dest.field == self.program.headers[dest.header].type.varbit:
            self.primitives.assign_VL(self.expressions, dest, value)
        else:
            self.expressions.store(dest, self.expressions.value(value))

    def _check_ahead(self, value: e.Expr) -> None:
        """Reject a look-ahead beyond the packet (P4_16 12.8.3)."""
        if isinstance(value, e.Lookahead) and n_bytes(value.offset + value.width) > self._left:
            raise self._error("PacketTooShort")

    def _advance(self, bits: int) -> None:
        if bits % 8 or bits < 0:
            raise self._error("ParserInvalidArgument")
        if bits // 8 > self._left:
            raise self._error("PacketTooShort")
        self.expressions.at += bits // 8

    # Transitions

    def _next(self, state: ir.ParseState) -> int:
        if not state.key:
            return state.default
        widths = [part.width for part in state.key]
        key = self._key(state)
        for transition in state.transitions:
            if self._fits(transition, key, widths):
                return transition.next_state
        return state.default

    def _key(self, state: ir.ParseState) -> int:
        """The key compared by a state's transitions: its parts, each padded to whole bytes."""
        key = 0
        for part in state.key:
            self._check_ahead(part.value)
            key = key << 8 * n_bytes(part.width) | self.expressions.value(part.value) & mask(part.width)
        return key

    def _fits(self, transition: ir.Transition, key: int, widths: list[int]) -> bool:
        cover = mask(padded_width(widths)) if transition.mask is None else transition.mask
        if transition.vset is None:
            return key & cover == transition.value & cover
        values = self.state.parse_vsets[transition.vset].values
        return any(key & cover == pad_key(value, widths) & cover for value in values)
