"""Values in P4Runtime's messages, encoded big-endian in the shortest possible string (section "Bytestrings"); P4Data by
P4Info's types of registers and digests (section "Representation of Arbitrary P4 Types"); and messages whose fields have
numbers in P4Info: actions with their arguments (section "Action Specification"), and packets (section "Packet I/O"):
frames on the CPU port begin with the headers that the program annotates with @controller_header, whose fields P4Runtime
transmits as metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emulator.p4switch.p4runtime.errors import rpc_error
from emulator.p4switch.state.action_profiles import RunAction
from emulator.p4switch.values import mask, n_bytes, two_comp_mod
from switchml.control.p4runtime_protos import info, v1

PACKET_IN, PACKET_OUT = "packet_in", "packet_out"


def encode(value: int) -> bytes:
    """Canonical encoding of an unsigned number."""
    return value.to_bytes(max(n_bytes(value.bit_length()), 1), "big")


def decode(data: bytes, width: int, what: str, signed: bool = False) -> int:
    """Decode a number of at most `width` bits, unsigned or in two's complement; leading zeros are allowed. Raises
    OUT_OF_RANGE."""
    if not data:
        raise rpc_error("OUT_OF_RANGE", f"{what}: the value is empty")
    value = int.from_bytes(data, "big", signed=signed)
    if value != (two_comp_mod(value, width) if signed else value & mask(width)):
        shown = f"{value}, with a sign," if signed else f"{value:#x}"
        raise rpc_error("OUT_OF_RANGE", f"{what}: {shown} does not fit {width} bits")
    return value


def encode_signed(value: int, width: int) -> bytes:
    """Canonical two's complement encoding of the number whose low `width` bits are `value`."""
    value = two_comp_mod(value, width)
    n_bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes(n_bytes(n_bits), "big", signed=True)


def encode_data(spec: info.P4DataTypeSpec, types: info.P4TypeInfo, values: Iterator[int]) -> v1.P4Data:
    """Encode a value of a P4DataTypeSpec. `values` yields the numbers of its parts; `types` is P4Info's P4TypeInfo."""
    kind = spec.WhichOneof("type_spec")
    data = v1.P4Data()
    if kind == "bitstring":
        data.bitstring = _encode_bits(spec.bitstring, next(values))
    elif kind == "bool":
        data.bool = bool(next(values))
    elif kind == "error":
        data.error = _name_of(types.error.members, next(values))
    elif kind == "serializable_enum":
        data.enum_value = encode(next(values))
    elif kind == "enum":
        data.enum = _name_of([member.name for member in types.enums[spec.enum.name].members], next(values))
    elif kind == "new_type":
        return encode_data(_original(spec, types), types, values)
    elif kind == "tuple":
        data.tuple.members.extend(encode_data(part, types, values) for part in spec.tuple.members)
    elif kind == "struct":
        parts = types.structs[spec.struct.name].members
        data.struct.members.extend(encode_data(part.type_spec, types, values) for part in parts)
    elif kind == "header":
        data.header.is_valid = True
        parts = types.headers[spec.header.name].members
        data.header.bitstrings.extend(_encode_bits(part.type_spec, next(values)) for part in parts)
    else:
        raise rpc_error("UNIMPLEMENTED", f"data of the type {kind} can't be sent")
    return data


def decode_data(spec: info.P4DataTypeSpec, types: info.P4TypeInfo, data: v1.P4Data, width: int, what: str) -> int:
    """Decode P4Data that is a single value, such as a register's. Raises INVALID_ARGUMENT or OUT_OF_RANGE."""
    kind = spec.WhichOneof("type_spec")
    if kind == "new_type":
        return decode_data(_original(spec, types), types, data, width, what)
    holder = {"serializable_enum": "enum_value"}.get(kind, kind)
    if data.WhichOneof("data") != holder:
        raise rpc_error("INVALID_ARGUMENT", f"{what}: the data must be a {holder}, not {data.WhichOneof('data')}")
    if kind == "bitstring":
        if spec.bitstring.WhichOneof("type_spec") == "int":
            return decode(data.bitstring, spec.bitstring.int.bitwidth, what, signed=True) & mask(width)
        return decode(data.bitstring, width, what)
    if kind == "bool":
        return int(data.bool)
    if kind == "serializable_enum":
        return decode(data.enum_value, width, what)
    raise rpc_error("UNIMPLEMENTED", f"{what}: data of the type {kind} can't be written")


def _encode_bits(spec: info.P4DataTypeSpec, value: int) -> bytes:
    if spec.WhichOneof("type_spec") == "int":
        return encode_signed(value, spec.int.bitwidth)
    return encode(value)


def _original(spec: info.P4DataTypeSpec, types: info.P4TypeInfo) -> info.P4DataTypeSpec:
    """The underlying type of a `type`; translated values are passed unchanged, as the switch's numbers."""
    new_type = types.new_types[spec.new_type.name]
    if new_type.WhichOneof("representation") == "original_type":
        return new_type.original_type
    plain = info.P4DataTypeSpec()
    plain.bitstring.bit.bitwidth = new_type.translated_type.sdn_bitwidth
    return plain


