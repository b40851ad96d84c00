"""Sparse mode of all-reduces: the caller's option, and the agent's automatic decision.

`auto` costs no packet. The ranks must decide alike, and results are equal on all ranks: after the first tensor of a
kind (same dtype, length and blocks), and after each sixteenth, the share of zero blocks in its result is sampled, and
determines the mode of the tensors up to the next sampled one. The first tensor is sent sparse. A tensor waits while its
predecessor is being sampled, because a rank that is ahead of the others must not guess.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass

from switchml.errors import ConfigError
from switchml.protocol.fixedpoint import FORMATS, ITEM_BYTES
from switchml.protocol.sparse import Sparse, is_zero
from switchml.runtime.jit import compile_once, kernel

MODES = ("off", "on", "auto")
LOOK_EVERY = 16
"""Tensors of a kind from one sampled result to the next."""
SPARSE_BELOW = 0.9
"""Union density above which index words and first rounds cost more than skipped blocks save."""
MIN_BLOCKS = 64
"""Tensors of fewer blocks are sent dense under `auto`: they take one round trip either way."""
_SAMPLES = 1024
_KINDS = 4096
"""Maximum number of kinds of tensors that are remembered."""


@dataclass(frozen=True)
class Choice:
    """A caller's option: `mode` of MODES, and how a tensor is divided into blocks."""

    mode: str = "off"
    blocks: Sparse = Sparse()


OFF = Choice()


def choice(value: Choice | Sparse | bool | str | None) -> Choice:
    """Convert a caller's option to a Choice: True, False, Sparse(…), or "off", "on", "auto",
    "auto:block=64,threshold=1e-6".

    Raises ConfigError for other values.
    """
    if isinstance(value, Choice):
        return value
    if isinstance(value, Sparse):
        return Choice("on", value)
    if value is None or isinstance(value, bool):
        return Choice("on" if value else "off")
    mode, _, options = str(value).strip().partition(":")
    if mode not in MODES:
        raise ConfigError(f"sparse {value!r}: expected off, on or auto, as in on:block=256,threshold=0")
    settings: dict[str, str] = {}
    for option in filter(None, options.split(",")):
        name, _, text = (part.strip() for part in option.partition("="))
        settings[name] = text
    try:
        if set(settings) - {"block", "threshold"}:
            raise ValueError
        blocks = Sparse(int(settings.get("block", Sparse.block)), float(settings.get("threshold", Sparse.threshold)))
    except ValueError:
        raise ConfigError(f"sparse {value!r}: expected block=ELEMENTS and threshold=NUMBER after the colon") from None
    return Choice(mode, blocks)


@kernel
def _non_zero(fmt, address, numel, block, size, stride):
    """Count (non-zero blocks, examined blocks) over every `stride`-th block."""
    non_zero = examined = 0
    for first in range(0, numel, block * stride):
        examined += 1
        non_zero += not is_zero(fmt, address + first * size, min(block, numel - first), 0.0)
    return non_zero, examined


def warm_up() -> None:
    """Compile the kernel of `union_density`."""
    compile_once(_non_zero, 0, 0, 0, 0, 0, 0)


def union_density(address: int, numel: int, dtype: str, block: int) -> float:
    """Estimated share of non-zero blocks, from a sample, in `numel` elements of `dtype` (of FORMATS) at `address`."""
    fmt = FORMATS[dtype]
    stride = max(1, -(-numel // block) // _SAMPLES)
    non_zero, examined = _non_zero(fmt, address, numel, block, ITEM_BYTES[fmt], stride)
    return non_zero / examined


@dataclass
class Kind:
    """State of one kind of tensor. `is_awaited`: the result of a tensor to be sampled is pending."""

    calls: int = 0
    is_sparse: bool = True
    is_awaited: bool = False


class Memory:
    """The kinds of tensors that an agent has reduced under `auto`. Used from the agent's thread, in the order
    of calls."""

    def __init__(self) -> None:
        self._kinds: collections.OrderedDict[tuple, Kind] = collections.OrderedDict()

    def kind(self, dtype: str, numel: int, blocks: Sparse) -> Kind:
        key = (dtype, numel, blocks)
        if key not in self._kinds:
            if len(self._kinds) == _KINDS:
                self._kinds.popitem(last=False)
            self._kinds[key] = Kind()
        self._kinds.move_to_end(key)
        return self._kinds[key]

    def start(self, kind: Kind) -> bool:
        """Register the start of a tensor of this kind; returns whether its result is to be passed to `look`."""
        looked_at = kind.calls % LOOK_EVERY == 0
        kind.calls += 1
        kind.is_awaited = kind.is_awaited or looked_at
        return looked_at

    def look(self, kind: Kind, address: int, numel: int, dtype: str, blocks: Sparse) -> None:
        """Sample the result of a tensor for which `start` returned True."""
        kind.is_sparse = union_density(address, numel, dtype, blocks.block) < SPARSE_BELOW
        kind.is_awaited = False
