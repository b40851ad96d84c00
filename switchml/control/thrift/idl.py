"""Parser of Thrift IDL at run time, for the features used by bmv2.thrift, the interface of BMv2's switches: typedefs,
enums with explicit values, structs, exceptions, and services of calls that throw at most one exception."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from switchml.control.thrift.protocol import BASE_TYPES, Field, ListOf, MapOf, Struct

_COMMENT = re.compile(r"#.*")
_DEFINITION = re.compile(
    r"typedef\s+(?P<type>\S+)\s+(?P<alias>\w+)"
    r"|(?P<kind>enum|struct|exception|service)\s+(?P<name>\w+)(\s+extends\s+(?P<base>\w+))?\s*\{(?P<body>[^}]*)\}"
)
_VALUE = re.compile(r"(\w+)\s*=\s*(\d+)")
_FIELD = re.compile(r"(\d+):\s*(\S+)\s+(\w+)")
_CALL = re.compile(r"(\S+)\s+(\w+)\s*\(([^)]*)\)(?:\s*throws\s*\(\s*1:\s*(\w+)\s+\w+\s*\))?")


@dataclass(frozen=True)
class ServiceCall:
    """A call of a service. `result` has field 0, "success", unless the call returns nothing, and field 1, "refused", if
    it throws `exception`."""

    name: str
    arguments: Struct
    result: Struct
    exception: str | None


class Interface:
    """The definitions in `text`. `services`: name → calls by name, except for services that others extend; `enums`:
    name → numbers by name; `types` by name. Raises KeyError for a type that is not defined before it is used."""

    def __init__(self, text: str) -> None:
        services: dict[str | None, dict[str, ServiceCall]] = {}
        bases: set[str | None] = set()
        self.enums: dict[str, dict[str, int]] = {}
        self.types: dict[str, Any] = dict(BASE_TYPES)
        for definition in _DEFINITION.finditer(_COMMENT.sub("", text)):
            name, body = definition["name"], definition["body"]
            if definition["alias"]:
                self.types[definition["alias"]] = self._type(definition["type"])
            elif definition["kind"] == "enum":
                self.enums[name] = {key: int(number) for key, number in _VALUE.findall(body)}
                self.types[name] = BASE_TYPES["i32"]
            elif definition["kind"] == "service":
                calls = {call[1]: self._call(*call) for call in _CALL.findall(body)}
                services[name] = services.get(definition["base"], {}) | calls
                bases.add(definition["base"])
            else:
                self.types[name] = Struct(name, self._fields(body))
        self.services = {name: calls for name, calls in services.items() if name is not None and name not in bases}

    def refusal(self, exception: str, code: str) -> SimpleNamespace:
        """The value of an exception. Raises KeyError if it has no such code."""
        return SimpleNamespace(code=self.enums[f"{exception}Code"][code])

    def _type(self, text: str) -> Any:
        if text.startswith("list<"):
            return ListOf(self._type(text[5:-1]))
        if text.startswith("map<"):
            key, _, value = text[4:-1].partition(",")
            return MapOf(self._type(key), self._type(value))
        return self.types[text]

    def _fields(self, text: str) -> list[Field]:
        return [Field(int(number), name, self._type(kind)) for number, kind, name in _FIELD.findall(text)]

    def _call(self, result: str, name: str, arguments: str, exception: str) -> ServiceCall:
        fields = [] if result == "void" else [Field(0, "success", self._type(result))]
        if exception:
            fields.append(Field(1, "refused", self.types[exception]))
        parameters = Struct(f"{name}_args", self._fields(arguments))
        return ServiceCall(name, parameters, Struct(f"{name}_result", fields), exception or None)


@cache
def interface() -> Interface:
    """BMv2's four services."""
    return Interface(Path(__file__).with_name("bmv2.thrift").read_text())
