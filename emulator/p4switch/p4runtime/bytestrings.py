"""Numbers as P4Runtime writes them (section "Bytestrings"): big-endian, the shortest string that holds the value; and
P4Data, by P4Info's types of registers and digests (section "Representation of Arbitrary P4 Types")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emulator.p4switch.p4runtime.refusals import refuse
from emulator.p4switch.values import mask, n_bytes, two_comp_mod
from switchml.control.p4runtime_protos import info, v1


def encode(value: int) -> bytes:
    """An unsigned number, canonical."""
    return value.to_bytes(max(n_bytes(value.bit_length()), 1), "big")


def decode(data: bytes, width: int, what: str, signed: bool = False) -> int:
    """A number of at most `width` bits, unsigned or in two's complement; leading zeros are fine. Raises
    OUT_OF_RANGE."""
    if not data:
        raise refuse("OUT_OF_RANGE", f"{what}: the value is empty")
    value = int.from_bytes(data, "big", signed=signed)
    if value != (two_comp_mod(value, width) if signed else value & mask(width)):
        shown = f"{value}, with a sign," if signed else f"{value:#x}"
        raise refuse("OUT_OF_RANGE", f"{what}: {shown} does not fit {width} bits")
    return value


def encode_signed(value: int, width: int) -> bytes:
    """The number whose low `width` bits are `value`, as two's complement, canonical."""
    value = two_comp_mod(value, width)
    n_bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes(n_bytes(n_bits), "big", signed=True)


def encode_data(spec, types, values: Iterator[int]) -> v1.P4Data:
    """A value of a type (P4DataTypeSpec) as P4Data. `values` yields the numbers of its parts, in order; `types` is the
    P4Info's P4TypeInfo."""
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
        raise refuse("UNIMPLEMENTED", f"data of the type {kind} can't be sent")
    return data


def decode_data(spec, types, data, width: int, what: str) -> int:
    """The number in P4Data that is a single value, such as a register's. Raises INVALID_ARGUMENT or OUT_OF_RANGE."""
    kind = spec.WhichOneof("type_spec")
    if kind == "new_type":
        return decode_data(_original(spec, types), types, data, width, what)
    holder = {"serializable_enum": "enum_value"}.get(kind, kind)
    if data.WhichOneof("data") != holder:
        raise refuse("INVALID_ARGUMENT", f"{what}: the data must be a {holder}, not {data.WhichOneof('data')}")
    if kind == "bitstring":
        if spec.bitstring.WhichOneof("type_spec") == "int":
            return decode(data.bitstring, spec.bitstring.int.bitwidth, what, signed=True) & mask(width)
        return decode(data.bitstring, width, what)
    if kind == "bool":
        return int(data.bool)
    if kind == "serializable_enum":
        return decode(data.enum_value, width, what)
    raise refuse("UNIMPLEMENTED", f"{what}: data of the type {kind} can't be written")


def _encode_bits(spec, value: int) -> bytes:
    if spec.WhichOneof("type_spec") == "int":
        return encode_signed(value, spec.int.bitwidth)
    return encode(value)


def _original(spec, types):
    """The type below a `type`; translated values are passed unchanged, as the switch's numbers."""
    new_type = types.new_types[spec.new_type.name]
    if new_type.WhichOneof("representation") == "original_type":
        return new_type.original_type
    plain = info.P4DataTypeSpec()
    plain.bitstring.bit.bitwidth = new_type.translated_type.sdn_bitwidth
    return plain


def _name_of(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else str(number)
