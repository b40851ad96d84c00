"""Parsing of STF's match keys and action arguments: `0x1*`, `0b01**`, prefixes such as `10.0.0.0/8`, ternaries `v&&&m`,
and arguments by name."""

import re
from collections.abc import Sequence

from emulator.p4switch.program import ir
from emulator.p4switch.values import mask
from switchml.errors import ConfigError

BITS_OF_DIGIT = {"0x": 4, "0b": 1, "0o": 3}


def number(text: str) -> int:
    """Parse a decimal, 0x…, 0b… or 0o… number. Raises ConfigError."""
    try:
        return int(text, 10) if text.isdigit() else int(text, 0)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number") from None


def ternary(text: str, width: int) -> tuple[int, int]:
    """(value, mask) of `v`, `v&&&m`, or digits with `*`."""
    bits = BITS_OF_DIGIT.get(text[:2].lower())
    if "&&&" in text:
        value, _, covered = text.partition("&&&")
        return number(value), number(covered)
    if "*" not in text:
        # Omitted digits match anything, as in p4c's runner.
        return number(text), mask(width) if bits is None else mask(bits * (len(text) - 2)) & mask(width)
    if bits is None:
        raise ConfigError(f"{text!r}: only digits after 0x, 0b or 0o can be *")
    whole = cover = 0
    for digit in text[2:]:
        whole, cover = whole << bits, cover << bits
        if digit != "*":
            whole, cover = whole | int(digit, 1 << bits), cover | mask(bits)
    return whole, cover


def prefix(text: str, width: int) -> tuple[int, int]:
    """(value, prefix length) of `v/n`, or of digits with trailing `*`."""
    if "/" in text:
        value, length = text.split("/")
        return number(value), number(length)
    bits = BITS_OF_DIGIT.get(text[:2].lower())
    if bits is None:
        return number(text), width
    return number(text.replace("*", "0")), bits * (len(text) - 2 - text.count("*"))


def param(field: ir.KeyField, text: str | None) -> ir.MatchParam:
    """One field of an entry's key; None: a wildcard (for an exact field: 0)."""
    if field.kind in ("ternary", "lpm"):
        read = ternary if field.kind == "ternary" else prefix
        return ir.MatchParam(field.kind, *(read(text, field.width) if text is not None else (0, 0)))
    if field.kind == "range":
        if text is None:
            return ir.MatchParam("range", 0, mask(field.width))
        low, _, high = text.partition("->")
        return ir.MatchParam("range", number(low), number(high or low))
    return ir.MatchParam(field.kind, number(text) if text is not None else 0)


def field_named(key: Sequence[ir.KeyField], name: str) -> int:
    """Index of the key's field that STF calls `name`. Raises ConfigError."""
    names = [field.name for field in key]
    name = re.sub(r"\$(\d+)", r"[\1]", name)
    alternatives = [name, f"{name}$", f"{name}.$valid$", re.sub(r"valid$", "$valid$", name)]
    for alternative in alternatives:
        if alternative in names:
            return names.index(alternative)
    for number_, field in enumerate(names):
        if field.endswith((f".{name}", f".{name}$")) or (name == "valid" and field.endswith(".$valid$")):
            return number_
    raise ConfigError(f"the key has no field {name!r}, but {', '.join(names) or 'no fields at all'}")


def match_key(table: ir.Table, pairs: Sequence[tuple[str, str]]) -> list[ir.MatchParam]:
    """Key of an entry from (field name, text) pairs."""
    texts: dict[int, str] = {field_named(table.key, name): text for name, text in pairs}
    return [param(field, texts.get(index)) for index, field in enumerate(table.key)]


def action_args(action: ir.Action, text: str) -> tuple[int, ...]:
    """Arguments of an action from `name:value, …`."""
    values = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition(":")
        values[name.strip()] = number(value.strip())
    names = [param_.name for param_ in action.params]
    if set(values) != set(names):
        raise ConfigError(f"action {action.name} takes ({', '.join(names)}), not ({', '.join(values)})")
    for param_ in action.params:
        if not 0 <= values[param_.name] <= mask(param_.width):
            raise ConfigError(f"{param_.name} of action {action.name} has {param_.width} bits: {values[param_.name]}")
    return tuple(values[name] for name in names)
