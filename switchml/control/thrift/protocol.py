"""Thrift's binary protocol (strict, version 1), driven by type descriptions instead of generated code.

A type has a `code` (its byte on the wire), a `default`, `read` and `write`. Values are plain: bool, int, float, str,
bytes, list, dict, and a SimpleNamespace for a struct. Unknown fields are skipped, missing ones are None. Bytes that
can't be parsed raise ProtocolError. No length above MAX_BYTES is accepted, and memory is only reserved for bytes that
have arrived."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

VERSION_1 = 0x80010000
CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
"""Kinds of message."""
STOP, BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 0, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
"""Type codes."""

MAX_BYTES = 1 << 26
"""Maximum length of a string (the largest program is a few MB)."""
MAX_DEPTH = 32
"""Maximum nesting of containers in a skipped field."""


class ProtocolError(Exception):
    """Bytes that do not conform to the binary protocol. The connection can't be used any more."""


class Reader:
    """Reads values from a stream. `read(n)` returns n bytes, or fewer at its end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def take(self, size: int) -> bytes:
        """Read exactly `size` bytes. Raises EOFError at the end of the stream."""
        data = self._read(size)
        if len(data) < size:
            raise EOFError
        return data

    def number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.take(layout.size))[0]

    def length(self) -> int:
        """Read a length or count. Raises ProtocolError if it is negative or above MAX_BYTES."""
        size: int = self.number(_I32)
        if not 0 <= size <= MAX_BYTES:
            raise ProtocolError(f"a length of {size}: expected 0 to {MAX_BYTES}")
        return size

    def skip(self, code: int, depth: int = 0) -> None:
        """Skip a value of any type."""
        if depth > MAX_DEPTH:
            raise ProtocolError(f"more than {MAX_DEPTH} levels of containers")
        if code in _FIXED_BYTES:
            self.take(_FIXED_BYTES[code])
        elif code == STRING:
            self.take(self.length())
        elif code == STRUCT:
            while (field_code := self.number(_U8)) != STOP:
                self.take(2)
                self.skip(field_code, depth + 1)
        elif code in (LIST, SET):
            item = self.number(_U8)
            for _ in range(self.length()):
                self.skip(item, depth + 1)
        elif code == MAP:
            codes = self.number(_U8), self.number(_U8)
            for _ in range(self.length()):
                for item in codes:
                    self.skip(item, depth + 1)
        else:
            raise ProtocolError(f"there is no type {code}")


_U8, _I16, _I32, _U32 = (struct.Struct(layout) for layout in (">B", ">h", ">i", ">I"))
_FIXED_BYTES = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}


# Types


class Number:
    """bool, byte, i16, i32, i64 or double. Integers that do not fit are truncated to their low bits."""

    def __init__(self, code: int, layout: str) -> None:
        self.code = code
        self._layout = struct.Struct(">" + layout)
        self._bits = 8 * self._layout.size
        self.default = {BOOL: False, DOUBLE: 0.0}.get(code, 0)

    def read(self, reader: Reader) -> Any:
        return reader.number(self._layout)

    def write(self, out: bytearray, value: Any) -> None:
        if self.code not in (BOOL, DOUBLE):
            half = 1 << (self._bits - 1)
            value = (value + half) % (2 * half) - half
        out += self._layout.pack(value)


@dataclass(frozen=True)
class String:
    """binary: bytes; with `is_text`, string: str in UTF-8, with invalid bytes replaced."""

    is_text: bool
    code = STRING

    @property
    def default(self) -> str | bytes:
        return "" if self.is_text else b""

    def read(self, reader: Reader) -> str | bytes:
        data = reader.take(reader.length())
        return data.decode(errors="replace") if self.is_text else data

    def write(self, out: bytearray, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else value
        out += _U32.pack(len(data)) + data


@dataclass(frozen=True)
class ListOf:
    """list<item>."""

    item: Any
    code = LIST
    default = ()

    def read(self, reader: Reader) -> list[Any]:
        code, size = reader.number(_U8), reader.length()
        if size and code != self.item.code:
            raise ProtocolError(f"a list of type {code}: expected {self.item.code}")
        return [self.item.read(reader) for _ in range(size)]

    def write(self, out: bytearray, value: list[Any]) -> None:
        out += _U8.pack(self.item.code) + _U32.pack(len(value))
        for item in value:
            self.item.write(out, item)


@dataclass(frozen=True)
class MapOf:
    """map<key, value>."""

    key: Any
    value: Any
    code = MAP
    default: ClassVar[Mapping[Any, Any]] = MappingProxyType({})

    def read(self, reader: Reader) -> dict[Any, Any]:
        codes, size = (reader.number(_U8), reader.number(_U8)), reader.length()
        if size and codes != (self.key.code, self.value.code):
            raise ProtocolError(f"a map of types {codes}: expected {(self.key.code, self.value.code)}")
        return {self.key.read(reader): self.value.read(reader) for _ in range(size)}

    def write(self, out: bytearray, value: dict[Any, Any]) -> None:
        out += _U8.pack(self.key.code) + _U8.pack(self.value.code) + _U32.pack(len(value))
        for key, item in value.items():
            self.key.write(out, key)
            self.value.write(out, item)


class Field(NamedTuple):
    """A field of a struct or an argument of a call."""

    id: int
    name: str
    type: Any


class Struct:
    """A struct; also used for the arguments of a call and its result."""

    code = STRUCT

    def __init__(self, name: str, fields: list[Field]) -> None:
        self.name = name
        self.fields = fields
        self._by_id = {field.id: field for field in fields}

    @property
    def default(self) -> SimpleNamespace:
        return SimpleNamespace(**{field.name: None for field in self.fields})

    def read(self, reader: Reader) -> SimpleNamespace:
        value = self.default
        while (code := reader.number(_U8)) != STOP:
            field = self._by_id.get(reader.number(_I16))
            if field is None or field.type.code != code:
                reader.skip(code)
            else:
                setattr(value, field.name, field.type.read(reader))
        return value

    def write(self, out: bytearray, value: SimpleNamespace) -> None:
        for field in self.fields:
            item = getattr(value, field.name, None)
            if item is not None:
                out += struct.pack(">Bh", field.type.code, field.id)
                field.type.write(out, item)
        out.append(STOP)


BASE_TYPES: dict[str, Any] = {
    "bool": Number(BOOL, "?"),
    "byte": Number(BYTE, "b"),
    "i16": Number(I16, "h"),
    "i32": Number(I32, "i"),
    "i64": Number(I64, "q"),
    "double": Number(DOUBLE, "d"),
    "string": String(is_text=True),
    "binary": String(is_text=False),
}


# Messages

APPLICATION_ERROR = Struct(
    "TApplicationException", [Field(1, "message", BASE_TYPES["string"]), Field(2, "type", BASE_TYPES["i32"])]
)
"""The body of a message of kind EXCEPTION."""
UNKNOWN_ERROR, UNKNOWN_METHOD, BAD_MESSAGE_KIND, INTERNAL_ERROR = 0, 1, 2, 6
"""Values of its field `type`."""


class Message(NamedTuple):
    """Header of a message, before the arguments or the result."""

    kind: int
    name: str
    sequence: int


def read_message(reader: Reader) -> Message:
    """Read the header of a message. Raises EOFError at the end of the stream."""
    version = reader.number(_U32)
    if version & 0xFFFF0000 != VERSION_1:
        raise ProtocolError(f"the message starts with {version:#010x}, not with version 1 of the binary protocol")
    return Message(version & 0xFF, BASE_TYPES["string"].read(reader), reader.number(_I32))


def write_message(message: Message) -> bytearray:
    """Encode the header of a message, to which its body is appended."""
    out = bytearray(_U32.pack(VERSION_1 | message.kind))
    BASE_TYPES["string"].write(out, message.name)
    out += _I32.pack(message.sequence)
    return out
