"""Registers and parser value sets (sections "RegisterEntry" and "ValueSetEntry")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from emulator.p4switch.p4runtime.bytestrings import decode_data, encode_data
from emulator.p4switch.p4runtime.matches import EXACT, Key, KeyField
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.p4runtime.rates import CellArrays, check_modify
from emulator.p4switch.p4runtime.refusals import refuse
from emulator.p4switch.program.ir import MatchParam
from emulator.p4switch.state.arrays import RegisterArray
from emulator.p4switch.state.state import ParseVSet
from emulator.p4switch.values import mask
from switchml.control.p4runtime_protos import new_entity, v1


class Registers(CellArrays):
    """Answers for registers. BMv2's own server does not serve them."""

    sort = "register"

    def write_cells(self, item: Any, array: RegisterArray, indices: range, entry: v1.RegisterEntry) -> None:
        what = f"register {array.name}"
        value = decode_data(item.type_spec, self.pipeline.p4info.type_info, entry.data, array.width, what)
        array.write_range(indices.start, indices.stop, value)

    def message(self, item: Any, array: RegisterArray, index: int) -> v1.RegisterEntry:
        data = encode_data(item.type_spec, self.pipeline.p4info.type_info, iter((array.read(index),)))
        return v1.RegisterEntry(register_id=item.preamble.id, index={"index": index}, data=data)


class ValueSets:
    """Answers for parser value sets. BMv2 stores a member's fields as one number, the first one most significant."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def _key(self, item, vset: ParseVSet) -> Key:
        fields = tuple(KeyField(m.id, m.name or vset.name, m.match_type, "exact", m.bitwidth) for m in item.match)
        if any(field.match != EXACT for field in fields):
            raise refuse("UNIMPLEMENTED", f"value set {vset.name}: BMv2's value sets match exactly only")
        if sum(field.width for field in fields) != vset.width:
            raise refuse("INVALID_ARGUMENT", f"value set {vset.name} has {vset.width} bits in the BMv2 JSON")
        return Key(vset.name, fields)

    def write(self, kind: int, entry: v1.ValueSetEntry) -> None:
        """Do one update: replace all members."""
        check_modify(kind, "value set")
        item, vset = self.pipeline.one(self.pipeline.value_sets, entry.value_set_id, "value set")
        key = self._key(item, vset)
        values = []
        for member in entry.members:
            value = 0
            for field, param in zip(key.fields, key.decode(member.match), strict=True):
                value = value << field.width | param.value
            values.append(value)
        if len(set(values)) < len(values):
            raise refuse("ALREADY_EXISTS", f"value set {vset.name}: a member occurs twice")
        if item.size and len(values) > item.size:
            raise refuse("RESOURCE_EXHAUSTED", f"value set {vset.name} has room for {item.size}, not {len(values)}")
        vset.clear()
        for value in values:
            vset.add(value)

    def read(self, pattern: v1.ValueSetEntry) -> Iterator[v1.Entity]:
        """All value sets that `pattern` selects."""
        for item, vset in self.pipeline.pick(self.pipeline.value_sets, pattern.value_set_id, "value set"):
            message = v1.ValueSetEntry(value_set_id=item.preamble.id)
            key = self._key(item, vset)
            for value in vset.get():
                left = vset.width
                member = message.members.add()
                for field in key.fields:
                    left -= field.width
                    part = (value >> left) & mask(field.width)
                    member.match.append(field.encode(MatchParam("exact", part)))
            yield new_entity("value_set_entry", message)
