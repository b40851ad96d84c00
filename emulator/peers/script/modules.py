"""Attributes operators to modules of a script: forward to the running module, backward to the module whose forward
created the running autograd node (`tape.py`).
"""

import re
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from emulator.peers.script.tape import Tape

OUTSIDE = ""
"""Module name of operators outside modules: a loss, clipping, an optimizer."""
_WRAPPERS = re.compile(
    r"(^|(?<=\.))(module|_forward_module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(\.|$)"
)
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


def folded(name: str) -> str:
    """Return a module's name without wrappers and with "*" for numbers, so that equal layers share it."""
    return _NUMBERS.sub("*", _WRAPPERS.sub("", name)).strip(".")


class Modules:
    """Tracks all modules of this process."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._outermost: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._tape: Tape[str] = Tape()
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)

    def current(self, is_backward: bool) -> str:
        """Return the folded name of the running module."""
        if not is_backward:
            name = self._stack[-1] if self._stack else OUTSIDE
            self._tape.note(name)
            return name
        if self._stack:  # recomputation of a checkpoint
            return self._stack[-1]
        return self._tape.of_running_node() or OUTSIDE

    def parameters(self) -> Iterator[torch.Tensor]:
        """Yield the parameters of the outermost modules that have run."""
        for module in self._outermost:
            yield from module.parameters()

    def next_iteration(self) -> None:
        """Discard the autograd nodes of the previous iteration."""
        self._tape.forget()

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        if id(module) not in self._names:
            if not self._stack:
                self._outermost.add(module)
                self._names |= {id(one): folded(name) for name, one in module.named_modules()}
            self._names.setdefault(id(module), folded(type(module).__name__))
        self._stack.append(self._names[id(module)] or type(module).__name__)

    def _leave(self, module: torch.nn.Module, arguments: Any, result: Any) -> None:
        self._stack.pop()
