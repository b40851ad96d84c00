"""`compressed_activations`: compression of the tensors that a model's forward passes save for the backward pass."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils._pytree import tree_iter

from host_agent.memory.bounds import START, Fixed, Measured
from host_agent.memory.codecs import CODECS
from host_agent.memory.host import Host
from host_agent.memory.operators import Rule
from host_agent.memory.saving import SavedTensors, has_storage, ratio
from switchml.errors import ConfigError

MIN_BYTES = 4096
"""Tensors smaller than this are not compressed."""
EVERY = 1000
"""Steps between measurements of gradients (COMET's W)."""


class CompressedActivations:
    """Activation compression of one model, created by `compressed_activations`. Closing it, or leaving it as a context
    manager, ends the compression; graphs that it has compressed can still run backward."""

    def __init__(self, model: nn.Module, saved: SavedTensors, bounds: Fixed | Measured):
        self._model, self._saved, self._bounds = model, saved, bounds
        self._is_saving = False
        self._is_known = False
        self._own: set[int] = set()
        """Identities of the model's own weights, excluding those that sharding creates for a pass."""
        self._calls: list[contextlib.ExitStack] = []
        dynamo = sys.modules.get("torch._dynamo")  # importing it takes seconds
        self._is_compiled = dynamo is not None and any(isinstance(m, dynamo.OptimizedModule) for m in model.modules())
        self._hooks = [
            model.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True),
            model.register_forward_hook(self._leave, always_call=True),
        ]
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                self._hooks.append(module.register_forward_pre_hook(self._enter_layer))
        if isinstance(bounds, Measured):
            for module in bounds.layers:
                self._hooks.append(module.register_forward_hook(self._leave_layer))

    @contextlib.contextmanager
    def saving(self, *inputs: Any) -> Iterator[None]:
        """Compress tensors saved within the context: for a forward pass, or a loss, that is not a call of the model.

        `inputs` are not compressed, as they are in memory anyway. Neither is anything in a transform of `torch.func`,
        whose gradients support no hooks, or in forward-mode differentiation."""
        is_transformed = torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
        if self._is_saving or is_transformed or not torch.is_grad_enabled():
            yield
            return
        saved, bounds = self._saved, self._bounds
        with contextlib.ExitStack() as stack:
            self._is_saving = True
            stack.callback(self._end)
            if isinstance(bounds, Measured):
                bounds.begin()
            operators = saved.operators
            if not self._is_compiled:
                stack.enter_context(operators)
            elif not self._is_known or isinstance(bounds, Measured) and bounds.is_measuring:
                # Layers and operators of a compiled model can only be distinguished in eager mode.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.callback(self._know)
                operators.outside, operators.strictest = Rule.EXACT, Rule.LINEAR
                stack.enter_context(operators)
            own = [each for each in self._model.parameters() if not hasattr(each, "_local_tensor")]
            self._own = set(map(id, own))
            there = [*self._model.parameters(), *self._model.buffers(), *tree_iter(inputs)]
            saved.anyway.update(filter(None, map(_storage, there)))
            hooks = (saved.pack, saved.unpack)
            if self._is_compiled:  # otherwise graph breaks would cause the hooks to be compiled, too
                hooks = (torch.compiler.disable(saved.pack), torch.compiler.disable(saved.unpack))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
            yield

    def stats(self) -> dict[str, float]:
        """Totals so far: `tensors` compressed; their `bytes` before and `compressed_bytes` after, and `left_bytes` of
        those not compressed (excluding weights and inputs); `ratio` of all bytes before to those after, infinite if
        nothing stays on the device; `compress_s`, `restore_s` in seconds."""
        counters = vars(self._saved.counters())
        return {**counters, "ratio": ratio(counters)}

    def shares(self) -> dict[str, float]:
        """Layer → error bound of its saved tensors, relative to their root mean square; empty if no gradients are
        measured."""
        bounds = self._bounds
        return {each.name: each.share for each in bounds.layers.values()} if isinstance(bounds, Measured) else {}

    def close(self) -> None:
        """Remove all hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> CompressedActivations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _know(self) -> None:
        """A compiled model has run once as it is written: whether its tensors may be compressed without knowing which
        operator saves them."""
        operators = self._saved.operators
        self._is_known = True
        operators.outside = Rule.LINEAR if operators.strictest is Rule.LINEAR else Rule.EXACT

    def _end(self) -> None:
        self._is_saving = False
        self._saved.forget()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack = contextlib.ExitStack()
        stack.enter_context(self.saving(args, kwargs))
        self._calls.append(stack)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._calls:
            self._calls.pop().close()

    def _enter_layer(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_saving:
            return
        # Sharded weights are gathered only now, in storages of their own, and only for this pass.
        own = list(module.parameters(recurse=False))
        self._saved.anyway.update(filter(None, map(_storage, own)))
        self._saved.weights = [weight for weight in own if id(weight) in self._own]
        if isinstance(self._bounds, Measured) and module in self._bounds.layers:
            self._bounds.enter(module, args)

    def _leave_layer(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._is_saving and isinstance(self._bounds, Measured):
            self._bounds.leave(module, output)


def compressed_activations(
    model: nn.Module,
    codec: str = "levels",
    error: float | str = "auto",
    *,
    optimizer: torch.optim.Optimizer | None = None,
    every: int = EVERY,
    least_bytes: int = MIN_BYTES,
    folder: str | None = None,
) -> CompressedActivations:
    """Compress the tensors that the model's forward passes save for backward, until the result is closed.

    `codec`: "levels" (integers of quantization steps), "szx" (zeros separately, the others as an SZx stream; larger and
    slower), "fp16", "int8" (rows of 256 with a scale), "host" (off the device: to pinned memory, or from a CPU to a
    memory-mapped file in `folder`), or "none" (counts only).

    `error`: the maximum error of an element with szx and levels, relative to its tensor's root mean square, or to 1 if
    that is smaller; "auto" measures gradients in steps 0, 16, 128 and each `every`th, and sets each layer's bound so
    that its weights' gradient changes by 1 % of the momentum in `optimizer`, or of the gradient itself (COMET, VLDB
    2022: `bounds.py`). Gradients scaled by a GradScaler are not comparable with momentum: omit `optimizer` then.

    `least_bytes`: smaller tensors are not compressed, nor are weights, buffers, the model's inputs, and any tensor that
    is not plain and dense: sparse, a subclass, wrapped by `torch.func`, in forward-mode differentiation. Integers and
    bools are stored exactly, in fewer bits, and so are outliers: infinities, NaN, and magnitudes of 16 or more, eight
    times above all others, as in masked logits.

    `model` may be wrapped in DistributedDataParallel, sharded (`fully_shard`), checkpointed or compiled; do this
    before.

    Raises ConfigError.
    """
    if codec not in CODECS:
        raise ConfigError(f"activations: codec {codec!r}: expected one of {', '.join(CODECS)}")
    if error != "auto" and not (isinstance(error, float | int) and 0 < error < float("inf")):
        raise ConfigError(f"activations: error={error!r}: expected auto, or a share above 0 of the root mean square")
    if every < 1 or least_bytes < 0:
        raise ConfigError(f"activations: every={every}, least_bytes={least_bytes}: expected at least 1 and 0")
    chosen = Host(folder) if codec == "host" else CODECS[codec]()
    bounds: Fixed | Measured = Fixed(START if error == "auto" else float(error))
    if chosen.is_bounded and error == "auto":
        bounds = Measured(model, optimizer, every)
    return CompressedActivations(model, SavedTensors(chosen, least_bytes, bounds), bounds)


def _storage(thing: Any) -> int | None:
    """Identity of a tensor's storage; of the local part's for shards. None if it has no storage."""
    local = getattr(thing, "_local_tensor", thing)
    if not isinstance(local, torch.Tensor) or not has_storage(local):
        return None
    return int(local.untyped_storage()._cdata)
