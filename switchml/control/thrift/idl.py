"""Reads the description of a Thrift interface from text, at run time.

One definition a line, which goes on in lines that are indented, and `#` comments:

    enum Colour RED GREEN=5 BLUE           numbers count on from 1
    type Handle i32                        another name for a type
    struct Point i32 x, i32 y              fields are numbered from 1
    exception Refused                      has one field, `code`, of the enum RefusedCode
    service paint                          the calls below belong to it
    draw(Point at, list<Colour> with, map<string,i32> how) -> i64 ! Refused

A call that gives nothing back has no `->`, one that raises nothing no `!`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from switchml.control.thrift.protocol import BASE_TYPES, Field, ListOf, MapOf, Record, Struct

_CALL = re.compile(r"(\w+)\((.*)\)(?: -> (\S+))?(?: ! (\w+))?$")


@dataclass(frozen=True)
class Call:
    """`result` has field 0, "success", unless the call gives nothing back, and field 1, "refused", if it can raise."""

    name: str
    arguments: Struct
    result: Struct
    exception: str | None


@dataclass
class Interface:
    """`services`: name → calls by name; `enums`: name → numbers by name."""

    services: dict[str, dict[str, Call]] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=lambda: dict(BASE_TYPES))

    def refusal(self, exception: str, code: str) -> Record:
        """The value of an exception. Raises KeyError if it has no such code."""
        return Record(code=self.enums[f"{exception}Code"][code])

    def type(self, text: str) -> Any:
        """A type by how it is written."""
        if text.startswith("list<"):
            return ListOf(self.type(text[5:-1]))
        if text.startswith("map<"):
            key, _, value = text[4:-1].partition(",")
            return MapOf(self.type(key), self.type(value))
        return self.types[text]

    def fields(self, text: str) -> list[Field]:
        """`i32 x, i32 y`."""
        named = [item.split() for item in text.split(", ") if item]
        return [Field(number, name, self.type(written)) for number, (written, name) in enumerate(named, start=1)]

    def add(self, text: str) -> Interface:
        """Take in more definitions; returns self."""
        calls: dict[str, Call] = {}
        for line in re.sub(r"\n +", " ", text).splitlines():
            line = line.partition("#")[0].strip()
            if not line:
                continue
            keyword, _, rest = line.partition(" ")
            if keyword == "service":
                calls = self.services.setdefault(rest, {})
            elif keyword in ("enum", "type", "struct", "exception"):
                name, _, body = rest.partition(" ")
                getattr(self, f"_add_{keyword}")(name, body)
            else:
                call = self._call(line)
                calls[call.name] = call
        return self

    def _add_enum(self, name: str, body: str) -> None:
        numbers: dict[str, int] = {}
        for item in body.split():
            key, _, number = item.partition("=")
            numbers[key] = int(number) if number else max(numbers.values(), default=0) + 1
        self.enums[name] = numbers
        self.types[name] = BASE_TYPES["i32"]

    def _add_type(self, name: str, body: str) -> None:
        self.types[name] = self.type(body)

    def _add_struct(self, name: str, body: str) -> None:
        self.types[name] = Struct(name, self.fields(body))

    def _add_exception(self, name: str, body: str) -> None:
        self.types[name] = Struct(name, [Field(1, "code", BASE_TYPES["i32"])])

    def _call(self, line: str) -> Call:
        parts = _CALL.match(line)
        if parts is None:
            raise ValueError(f"{line!r} is not `name(type name, …) -> type ! exception`")
        name, arguments, result, exception = parts.groups()
        fields = [Field(0, "success", self.type(result))] if result else []
        if exception:
            fields.append(Field(1, "refused", self.type(exception)))
        return Call(name, Struct(f"{name}_args", self.fields(arguments)), Struct(f"{name}_result", fields), exception)
