"""Decides which steps of optimizers end iterations, in scripts that have several."""

import weakref
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

MOST_STEPS = 8
"""Steps that an optimizer makes while others are awaited: those of a critic between two of its generator, and more."""


class Rounds:
    """An iteration ends with the step after which every optimizer has made one. Not awaited are those that only another
    one's parameters belong to and that make no step themselves (a wrapper), and those that let another one make
    `MOST_STEPS` steps, or two with the same parameters. `optimizers`: all of the script's that exist."""

    def __init__(self, optimizers: Collection[Any]):
        self._optimizers = optimizers
        self._steps: Counter[int] = Counter()
        """In this iteration, by the optimizer's identity."""
        self._have_stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._left: weakref.WeakSet[Any] = weakref.WeakSet()
        self._covered: set[int] = set()
        """Identities of the parameters of optimizers that have made a step."""
        self.idle = 0
        """Optimizers that made no step in the last iteration."""

    def ends(self, optimizer: Any) -> bool:
        """Return whether the step that an optimizer has made ends an iteration."""
        own = set(map(id, parameters(optimizer)))
        if optimizer not in self._have_stepped:
            self._have_stepped.add(optimizer)
            self._covered |= own
        self._steps[id(optimizer)] += 1
        steps = self._steps[id(optimizer)]
        for one in filter(self._is_awaited, list(self._optimizers)):
            if steps < (2 if _first(one) in own else MOST_STEPS):
                return False
            self._left.add(one)
        self.idle = sum(id(one) not in self._steps for one in self._optimizers if not self._is_wrapper(one))
        self._steps.clear()
        return True

    def _is_awaited(self, optimizer: Any) -> bool:
        if id(optimizer) in self._steps or optimizer in self._left or self._is_wrapper(optimizer):
            return False
        return any(one.requires_grad for one in parameters(optimizer))

    def _is_wrapper(self, optimizer: Any) -> bool:
        return optimizer not in self._have_stepped and _first(optimizer) in self._covered


def parameters(optimizer: Any) -> list[torch.Tensor]:
    """Return an optimizer's parameters."""
    return [one for entry in optimizer.param_groups for one in entry["params"]]


def _first(optimizer: Any) -> int:
    return id(next(iter(parameters(optimizer)), None))
