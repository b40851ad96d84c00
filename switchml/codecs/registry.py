"""All codecs and memories by name, and the texts that name them: "topk:ratio=0.01", "residual:beta=0.9"."""

from __future__ import annotations

from typing import TypeVar

from ..errors import ConfigError
from .base import Codec, Memory, Settings
from .bf16 import Bf16
from .fp16 import Fp16
from .memories import NoMemory, Residual
from .none import NoCodec
from .topk import TopK

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (NoCodec, Fp16, Bf16, TopK)}
"""Name → class."""

MEMORIES: dict[str, type[Memory]] = {memory.name: memory for memory in (NoMemory, Residual)}
"""Name → class."""

_Settings = TypeVar("_Settings", bound=Settings)


def parse(text: str) -> Codec:
    """The codec that `text` names: "NAME" or "NAME:key=value,key=value". Raises ConfigError."""
    return _parse("codec", CODECS, text)


def parse_memory(text: str) -> Memory:
    """The memory that `text` names, written in the same way. Raises ConfigError."""
    return _parse("memory", MEMORIES, text)


def by_number(number: int) -> type[Codec] | None:
    """The codec that has this number in payload headers."""
    return next((codec for codec in CODECS.values() if codec.number == number), None)


def _parse(kind: str, table: dict[str, type[_Settings]], text: str) -> _Settings:
    name, colon, rest = text.strip().partition(":")
    if name not in table:
        raise ConfigError(f"unknown {kind} {name!r}: expected one of {', '.join(sorted(table))}")
    options = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"{kind} {text!r}: {item!r}: expected key=value")
        if key in options:
            raise ConfigError(f"{kind} {text!r}: {key} is given twice")
        options[key] = value
    return table[name].from_options(options)
