"""All codecs and memories by name, and the texts that name them: "topk:ratio=0.01", "residual:beta=0.9"."""

from __future__ import annotations

from typing import TypeVar

from ..errors import ConfigError
from .adaq import AdaQ
from .base import Codec, Memory, Settings
from .bf16 import Bf16
from .dgc import Dgc
from .efsignsgd import EfSignSgd
from .fp16 import Fp16
from .globalqsgd import GlobalQsgd
from .hardthreshold import HardThreshold
from .inceptionn import Inceptionn
from .memories import DgcMemory, EfSignSgdMemory, NoMemory, PowerSgdMemory, Residual
from .natural import Natural
from .none import NoCodec
from .onebit import OneBit
from .powersgd import PowerSgd
from .qsgd import Qsgd
from .randomk import RandomK
from .sidco import Sidco
from .signsgd import SignSgd
from .signum import Signum
from .sketch import Sketch
from .szx import Szx
from .terngrad import TernGrad
from .thc import Thc
from .threshold import Threshold
from .topk import TopK
from .u8bit import U8bit

CODECS: dict[str, type[Codec]] = {
    codec.name: codec
    for codec in (
        NoCodec,
        Fp16,
        Bf16,
        RandomK,
        TopK,
        Threshold,
        Dgc,
        Sidco,
        HardThreshold,
        AdaQ,
        Qsgd,
        GlobalQsgd,
        TernGrad,
        Thc,
        Natural,
        U8bit,
        Sketch,
        Inceptionn,
        OneBit,
        SignSgd,
        Signum,
        EfSignSgd,
        PowerSgd,
        Szx,
    )
}
"""Name → class."""

MEMORIES: dict[str, type[Memory]] = {
    memory.name: memory for memory in (NoMemory, Residual, DgcMemory, EfSignSgdMemory, PowerSgdMemory)
}
"""Name → class."""

_Settings = TypeVar("_Settings", bound=Settings)


def parse(text: str) -> Codec:
    """The codec that `text` names: "NAME" or "NAME:key=value,key=value". Raises ConfigError."""
    return parse_settings("codec", CODECS, text)


def parse_memory(text: str) -> Memory:
    """The memory that `text` names, written in the same way. Raises ConfigError."""
    return parse_settings("memory", MEMORIES, text)


def by_number(number: int) -> type[Codec] | None:
    """The codec that has this number in payload headers."""
    return next((codec for codec in CODECS.values() if codec.number == number), None)


def parse_settings(kind: str, table: dict[str, type[_Settings]], text: str) -> _Settings:
    """The settings that `text` names in `table`; `kind` is what errors call it. Raises ConfigError."""
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
