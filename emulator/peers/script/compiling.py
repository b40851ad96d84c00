"""torch.compile without a compiler: the code runs eagerly, but its operators are marked as compiled, forward and
backward, so that `fusion.py` can predict the compiler's kernels."""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from emulator.peers.script.cuda import replace
from emulator.peers.script.fusion import Segment
from emulator.peers.script.tape import Tape


class Compiled:
    """Tracks calls of compiled code. `is_used`: whether compiled code has run. `on_use`: called before it runs first;
    packages compile functions that a script never calls."""

    def __init__(self, on_use: Callable[[], None]) -> None:
        self.is_used = False
        self._on_use = on_use
        self._depth = self._calls = 0
        self._graphs: set[int] = set()
        """Calls of code that is replayed as CUDA graphs."""
        self._graph: Segment | None = None
        self._tape: Tape[int] = Tape()
        """The call in which an autograd node was created."""
        replace(torch, {"compile": self._compile})

        def in_place(module: torch.nn.Module, *arguments: Any, **options: Any) -> None:
            module._compiled_call_impl = self._compile(module._call_impl, *arguments, **options)

        replace(torch.nn.Module, {"compile": in_place})
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")  # ours

    def segment(self, is_backward: bool) -> Segment | None:
        """Return the call of compiled code that contains the next operator."""
        if not self.is_used:
            return None
        if self._depth:
            if not is_backward:
                self._tape.note(self._calls)
            return self._calls, is_backward
        if not is_backward:
            return None
        call = self._tape.of_running_node()
        return None if call is None else (call, True)

    def is_launched(self, segment: Segment | None) -> bool:
        """Return whether the host launches the next kernel; those of a CUDA graph are launched with its first."""
        is_within = segment is not None and segment[0] in self._graphs and segment == self._graph
        self._graph = segment
        return not is_within

    def next_iteration(self) -> None:
        """Discard the autograd nodes of the previous iteration."""
        self._tape.forget()
        self._graphs.clear()

    def _compile(self, model: Any = None, *_: Any, **options: Any) -> Any:
        if model is None:  # a decorator with arguments
            return functools.partial(self._compile, **options)
        if options.get("disable"):
            return model
        if isinstance(model, torch.nn.Module):
            from torch._dynamo import OptimizedModule  # takes a second to import

            return OptimizedModule(model, lambda call: self._compile(call, **options))
        has_graphs = _has_graphs(**options)

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._within(has_graphs):
                return model(*args, **kwargs)

        return call

    @contextmanager
    def _within(self, has_graphs: bool) -> Iterator[None]:
        if not self.is_used:
            self.is_used = True
            self._on_use()
        self._calls += not self._depth
        if has_graphs and not self._depth:
            self._graphs.add(self._calls)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


def _has_graphs(mode: str | None = None, options: dict[str, Any] | None = None, **_: Any) -> bool:
    """Return whether compiled code becomes CUDA graphs (`torch.compile`'s arguments)."""
    return mode in ("reduce-overhead", "max-autotune") or bool((options or {}).get("triton.cudagraphs"))
