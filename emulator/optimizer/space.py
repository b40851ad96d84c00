"""Which settings a search looks at: for each pass that it may use, the values of its field."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from emulator.optimizer.machine import Machine
from emulator.optimizer.passes import named
from emulator.optimizer.setting import Setting
from emulator.whatif.buckets import MIB, caps_of
from switchml.errors import ConfigError

DEFAULT_ALLOW = ("buckets", "placement")
"""What a settings file can make a job do without changing what it computes."""
CAPS = tuple(int(mib * MIB) for mib in (0.25, 0.5, 1, 2, 3, 5, 8, 12, 18, 25, 50, 100))
MICRO_BATCHES = (1, 2, 4, 8)
BATCHES = (1.0, 0.5, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What a search may change. `lists`: whether each bucket may have a cap of its own (DDP: torch 2.13 or later).
    `placements`, `codecs`: those that may be taken besides what there is."""

    passes: tuple[str, ...] = DEFAULT_ALLOW
    lists: bool = True
    placements: tuple[str, ...] = ("switchml",)
    codecs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named(self.passes)
        if not self.passes:
            raise ConfigError("no pass is allowed, so there is nothing to search")
        if "codec" in self.passes and not self.codecs:
            raise ConfigError("compression is allowed, but no codec")

    def only(self, name: str) -> Allowed:
        """The same for one pass alone."""
        return Allowed(passes=(name,), lists=self.lists, placements=self.placements, codecs=self.codecs)

    def values(self, machine: Machine) -> dict[str, list]:
        """Field → values, the traced one first; buckets left out."""
        codecs: list[tuple[str, ...]] = [(), *((spec,) for spec in self.codecs)]
        every = {
            "precision": ["", "half"],
            "batch": list(BATCHES if machine.memory.limit and machine.memory.activations else BATCHES[:1]),
            "fuse": [False, True],
            "recompute": [False, True] if machine.memory.limit else [False],
            "accumulate": list(MICRO_BATCHES),
            "placement": ["", *(each for each in self.placements if each != machine.traced_placement)],
            "codec": codecs,
            "priority": [False, True],
        }
        return {name: values for name, values in every.items() if name in self.passes and len(values) > 1}


def combinations(values: dict[str, list]) -> Iterator[Setting]:
    """Every setting of these fields."""
    for chosen in itertools.product(*values.values()):
        yield Setting(**dict(zip(values, chosen, strict=True)))


def count(values: dict[str, list]) -> int:
    """How many `combinations` there are."""
    return math.prod(len(each) for each in values.values())


def runs(sizes: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Caps of every way to cut gradients into runs."""
    for cut in itertools.product((0, 1), repeat=len(sizes) - 1):
        yield caps_of(sizes, np.cumsum([0, *cut]))
