"""Keys of table entries: conversion between FieldMatch messages, by P4Info's match types, and the switch's MatchParams
(section "Match Format").

P4c compiles an optional field to a ternary one, and BMv2 pads fields to whole bytes, which is included in its prefix
lengths but not in P4Runtime's. In P4Runtime the highest priority wins, in BMv2 the lowest: priorities are reversed as
by BMv2's own server, counting down from 2^31 - 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.p4switch.p4runtime.errors import rpc_error
from emulator.p4switch.p4runtime.fields import decode, encode
from emulator.p4switch.program import ir
from emulator.p4switch.state.tables import prefix_mask
from emulator.p4switch.values import mask, n_bytes
from switchml.control.p4runtime_protos import info, v1

HIGHEST = 2**31 - 1
"""The highest priority."""

EXACT, LPM, TERNARY = info.MatchField.EXACT, info.MatchField.LPM, info.MatchField.TERNARY
RANGE, OPTIONAL = info.MatchField.RANGE, info.MatchField.OPTIONAL
_HOLDERS = {EXACT: "exact", LPM: "lpm", TERNARY: "ternary", RANGE: "range", OPTIONAL: "optional"}
"""P4Info's match types → field of FieldMatch."""


@dataclass(frozen=True)
class KeyField:
    """One field of a key: `number` and `match` (the match type) are P4Info's, `kind` the IR's, `width` in bits."""

    number: int
    name: str
    match: int
    kind: str
    width: int

    def decode(self, match: v1.FieldMatch | None) -> ir.MatchParam:
        """Decode one field of an entry's key, from its match or None. Raises INVALID_ARGUMENT or OUT_OF_RANGE."""
        width, everything = self.width, mask(self.width)
        if match is None:
            if self.match == EXACT:
                raise self._bad("an exact match can't be left out")
            return self._param(0, 0 if self.match != RANGE else everything)
        holder = match.WhichOneof("field_match_type")
        if holder != _HOLDERS[self.match]:
            raise self._bad(f"matches by {_HOLDERS[self.match]}, not {holder}")
        part = getattr(match, holder)
        if self.match == RANGE:
            low, high = decode(part.low, width, self.name), decode(part.high, width, self.name)
            if low > high:
                raise self._bad(f"the range {low:#x} to {high:#x} is empty")
            if (low, high) == (0, everything):
                raise self._bad("a range of all values must be left out")
            return self._param(low, high)
        value = decode(part.value, width, self.name)
        if self.match in (EXACT, OPTIONAL):
            return self._param(value, everything)
        if self.match == LPM:
            if not 0 < part.prefix_len <= width:
                raise self._bad(f"a prefix of {part.prefix_len} bits, but the field has {width}; 0 must be left out")
            if value & mask(width - part.prefix_len):
                raise self._bad(f"{value:#x} has bits beyond its prefix of {part.prefix_len}")
            return self._param(value, everything ^ mask(width - part.prefix_len))
        chosen = decode(part.mask, width, self.name)
        if not chosen:
            raise self._bad("a mask of zero must be left out")
        if value & ~chosen:
            raise self._bad(f"{value:#x} has bits outside its mask {chosen:#x}")
        return self._param(value, chosen)

    def _bad(self, problem: str) -> Exception:
        return rpc_error("INVALID_ARGUMENT", f"field {self.name}: {problem}")

    @property
    def _padding(self) -> int:
        return 8 * n_bytes(self.width) - self.width

    def _param(self, value: int, extra: int) -> ir.MatchParam:
        """The switch's match parameter. `extra`: the mask, or the end of a range."""
        if self.kind in ("exact", "valid"):
            return ir.MatchParam(self.kind, value)
        if self.kind == "lpm":
            length = extra.bit_count()
            return ir.MatchParam("lpm", value, length + self._padding if length else 0)
        return ir.MatchParam(self.kind, value, extra)

    def encode(self, param: ir.MatchParam) -> v1.FieldMatch | None:
        """The inverse of `decode`."""
        match = v1.FieldMatch(field_id=self.number)
        if self.match == EXACT:
            match.exact.value = encode(param.value)
        elif self.match == RANGE:
            if (param.value, param.extra) == (0, mask(self.width)):
                return None
            match.range.low, match.range.high = encode(param.value), encode(param.extra)
        else:
            covered = prefix_mask(self.width, param.extra) if param.kind == "lpm" else param.extra & mask(self.width)
            if not covered:
                return None
            value = encode(param.value & covered)
            if self.match == LPM:
                match.lpm.value, match.lpm.prefix_len = value, covered.bit_count()
            elif self.match == OPTIONAL:
                match.optional.value = value
            else:
                match.ternary.value, match.ternary.mask = value, encode(covered)
        return match


@dataclass(frozen=True)
class Key:
    """A table's whole key, in the switch's order. `top`: the P4Runtime priority that corresponds to BMv2's priority 0;
    it is HIGHEST except in const tables, where P4Runtime counts down to 1. `has_priorities`: whether entries need a
    priority."""

    table: str
    fields: tuple[KeyField, ...]
    top: int = HIGHEST

    @property
    def has_priorities(self) -> bool:
        """Whether entries have priorities (section "TableEntry")."""
        return any(field.match in (TERNARY, RANGE, OPTIONAL) for field in self.fields)

    def decode(self, matches: Sequence[v1.FieldMatch]) -> list[ir.MatchParam]:
        """Decode a key. Raises INVALID_ARGUMENT or OUT_OF_RANGE."""
        by_number = {match.field_id: match for match in matches}
        if len(by_number) != len(matches):
            raise rpc_error("INVALID_ARGUMENT", f"table {self.table}: a field occurs twice")
        unknown = set(by_number) - {field.number for field in self.fields}
        if unknown:
            raise rpc_error("INVALID_ARGUMENT", f"table {self.table} has no field {min(unknown)}")
        return [field.decode(by_number.get(field.number)) for field in self.fields]

    def encode(self, params: Sequence[ir.MatchParam]) -> list[v1.FieldMatch]:
        """The inverse of `decode`; fields by ascending number."""
        matches = [field.encode(param) for field, param in zip(self.fields, params, strict=True)]
        return sorted((match for match in matches if match is not None), key=lambda match: match.field_id)

    def priority_in(self, priority: int) -> int:
        """Convert to BMv2's priority. Raises INVALID_ARGUMENT."""
        if not self.has_priorities:
            if priority:
                raise rpc_error(
                    "INVALID_ARGUMENT", f"table {self.table} has no priorities: it must be 0, not {priority}"
                )
            return 0
        if priority <= 0:
            raise rpc_error(
                "INVALID_ARGUMENT", f"table {self.table}: an entry needs a priority above 0, not {priority}"
            )
        return self.top - priority

    def priority_out(self, priority: int) -> int:
        """Convert to P4Runtime's priority."""
        return self.top - priority if self.has_priorities else 0