def _name_of(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else str(number)


# Messages


@dataclass(frozen=True)
class Param:
    """A parameter or a header's field: P4Info's number, and its width in bits."""

    number: int
    name: str
    width: int


@dataclass(frozen=True)
class Action:
    """An action of a table or a profile: `number` is P4Info's, `index` its index in Program.actions, `params` are in
    the switch's order. `scope`: where it may be used (ActionRef.scope)."""

    number: int
    index: int
    name: str
    params: tuple[Param, ...]
    scope: int = info.ActionRef.TABLE_AND_DEFAULT

    def decode(self, message: v1.Action) -> RunAction:
        """Decode an action and its arguments. Raises INVALID_ARGUMENT or OUT_OF_RANGE."""
        numbers = sorted(param.param_id for param in message.params)
        expected = sorted(param.number for param in self.params)
        if numbers != expected:
            raise rpc_error("INVALID_ARGUMENT", f"action {self.name} has the parameters {expected}, not {numbers}")
        data = {param.param_id: param.value for param in message.params}
        values = (decode(data[param.number], param.width, f"{self.name}, {param.name}") for param in self.params)
        return RunAction(self.index, tuple(values))

    def encode(self, run: RunAction) -> v1.Action:
        """The inverse of `decode`; parameters by ascending number."""
        message = v1.Action(action_id=self.number)
        for param, value in sorted(zip(self.params, run.args, strict=True), key=lambda pair: pair[0].number):
            message.params.add(param_id=param.number, value=encode(value))
        return message


@dataclass(frozen=True)
class Actions:
    """The actions of a table or profile, `owner`, by P4Info's number."""

    owner: str
    by_number: Mapping[int, Action]

    def decode(self, message: v1.Action, forbidden_scope: int | None = None) -> RunAction:
        """Decode an action of the owner. Raises INVALID_ARGUMENT, PERMISSION_DENIED or OUT_OF_RANGE."""
        action = self.by_number.get(message.action_id)
        if action is None:
            raise rpc_error(
                "INVALID_ARGUMENT", f"{self.owner} has no action {message.action_id} ({message.action_id:#x})"
            )
        if action.scope == forbidden_scope:
            raise rpc_error("PERMISSION_DENIED", f"{self.owner}: {action.name} may not be used there (its scope)")
        return action.decode(message)

    def encode(self, run: RunAction) -> v1.Action:
        """The inverse of `decode`; an action that is not in P4Info has no number."""
        for action in self.by_number.values():
            if action.index == run.action:
                return action.encode(run)
        return v1.Action()


class ControllerHeader:
    """A packet-in or packet-out header; fields in P4Info's order, packed without gaps."""

    def __init__(self, name: str, fields: Sequence[Param]) -> None:
        self.name = name
        self.fields = fields
        self.width = sum(field.width for field in fields)
        self.n_bytes = n_bytes(self.width)

    @classmethod
    def of(cls, p4info: info.P4Info, name: str) -> ControllerHeader:
        """P4Info's header of that name; without fields if P4Info has none."""
        for item in p4info.controller_packet_metadata:
            if item.preamble.name == name:
                return cls(name, [Param(part.id, part.name, part.bitwidth) for part in item.metadata])
        return cls(name, [])

    def split(self, frame: bytes) -> v1.PacketIn:
        """Split a frame into a packet-in. Raises INVALID_ARGUMENT if it is too short."""
        if len(frame) < self.n_bytes:
            raise rpc_error("INVALID_ARGUMENT", f"{len(frame)} bytes: {self.name} alone has {self.n_bytes}")
        message = v1.PacketIn(payload=frame[self.n_bytes :])
        bits, left = int.from_bytes(frame[: self.n_bytes], "big"), 8 * self.n_bytes
        for field in self.fields:
            left -= field.width
            message.metadata.add(metadata_id=field.number, value=encode(bits >> left & mask(field.width)))
        return message

    def join(self, message: v1.PacketOut) -> bytes:
        """Build the frame of a packet-out; missing fields are 0, as in BMv2. Raises INVALID_ARGUMENT
        or OUT_OF_RANGE."""
        values = {item.metadata_id: item.value for item in message.metadata}
        unknown = set(values) - {field.number for field in self.fields}
        if unknown:
            raise rpc_error("INVALID_ARGUMENT", f"{self.name} has no metadata with the id {min(unknown)}")
        bits = 0
        for field in self.fields:
            bits <<= field.width
            if field.number in values:
                bits |= decode(values[field.number], field.width, f"{self.name}, {field.name}")
        bits <<= 8 * self.n_bytes - self.width
        payload: bytes = message.payload
        return bits.to_bytes(self.n_bytes, "big") + payload
