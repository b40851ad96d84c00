"""All codecs and kinds of error feedback by name, and the parser of specifications such as "topk:ratio=0.01"."""

from typing import TypeVar

from switchml.codecs.adaq import AdaQ
from switchml.codecs.base import Codec, CodecSettings, ErrorFeedback
from switchml.codecs.bf16 import Bf16
from switchml.codecs.dgc import Dgc
from switchml.codecs.efsignsgd import EfSignSgd
from switchml.codecs.error_feedback import DgcFeedback, EfSignSgdFeedback, NoErrorFeedback, PowerSgdFeedback, Residual
from switchml.codecs.fp16 import Fp16
from switchml.codecs.globalqsgd import GlobalQsgd
from switchml.codecs.hardthreshold import HardThreshold
from switchml.codecs.inceptionn import Inceptionn
from switchml.codecs.natural import Natural
from switchml.codecs.none import NoCodec
from switchml.codecs.onebit import OneBit
from switchml.codecs.powersgd import PowerSgd
from switchml.codecs.qsgd import Qsgd
from switchml.codecs.randomk import RandomK
from switchml.codecs.sidco import Sidco
from switchml.codecs.signsgd import SignSgd
from switchml.codecs.signum import Signum
from switchml.codecs.sketch import Sketch
from switchml.codecs.szx import Szx
from switchml.codecs.terngrad import TernGrad
from switchml.codecs.thc import Thc
from switchml.codecs.threshold import Threshold
from switchml.codecs.topk import TopK
from switchml.codecs.u8bit import U8bit
from switchml.errors import ConfigError

_FLOATS = (NoCodec, Fp16, Bf16, RandomK)
_SPARSIFIERS = (TopK, Threshold, Dgc, Sidco, HardThreshold, AdaQ)
_QUANTIZERS = (Qsgd, GlobalQsgd, TernGrad, Thc, Natural, U8bit, Sketch, Inceptionn)
_SIGNS = (OneBit, SignSgd, Signum, EfSignSgd)
_OTHERS = (PowerSgd, Szx)

CODECS: dict[str, type[Codec]] = {
    codec.name: codec for codec in (*_FLOATS, *_SPARSIFIERS, *_QUANTIZERS, *_SIGNS, *_OTHERS)
}
"""Codec name → class."""

ERROR_FEEDBACKS: dict[str, type[ErrorFeedback]] = {
    kind.name: kind for kind in (NoErrorFeedback, Residual, DgcFeedback, EfSignSgdFeedback, PowerSgdFeedback)
}
"""Error feedback name → class."""

_Settings = TypeVar("_Settings", bound=CodecSettings)


def parse(text: str) -> Codec:
    """Return the codec specified by `text`: "NAME" or "NAME:key=value,key=value". Raises ConfigError."""
    return parse_settings("codec", CODECS, text)


def parse_error_feedback(text: str) -> ErrorFeedback:
    """Return the error feedback specified by `text`, in the same syntax. Raises ConfigError."""
    return parse_settings("memory", ERROR_FEEDBACKS, text)


def by_number(number: int) -> type[Codec] | None:
    """Return the codec with this number in payload headers; None if there is none."""
    return next((codec for codec in CODECS.values() if codec.number == number), None)


def parse_settings(kind: str, table: dict[str, type[_Settings]], text: str) -> _Settings:
    """Return the settings specified by `text`, of a class in `table`. `kind` is the noun in error messages. Raises
    ConfigError."""
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
