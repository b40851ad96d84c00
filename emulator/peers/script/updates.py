"""Detects updates of parameters by a script without an optimizer of torch: in-place operators on tensors that have
received gradients, followed by the next forward pass."""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from emulator.peers.script.operators import Operator


class Updates:
    """Watches all operators until the script creates an optimizer of torch, whose steps end iterations from then on.
    `mark`: called with the use and the tensor for parameters and their gradients. `parameters`: of modules that have
    run; FSDP gives gradients to shards, which no autograd node knows."""

    def __init__(self, mark: Callable[[str, Any], None], parameters: Callable[[], Iterable[torch.Tensor]]):
        self._mark, self._of_modules = mark, parameters
        self._has_new_gradients = False
        self._parameters: dict[int, torch.Tensor] = {}
        """By storage: parameters that have received gradients since the last update."""
        self._updated_at: int | None = None
        """Number of autograd nodes at the last update."""
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """The script's that exist."""
        self._is_by_hand = True
        create = torch.optim.Optimizer.__init__

        @functools.wraps(create)
        def created(*arguments: Any, **options: Any) -> None:
            self._is_by_hand = False
            create(*arguments, **options)
            self.optimizers.add(arguments[0])

        torch.optim.Optimizer.__init__ = created  # type: ignore[method-assign]

    def have_ended(self, operator: Operator, arguments: list[Any], is_backward: bool) -> bool:
        """Return whether an operator is the first of a forward pass after updates by hand."""
        if not self._is_by_hand:
            return False
        if is_backward:
            self._has_new_gradients = True
            parameter = getattr(torch._C._current_autograd_node(), "variable", None)
            if parameter is not None:
                self._parameters[parameter.untyped_storage()._cdata] = parameter
            return False
        if self._has_new_gradients:
            self._has_new_gradients = False
            for one in self._of_modules():
                if hasattr(one, "_local_tensor") and one.grad is not None:
                    self._parameters[one._local_tensor.untyped_storage()._cdata] = one
        created = torch.autograd._get_sequence_nr()
        if self._changes_parameter(operator, arguments):
            for parameter in self._parameters.values() if self._updated_at is None else ():
                self._mark("weights", parameter)
                self._mark("gradients", parameter.grad)
            self._updated_at = created
        elif self._updated_at is not None and created > self._updated_at:
            self._parameters.clear()
            self._updated_at = None
            return True
        return False

    def _changes_parameter(self, operator: Operator, arguments: list[Any]) -> bool:
        first = arguments[0] if arguments and operator.base.endswith("_") else None
        return isinstance(first, torch.Tensor) and first.untyped_storage()._cdata in self._parameters
