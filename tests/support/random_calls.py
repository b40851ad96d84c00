"""Random calls of a switch's two control interfaces, Thrift and P4Runtime: arguments of the right types, with names and
numbers of the program that runs mixed with nonsense, so that many calls get past the first check.
"""

import random
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from emulator.p4switch.program import ir
from switchml.control.thrift.idl import ServiceCall
from switchml.control.thrift.protocol import BOOL, DOUBLE, ListOf, MapOf, Number, String
from tests.support.p4runtime_seeds import change

NUMBERS = (0, 0, 0, 1, 1, 2, 3, 4, 7, 255, 511, 512, 65535, -1, -2, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 40)
FRACTIONS = (0.0, 0.001, 1.0, 1e9, -1.0, float("inf"), float("nan"))
MAX_DEPTH = 9


SORTS = {
    "table": "tables", "action": "actions", "profile": "action_profiles", "counter": "counters", "meter": "meters",
    "array": "registers", "vset": "parse_vsets", "calculation": "calculations",
}  # fmt: skip
"""Names of arguments of Thrift calls → where a program has what they name."""


class Calls:
    """Draws calls from `source` for the switch whose program is `program`, which may change."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.program: ir.Program | None = None
        self.ids = [0, 1, 1 << 31]

    def know_p4info(self, info: Any) -> None:
        """Use the numbers of a P4Info's objects."""
        for field, items in info.ListFields():
            if field.is_repeated and field.name != "type_info":
                self.ids += [item.preamble.id for item in items if hasattr(item, "preamble")]

    # Thrift

    def arguments(self, call: ServiceCall) -> dict[str, Any]:
        """The arguments of a Thrift call."""
        return {
            field.name: self._name(SORTS[field.name]) if field.name in SORTS else self._value(field.type)
            for field in call.arguments.fields
        }

    def _name(self, sort: str) -> str:
        """A name of something in the program, or nonsense."""
        items = getattr(self.program, sort, ())
        return self.source.choice(items).name if items and self.source.random() < 0.9 else self._text()

    def _value(self, kind: Any) -> Any:
        if isinstance(kind, Number):
            if kind.code == DOUBLE:
                return self.source.choice(FRACTIONS)
            return self.source.random() < 0.5 if kind.code == BOOL else self._number()
        if isinstance(kind, String):
            return self._text() if kind.is_text else self._bytes()
        if isinstance(kind, ListOf):
            return [self._value(kind.item) for _ in range(self.source.randrange(4))]
        if isinstance(kind, MapOf):
            return {self._value(kind.key): self._value(kind.value) for _ in range(self.source.randrange(4))}
        values = {field.name: self._value(field.type) for field in kind.fields if self.source.random() < 0.8}
        return SimpleNamespace(**values)

    def _number(self) -> int:
        return self.source.choice(NUMBERS) if self.source.random() < 0.8 else self.source.getrandbits(64) - (1 << 63)

    def _text(self) -> str:
        if self.source.random() < 0.2:  # a set of ports
            return "".join(self.source.choice("01") for _ in range(self.source.randrange(9)))
        return self.source.choice(("", "nonsense", "\0\x1b[2J", "\u00e9" * 100))

    def _bytes(self) -> bytes:
        return self.source.randbytes(self.source.choice((0, 1, 1, 2, 2, 4, 6, 8, 16, 100)))

    # P4Runtime

    def changed(self, entity: Message) -> Message:
        """An entity that the program takes, with random changes."""
        for _ in range(self.source.choice((0, 0, 1, 2))):
            change(entity, self.source)
        return entity

    def fill(self, message: Message, depth: int = 0) -> Message:
        """Give a message random fields."""
        chosen = {each.name: self.source.choice(each.fields) for each in message.DESCRIPTOR.oneofs}
        for field in message.DESCRIPTOR.fields:
            group = field.containing_oneof
            if chosen.get(group.name) is not field if group else self.source.random() < 0.3:
                continue
            if field.message_type is not None and depth >= MAX_DEPTH:
                continue
            if field.is_repeated:
                self._fill_list(getattr(message, field.name), field, depth)
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self._scalar(field))
        return message

    def _fill_list(self, values: Any, field: FieldDescriptor, depth: int) -> None:
        for number in range(self.source.randrange(4)):
            if field.message_type is None:
                values.append(self._scalar(field))
            elif field.message_type.GetOptions().map_entry:
                return
            else:
                item = self.fill(values.add(), depth + 1)
                for name in ("field_id", "param_id"):  # a program's are 1, 2, …
                    if name in item.DESCRIPTOR.fields_by_name and self.source.random() < 0.7:
                        setattr(item, name, number + 1)

    def _scalar(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._text() if field.type == FieldDescriptor.TYPE_STRING else self._bytes()
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.source.random() < 0.3
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return self.source.choice(FRACTIONS)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.source.choice([*(value.number for value in field.enum_type.values), 77])
        bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
        if field.name.endswith("_id") and self.source.random() < 0.8:
            return self.source.choice(self.ids) % (1 << 32 if bits == 32 else 1 << 63)
        number = self._number() % (1 << bits)
        is_signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
        return number - (1 << bits) if is_signed and number >> (bits - 1) else number
