"""Detection of a training script's iteration boundaries without its cooperation: an iteration ends when its optimizer
has stepped. If a script has several optimizers, the first one that steps counts.
"""

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


def living(*kinds: type) -> list[Any]:
    """All existing objects of these types, the oldest first.

    Found among the referrers of their types. A list of all objects (`gc.get_objects`) would refer to tuples that other
    threads are still building, whose `tuple(…)` then fails (SystemError): a capture must not harm the job.
    """
    kinds_below: set[type] = set()
    left = list(kinds)
    while left:
        kinds_below.add(kind := left.pop())
        left += set(type.__subclasses__(kind)) - kinds_below
    return [thing for thing in gc.get_referrers(*kinds_below) if type(thing) in kinds_below]


class Iterations:
    """Calls `boundary()` after every step of the optimizer, until `close`.

    torch's hook is called inside the step, before its profiler range has ended. So it is only used to identify the
    optimizer, whose `step` is then wrapped; `boundary(inside=True)` is that first call.
    """

    def __init__(self, boundary: Callable[..., None], watch: bool = True) -> None:
        """`watch`: whether to look for optimizers at all."""
        self._boundary, self._watch = boundary, watch
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._wrapped: list[tuple[weakref.ref[Optimizer], types.MethodType, dict[str, Any]]] = []
        """Each optimizer, the wrapped `step`, and its own instance attribute `step` from before, if it had one."""
        self._hook = register_optimizer_step_post_hook(self._stepped) if watch else None

    def expect(self) -> None:
        """Wrap existing optimizers before any of them has stepped."""
        for optimizer in living(Optimizer) if self._watch else ():
            self._wrap(optimizer)

    def close(self) -> None:
        """Restore the optimizers."""
        if self._hook is not None:
            self._hook.remove()
        for reference, ours, replaced in self._wrapped:
            optimizer = reference()
            if optimizer is not None and optimizer.__dict__.get("step") is ours:
                del optimizer.step
                vars(optimizer).update(replaced)
        self._wrapped.clear()

    def _stepped(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            if not any(reference() is optimizer for reference, *_ in self._wrapped):
                self._wrap(optimizer)
                self._boundary(inside=True)

    def _wrap(self, optimizer: Optimizer) -> None:
        step, reference = optimizer.step, weakref.ref(optimizer)

        @functools.wraps(step)
        def stepped(_: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            if self._optimizer is not None and self._optimizer() is reference():
                self._boundary()
            return result

        # A method, and not a function, since learning rate schedulers inspect it.
        ours = types.MethodType(stepped, optimizer)
        replaced = {name: value for name, value in vars(optimizer).items() if name == "step"}
        vars(optimizer)["step"] = ours
        self._wrapped.append((reference, ours, replaced))
