"""Counts the work of a torch module without running it: its forward pass on the meta device, where tensors have shapes
but no values. FLOPs are torch's count (torch.utils.flop_counter) of GEMMs and convolutions.
"""

import copy
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.jobs.workload.models import LayerTable
from switchml.errors import ConfigError

VIEWS = re.compile(
    "view|_unsafe_view|reshape|t|transpose|permute|expand|unsqueeze|squeeze|slice|select|detach|alias|as_strided|split|"
    "split_with_sizes|chunk|unbind|flatten|unflatten"
)
"""Operators without a kernel launch."""


def load(path: str) -> Any:
    """Return the torch.nn.Module constructed by `package.module:callable`, on the meta device. Raises ConfigError."""
    import torch

    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:  # a console script's first entry is its own folder
        sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"no model {path}: {error}; expected package.module:callable") from None
    with torch.device("meta"):
        module = make() if not isinstance(make, torch.nn.Module) else make
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"{path} returned {type(module).__name__}; expected a torch.nn.Module")
    return module


def shape(text: str) -> tuple[int, ...]:
    """Parse a sample's shape without the batch: "3x224x224" → (3, 224, 224)."""
    try:
        sizes = tuple(int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"input shape {text!r}: expected sizes such as 3x224x224 (of one sample, without the batch)")
    return sizes


def count(
    module: Any,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[Any] | None = None,
    *,
    name: str = "module",
    title: str = "",
    batch: int = 2,
) -> LayerTable:
    """Return a row for each submodule of a torch.nn.Module with its own parameters or FLOPs, in forward order;
    operators in between are attributed to the preceding row. Parameters used twice count once.

    `shapes`: of the inputs, without the batch. `dtypes`: default float32. The forward pass uses a batch of `batch`; all
    counts are for one sample. Raises ConfigError where the module can't take these inputs.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    # Before the copy to the meta device, which gives shared parameters separate tensors.
    parameters_of = {
        part: [(id(p), p.numel()) for p in own.parameters(recurse=False)] for part, own in module.named_modules()
    }
    module = copy.deepcopy(module).to("meta")
    names = {id(part): part_name for part_name, part in module.named_modules()}
    owners: dict[int, str] = {}
    # By part, in forward order: FLOPs, elements, kernels, saved elements, saved tensors.
    counts: dict[str, list[float]] = {}
    saved: dict[int, Any] = {}  # storages that backward needs; weights are excluded
    weights = {p.untyped_storage()._cdata for p in module.parameters()}
    stack: list[str] = [""]

    def last() -> str:
        return next(reversed(counts), "")

    def row(part: str) -> list[float]:
        return counts.setdefault(part, [0.0, 0.0, 0.0, 0.0, 0.0])

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            outputs = function(*args, **(kwargs or {}))
            part = stack[-1] or last()
            packet = function._overloadpacket
            if packet in flop_registry:
                row(part)[0] += flop_registry[packet](*args, **(kwargs or {}), out_val=outputs)
            elif VIEWS.fullmatch(packet.__name__) or not part:
                return outputs
            if part in counts:
                tensors = outputs if isinstance(outputs, tuple | list) else (outputs,)
                counts[part][1] += sum(tensor.numel() for tensor in tensors[:1] if isinstance(tensor, torch.Tensor))
                counts[part][2] += 1
            return outputs

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        part = stack[-1] if stack[-1] in counts else last()
        if storage._cdata not in weights and storage._cdata not in saved and part:
            saved[storage._cdata] = storage
            counts[part][3] += storage.nbytes() / element
            counts[part][4] += tensor.ndim > 1  # excludes per-channel statistics of normalization
        return tensor

    def enter(part: Any, _: Any) -> None:
        own = sum(p.numel() for p in part.parameters(recurse=False))
        stack.append(names[id(part)] if own or not list(part.children()) else stack[-1])
        if own:
            row(stack[-1])
            for parameter, _numel in parameters_of[stack[-1]]:
                owners.setdefault(parameter, stack[-1])

    def leave(part: Any, _: Any, __: Any) -> None:
        stack.pop()

    hooks = [h for p in module.modules() for h in (p.register_forward_pre_hook(enter), p.register_forward_hook(leave))]
    dtypes = dtypes or [torch.float32] * len(shapes)
    element = min((dtype.itemsize for dtype in dtypes if dtype.is_floating_point), default=4)
    inputs = [torch.empty((batch, *one), dtype=dtype, device="meta") for one, dtype in zip(shapes, dtypes, strict=True)]
    try:
        with Counter(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module(*inputs)
    except Exception as error:
        shown = [tuple(one.shape) for one in inputs]
        raise ConfigError(f"{name} can't take inputs of shape {shown}: {error}") from None
    finally:
        for hook in hooks:
            hook.remove()
    if not counts:
        raise ConfigError(f"{name} has no parameters and no operations that can be counted")
    parameters = dict.fromkeys(counts, 0.0)
    for parameter, numel in {key: count for every in parameters_of.values() for key, count in every}.items():
        # Parameters not owned by a submodule are used in a functional call: counted to the last row.
        parameters[owners.get(parameter, last())] += numel
    flops, elements, kernels, kept, tensors = np.array(list(counts.values())).T
    return LayerTable(
        name,
        title or name,
        f"counted on the meta device by torch {torch.__version__}",
        tuple(part or "whole" for part in counts),
        np.array(list(parameters.values())),
        flops / batch,
        elements / batch,
        np.maximum(kernels, 1.0),
        sparse_of=np.ones(len(counts)),
        saved_of=kept / batch,
        tensors_of=tensors,
    )
